"""Standard streams that are closed, full, or of an encoding that lacks characters."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from di_engine.cli import run
from di_model.config import ModelConfig
from di_model.tokenizer import Tokenizer

FULL = Path("/dev/full")
TEXT = "é 你好"
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
LATIN = {"PYTHONIOENCODING": "latin-1:strict"}

needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


def di(*arguments, redirect="", environment=None, stdin=b"", shell="sh"):
    """``di`` as a shell starts it."""
    command = [
        shell,
        "-c",
        f'"$@" {redirect}',
        shell,
        sys.executable,
        "-m",
        "di_engine",
        *map(str, arguments),
    ]
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture(scope="module")
def spoken(checkpoint):
    """A command line that generates TEXT."""
    ids = Tokenizer.from_file(checkpoint, ModelConfig.from_file(checkpoint)).encode(TEXT)
    options = ["--golden-token-ids", ",".join(map(str, ids)), "--max-tokens", len(ids), "--max-num-seqs", 4]
    return ["generate", checkpoint, *options, "--threads", 1]


@pytest.mark.parametrize("environment", [ASCII, LATIN], ids=["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_escaped(spoken, environment):
    encoding = "ascii" if environment is ASCII else "latin-1"
    text = di(*spoken, "--prompt", "a", environment=environment)
    assert text.returncode == 0
    assert text.stdout.decode(encoding) == TEXT.encode(encoding, "backslashreplace").decode(encoding) + "\n"
    found = di(*spoken, "--prompt", "a", "--json", environment=environment)
    assert found.returncode == 0
    assert found.stdout.isascii()
    assert json.loads(found.stdout)["text"] == TEXT


def test_json_has_characters_as_they_are_where_the_encoding_has_them(spoken):
    found = di(*spoken, "--prompt", "a", "--json", environment={"PYTHONIOENCODING": "utf-8"})
    assert TEXT in found.stdout.decode("utf-8")


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["doctor"]])
def test_every_page_is_written_in_ascii(arguments):
    shown = di(*arguments, environment=ASCII)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.isascii()
    assert shown.stdout.strip()


def test_names_that_an_encoding_lacks_are_escaped_in_errors():
    refused = di("generate", "/nowhere/é", environment=ASCII)
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"di: no model at /nowhere/")
    assert refused.stderr.isascii()


@needs_full_device
@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"], ["--help"], ["--version"]])
def test_output_that_cannot_be_written_is_told_in_one_line(arguments):
    ended = di(*arguments, redirect="> /dev/full")
    assert (ended.returncode, ended.stderr) == (
        1,
        b"di: cannot write the output: No space left on device\n",
    )


@needs_full_device
def test_results_that_cannot_be_written_are_told_in_one_line(spoken):
    ended = di(*spoken, "--prompt", "a", "--json", redirect="> /dev/full")
    assert (ended.returncode, ended.stderr) == (
        1,
        b"di: cannot write the output: No space left on device\n",
    )


@needs_full_device
def test_messages_that_cannot_be_written_leave_results_and_exit_code(spoken):
    ended = di(*spoken, "--prompt", "a", redirect="2> /dev/full")
    assert (ended.returncode, ended.stdout.decode()) == (0, TEXT + "\n")
    assert di("nonsense", redirect="2> /dev/full").returncode == 2


def test_reader_that_has_gone_is_no_message():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "di_engine", "doctor"]
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_change_nothing_else(spoken, redirect):
    ended = di(*spoken, "--prompt", "a", redirect=redirect)
    assert ended.returncode == 0
    assert ended.stdout.decode() == ("" if redirect.startswith(">") else TEXT + "\n")
    assert b"Traceback" not in ended.stderr
    assert (b"tokens/s" in ended.stderr) == ("2>" not in redirect)


def test_closed_input_is_an_empty_prompt(checkpoint):
    ended = di("generate", checkpoint, "--max-num-seqs", 4, redirect="<&-")
    assert ended.returncode == 1
    assert ended.stderr == b"di: prompt 0: prompt: got an empty prompt, allowed: at least one token\n"


def test_bytes_that_are_no_text_are_refused(checkpoint):
    for environment in ({"PYTHONIOENCODING": "utf-8:strict"}, {"LC_ALL": "C"}):
        ended = di("generate", checkpoint, stdin=b"a\xff", environment=environment)
        assert ended.returncode == 2
        assert ended.stderr.startswith(b"di: standard input: 'utf-8' codec can't decode byte 0xff")
        assert ended.stderr.count(b"\n") == 1


def test_input_that_cannot_be_read_is_told_in_one_line(capsys, checkpoint, monkeypatch):
    class Unreadable(io.StringIO):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stdin", Unreadable())
    assert run(["generate", str(checkpoint)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("di: ")
    assert captured.err.endswith("Input/output error\n")

"""``di generate``: where prompts come from, what comes out, and what a mistake costs."""

import dataclasses
import enum
import errno
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from di_engine import LLM, EngineConfig, SamplingParams
from di_engine.cli import common, run
from di_engine.cli.demo import NOTE_FILE
from di_engine.cli.generate import _read_stdin
from di_engine.cli.generate import command as generate_command
from di_model.config import ModelConfig
from di_model.tokenizer import Tokenizer

GREEDY = ["--temperature", "0", "--max-tokens", "5", "--max-num-seqs", "4"]


@pytest.fixture(scope="module")
def expected(checkpoint):
    """What the library gives for the same request."""
    with LLM(checkpoint, max_num_seqs=4) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=1)
        return llm.generate(["The quick", [5, 6, 7]], params, use_tqdm=False)


def generate(capsys, *arguments, exit_code=0):
    assert run(["generate", *map(str, arguments)]) == exit_code
    return capsys.readouterr()


def json_lines(captured):
    return [json.loads(line) for line in captured.out.splitlines()]


def test_prompt_gives_its_text(capsys, checkpoint, expected):
    assert generate(capsys, checkpoint, "--prompt", "The quick", *GREEDY).out == expected[0].text + "\n"


def test_model_may_be_an_option(capsys, checkpoint, expected):
    captured = generate(capsys, "--model", checkpoint, "--prompt", "The quick", *GREEDY)
    assert captured.out == expected[0].text + "\n"


def test_json_has_tokens_usage_and_logprobs(capsys, checkpoint, expected):
    captured = generate(
        capsys,
        checkpoint,
        "--prompt",
        "The quick",
        *GREEDY,
        "--logprobs",
        1,
        "--prompt-logprobs",
        0,
        "--json",
    )
    (line,) = json_lines(captured)
    result = expected[0]
    assert (line["index"], line["text"], tuple(line["token_ids"])) == (0, result.text, result.token_ids)
    assert line["finish_reason"] == result.finish_reason
    assert line["usage"]["completion_tokens"] == len(result.token_ids)
    assert line["usage"]["total_tokens"] == line["usage"]["prompt_tokens"] + len(result.token_ids)
    assert [entry["logprob"] for entry in line["logprobs"]] == [e.logprob for e in result.logprobs]
    assert [len(entry["top"]) for entry in line["logprobs"]] == [1] * len(result.token_ids)
    assert len(line["prompt_logprobs"]) == line["usage"]["prompt_tokens"] - 1
    assert "error" not in line


def test_bad_lines_of_a_file_fail_alone(capsys, checkpoint, expected, tmp_path):
    lines = [
        '{"prompt": "The quick"}',
        "not json",
        '{"token_ids": [5, 6, 7]}',
        '{"prompt": "a", "temperature": -1}',
        '{"prompt": "a", "tempo": 1}',
        '{"token_ids": [5, 100000]}',
        '{"prompt": "a", "token_ids": [1]}',
        '"The quick"',
        '{"token_ids": []}',
        "",
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = json_lines(generate(capsys, checkpoint, "--prompt-file", path, *GREEDY, "--json", exit_code=1))
    assert [line["index"] for line in found] == list(range(9))
    assert tuple(found[0]["token_ids"]) == expected[0].token_ids
    assert tuple(found[2]["token_ids"]) == expected[1].token_ids
    reasons = {1: "line 2: not JSON", 3: "temperature", 4: "tempo", 5: "100000", 6: "prompt and token_ids"}
    reasons |= {7: "JSON str", 8: "empty prompt"}
    for index, reason in reasons.items():
        assert reason in found[index]["error"]
    assert all("error" not in found[index] for index in (0, 2))


def test_line_parameters_go_before_options(capsys, checkpoint, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "a", "max_tokens": 2, "ignore_eos": true, "logit_bias": {"7": 100}}\n{"prompt": "a"}\n',
        encoding="utf-8",
    )
    found = json_lines(generate(capsys, checkpoint, "--prompt-file", path, *GREEDY, "--ignore-eos", "--json"))
    assert found[0]["token_ids"] == [7, 7]
    assert len(found[1]["token_ids"]) == 5


def test_standard_input_is_one_prompt(capsys, checkpoint, expected, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("The quick"))
    assert generate(capsys, checkpoint, *GREEDY).out == expected[0].text + "\n"


@pytest.mark.parametrize(
    ("text", "prompt"), [("a\n", "a"), ("a\nb\n", "a\nb"), ("a\n\n", "a\n"), ("a ", "a ")]
)
def test_newline_at_the_end_of_standard_input_is_dropped(monkeypatch, text, prompt):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert _read_stdin() == prompt


def test_terminal_gets_the_same_text_as_it_comes(capsys, checkpoint, expected, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert generate(capsys, checkpoint, "--prompt", "The quick", *GREEDY).out == expected[0].text + "\n"


def test_several_choices(capsys, checkpoint):
    options = ["--prompt", "a", "--n", 2, "--seed", 3, "--max-tokens", 4, "--max-num-seqs", 4]
    (line,) = json_lines(generate(capsys, checkpoint, *options, "--json"))
    assert len(line["choices"]) == 2
    assert line["choices"][0]["token_ids"] == line["token_ids"]
    assert generate(capsys, checkpoint, *options).out.startswith("[0] ")


def test_forced_tokens_bias_and_stops(capsys, checkpoint):
    options = ["--prompt", "a", "--max-tokens", 6, "--ignore-eos", "--json", "--max-num-seqs", 4]
    (line,) = json_lines(generate(capsys, checkpoint, *options, "--golden-token-ids", "9,10,11,12,13,14"))
    assert line["token_ids"] == [9, 10, 11, 12, 13, 14]
    forced = ["--golden-token-ids", "9,-1,11", "--logit-bias", "8=100", "--stop-token-id", 11, "--top-k", 1]
    (line,) = json_lines(generate(capsys, checkpoint, *options, *forced))
    assert (line["token_ids"], line["finish_reason"], line["stop_reason"]) == ([9, 8, 11], "stop", 11)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--prompt", "a"], 2, "MODEL: got none"),
        (["{model}", "--model", "{model}", "--prompt", "a"], 2, "MODEL: got two"),
        (["nowhere", "--prompt", "a"], 2, "no model at nowhere: a model is a checkpoint directory here"),
        (["org/name", "--prompt", "a"], 2, "download it first: hf download org/name"),
        (["{model}", "--prompt", "a", "--prompt-file", "x"], 2, "--prompt-file"),
        (["{model}", "--prompt", "a", "--tokenizer", "absent.json"], 2, "absent.json"),
        (["{model}", "--prompt-file", "absent.jsonl"], 2, "absent.jsonl"),
        (["{model}", "--prompt", "a", "--temperature", "-1"], 2, "--temperature: got -1.0"),
        (["{model}", "--prompt", "a", "--temperature", "nan"], 2, "--temperature: got nan"),
        (["{model}", "--prompt", "a", "--top-p", "1.5"], 2, "--top-p: got 1.5"),
        (["{model}", "--prompt", "a", "--max-tokens", "0"], 2, "--max-tokens: got 0"),
        (["{model}", "--prompt", "a", "--max-tokens", "many"], 2, "--max-tokens"),
        (
            ["{model}", "--prompt", "a", "--logit-bias", "x=1"],
            2,
            "--logit-bias: got 'x=1', allowed: ID=VALUE",
        ),
        (["{model}", "--prompt", "a", "--logit-bias", "5"], 2, "--logit-bias: got '5', allowed: ID=VALUE"),
        (["{model}", "--prompt", "a", "--logit-bias", "5000=1"], 2, "--logit-bias: got 5000"),
        (["{model}", "--prompt", "a", "--golden-token-ids", "5,,7"], 2, "--golden-token-ids: got '5,,7'"),
        (["{model}", "--prompt", "a", "--logprobs", "1"], 2, "--logprobs: text does not show it; add --json"),
        (["{model}", "--prompt", "a", "--no-detokenize"], 2, "--no-detokenize: leaves nothing to show"),
        (["{model}", "--prompt", "a", "--kv-cache-bytes", "10"], 2, "--kv-cache-bytes: got 10"),
        (["{model}", "--prompt", "a", "--policy", "random"], 2, "--policy: got 'random'"),
        (["{model}", "--prompt", "a", "--block-size", "5"], 2, "--block-size: got 5"),
        (["{model}", "--prompt", "a", "--max-model-len", "1000000"], 2, "--max-model-len: got 1000000"),
        (["{model}", "--prompt", "a", "--nonsense"], 2, "--nonsense"),
    ],
)
def test_mistakes_give_one_line(capsys, checkpoint, monkeypatch, tmp_path, arguments, exit_code, message):
    monkeypatch.chdir(tmp_path)
    captured = generate(
        capsys, *(argument.format(model=checkpoint) for argument in arguments), exit_code=exit_code
    )
    assert message in captured.err
    assert captured.err.startswith("di: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


SECONDS = r"\d+\.\d\d s, \d+\.\d tokens/s\n"


def test_closing_line_counts_tokens_and_says_why_they_ended(capsys, checkpoint):
    forced = ["--max-num-seqs", 4, "--golden-token-ids", "9,10,11"]
    one = [checkpoint, "--prompt", "a", *forced]
    ended = {
        "3 tokens, stopped: length": ["--max-tokens", 3],
        "1 token, stopped: length": ["--max-tokens", 1],
        "2 tokens, stopped: stop token 10": ["--stop-token-id", 10],
    }
    for line, options in ended.items():
        assert re.fullmatch(f"{line}, {SECONDS}", generate(capsys, *one, *options).err)
    end = generate(capsys, *one[:3], "--max-num-seqs", 4, "--golden-token-ids", "9,1").err
    assert re.fullmatch(f"2 tokens, stopped: end of text, {SECONDS}", end)
    several = generate(capsys, *one, "--prompt", "b", "--prompt", "", "--max-tokens", 3, exit_code=1).err
    refused, closing = several.splitlines(keepends=True)
    assert refused.startswith("di: prompt 2: ")
    assert re.fullmatch(f"3 prompts: 6 tokens, stopped: 2 length, 1 error, {SECONDS}", closing)


def test_closing_line_keeps_out_of_json_and_quiet_runs(capsys, checkpoint):
    for option in ("--json", "--quiet", "-q"):
        assert generate(capsys, checkpoint, "--prompt", "a", *GREEDY, option).err == ""


def test_control_characters_reach_pipes_but_no_terminal(capsys, checkpoint, monkeypatch):
    tokenizer = Tokenizer.from_file(checkpoint, ModelConfig.from_file(checkpoint))
    raw = "a\x1b[2J\x00\x7f\x9b\tb\n\r"
    ids = tokenizer.encode(raw)
    options = [checkpoint, "--prompt", "x", "--golden-token-ids", ",".join(map(str, ids))]
    options += ["--max-tokens", len(ids), "--max-num-seqs", 4]
    assert generate(capsys, *options).out == raw + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for several in ([], ["--n", 2]):
        out = generate(capsys, *options, *several).out
        assert r"a\x1b[2J\x00\x7f\x9b" + "\tb\n" + r"\x0d" + "\n" in out
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)


def test_defaults_of_the_command_are_those_of_the_settings():
    """Help shows the command's own; without them SamplingParams and EngineConfig decide."""
    parameters = inspect.signature(generate_command).parameters
    shared = 0
    for settings in (SamplingParams, EngineConfig):
        for field in dataclasses.fields(settings):
            if field.name in parameters and field.name not in ("model", "seed"):
                default = field.default.value if isinstance(field.default, enum.Enum) else field.default
                assert parameters[field.name].default == default, field.name
                shared += 1
    assert shared > 25


def test_help_shows_defaults_whole_names_and_an_example(capsys):
    assert run(["generate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for piece in ("Most tokens to generate. [default: 16]", "[default: 1.0]", "every run draws anew"):
        assert piece in text
    for name in ("--max-num-batched-tokens", "--skip-special-tokens / --no-skip-special-tokens"):
        assert name in text
    assert "[default: load-draft]" in text
    assert "results do not depend on it, but for amx" in text
    assert "standard input: all of it is one prompt" in text
    assert "Example: di generate MODEL --prompt" in text


def test_refused_prompt_is_an_error_on_stderr(capsys, checkpoint):
    captured = generate(capsys, checkpoint, "--prompt", "", "--max-num-seqs", 4, exit_code=1)
    assert captured.err == "di: prompt 0: prompt: got an empty prompt, allowed: at least one token\n"


def test_demonstration_checkpoint_says_that_it_is_random(capsys, tmp_path):
    assert run(["demo-checkpoint", str(tmp_path / "demo")]) == 0
    capsys.readouterr()
    options = ["--prompt", "The quick brown fox", "--max-tokens", 8, "--seed", 7, "--max-num-seqs", 4]
    first = generate(capsys, tmp_path / "demo", *options)
    note, closing = first.err.splitlines()
    assert note == "note: The weights of this checkpoint are random: what it generates has no meaning."
    assert closing.startswith("8 tokens, stopped: length, ")
    assert generate(capsys, tmp_path / "demo", *options, "--quiet").err == ""
    assert generate(capsys, tmp_path / "demo", *options).out == first.out


@pytest.fixture
def locked(tmp_path):
    """A directory that its owner may not search."""
    directory = tmp_path / "locked"
    directory.mkdir(mode=0)
    yield directory
    directory.chmod(0o700)


def test_directory_that_may_not_be_searched_is_told_in_one_line(capsys, locked):
    if os.access(locked, os.X_OK):
        pytest.skip("this user may search every directory")
    assert generate(capsys, locked, "--prompt", "a", exit_code=1).err == (
        f"di: {locked / 'config.json'}: Permission denied\n"
    )


def test_more_threads_than_processors_are_noted_and_change_nothing(capsys, checkpoint, expected, monkeypatch):
    monkeypatch.setattr(common, "usable_processors", lambda: 1)
    command = [checkpoint, "--prompt", "The quick", *GREEDY, "--threads", "2"]
    captured = generate(capsys, *command)
    assert captured.out == expected[0].text + "\n"
    assert captured.err.startswith(
        "note: --threads 2: more than the 1 that this process may run at once, and slower\n"
    )
    assert "note" not in generate(capsys, *command, "--quiet").err
    assert "note" not in generate(capsys, *command[:-1], "1").err
    common.note_of_threads(4096)
    assert capsys.readouterr().err.endswith(", and so much slower that it may take minutes\n")


def test_note_that_may_not_be_looked_for_fails_nothing(capsys, checkpoint, expected, monkeypatch):
    look = os.stat

    def denied(path, *arguments, **options):
        if str(path).endswith(NOTE_FILE):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", denied)
    captured = generate(capsys, checkpoint, "--prompt", "The quick", *GREEDY, "--quiet")
    assert (captured.out, captured.err) == (expected[0].text + "\n", "")


def test_interrupt_ends_the_process_cleanly(checkpoint):
    command = [sys.executable, "-c", "from di_engine.cli import main; main()", "generate", str(checkpoint)]
    command += ["--prompt", "a"] * 64  # a pool of two at a time: seconds of work, fast as a tiny model is
    command += ["--max-tokens", "3000", "--ignore-eos", "--num-blocks", "60", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _wait_until_mapped(process.pid, str(checkpoint))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def _wait_until_mapped(pid, directory):
    """Until the process has opened the weights, which is the last thing before it generates."""
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see how far the process is")
    deadline = time.monotonic() + 60
    while directory not in maps.read_text():
        assert time.monotonic() < deadline, "the process never opened the checkpoint"
        time.sleep(0.05)
    time.sleep(0.5)

"""Lines of a ``--prompt-file``: each that is bad fails alone, by its number, in a short message."""

import codecs
import json

import pytest
from di_engine.cli import run
from di_engine.cli.prompts import from_file

WORDS = {"LONG": "9" * 5000, "LARGE": "1" + "0" * 400, "MEGABYTE": "x" * 1_000_000, "DEEP": "[" * 100_000}
"""What a line below has in place of each of these words."""

BAD = {
    '{"prompt": "a", "seed": LONG}': "got an integer of too many digits, allowed: 4300 digits",
    '{"token_ids": [LONG]}': "got an integer of too many digits, allowed: 4300 digits",
    '{"prompt": "a", "logit_bias": {"LONG": 1}}': "logit_bias key: got '999",
    '{"prompt": "a", "temperature": LARGE}': "temperature: got 1000",
    '{"prompt": "a", "logit_bias": {"5": 1, "05": 2}}': "logit_bias: got token 5 twice, allowed: once",
    '{"prompt": "a", "logit_bias": {"5": 1, "5": 2}}': "got key '5' twice, allowed: once",
    '{"prompt": "a", "seed": 1, "seed": 2}': "got key 'seed' twice, allowed: once",
    '{"prompt": ["MEGABYTE"]}': "prompt: got ['xxx",
    '{"token_ids": "MEGABYTE"}': "token_ids: got 'xxx",
    '{"prompt": "a", "MEGABYTE": 1}': "sampling parameters: got ['xxx",
    '{"prompt": "a", "temperature": "MEGABYTE"}': "temperature: got 'xxx",
    '{"prompt": "a", "logit_bias": {"MEGABYTE": 1}}': "logit_bias key: got 'xxx",
    '{"prompt": "a", "logit_bias": {"5": "MEGABYTE"}}': "logit_bias[5]: got 'xxx",
    '"MEGABYTE"': "got a JSON str",
    "MEGABYTE": "not JSON",
    "DEEP": "not JSON",
}


def parsed(tmp_path, data):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(data)
    return from_file(path, {})


def check_second_line(tmp_path, line, message):
    before, bad, after = parsed(tmp_path, b'{"prompt": "first"}\n' + line + b'\n{"prompt": "last"}\n')
    assert (before.prompt, after.prompt) == ("first", "last")
    assert before.error is after.error is bad.prompt is None
    assert bad.error.startswith(f"line 2: {message}")
    assert len(bad.error) < 700


@pytest.mark.parametrize("line", list(BAD))
def test_bad_line_fails_alone_by_its_number(tmp_path, line):
    text = line
    for word, value in WORDS.items():
        text = text.replace(word, value)
    check_second_line(tmp_path, text.encode(), BAD[line])


def test_line_that_is_no_text_fails_alone_by_its_number(tmp_path):
    message = "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 12"
    check_second_line(tmp_path, b'{"prompt": "\xff"}', message)


def test_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (line,) = parsed(tmp_path, codecs.BOM_UTF8 + '{"prompt": "é"}'.encode())
    assert (line.prompt, line.error) == ("é", None)


def test_line_ends_are_those_of_any_system_and_none_of_unicode(tmp_path):
    lines = parsed(tmp_path, '{"prompt": "a\u2028b"}\r\n\r\n{"prompt": "c"}'.encode())
    assert [line.prompt for line in lines] == ["a\u2028b", "c"]


def test_good_lines_of_a_bad_file_are_generated(tmp_path, capsys, checkpoint):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b'{"prompt": "a", "max_tokens": 1}\n\xff\nnot json\n')
    options = ["--prompt-file", str(path), "--json", "--max-num-seqs", "4"]
    assert run(["generate", str(checkpoint), *options]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found[0]["token_ids"]) == 1
    assert [line["error"].split(":")[0] for line in found[1:]] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--logit-bias", "5=1", "--logit-bias", "05=2"], "--logit-bias: got token 5 twice, allowed: once"),
        (["--logit-bias", WORDS["LONG"] + "=1"], "--logit-bias: got '999"),
        (["--golden-token-ids", WORDS["LONG"]], "--golden-token-ids: got '999"),
    ],
)
def test_token_ids_of_options_are_held_to_the_same(capsys, checkpoint, options, message):
    assert run(["generate", str(checkpoint), "--prompt", "a", *options]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith(f"di: {message}")
    assert len(captured) < 700

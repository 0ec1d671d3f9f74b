"""``di demo-checkpoint``: complete when it is there, and never in the place of something else."""

import stat
from pathlib import Path

import di_engine.demo
import pytest
from di_engine import LLM, SamplingParams
from di_engine.cli import run
from di_engine.cli.demo import NOTE, NOTE_FILE
from di_engine.demo import VOCAB_SIZE, readable_tokenizer, write_demo_checkpoint
from di_model.testing import write_checkpoint


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_demonstration_can_be_replaced(tmp_path, capsys):
    """Files that were added to it stay."""
    target = tmp_path / "a" / "demo"
    assert run(["demo-checkpoint", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    first = contents(target)
    (target / "notes.txt").write_text("mine", encoding="utf-8")
    assert run(["demo-checkpoint", str(target), "--seed", "1"]) == 0
    second = contents(target)
    assert second.pop("notes.txt") == b"mine"
    assert first.keys() == second.keys()
    assert first != second
    with LLM(target, max_num_seqs=4) as llm:
        (result,) = llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert len(result.token_ids) == 2


def test_tokens_are_mostly_text_and_text_survives_them(tmp_path):
    tokenizer = readable_tokenizer()
    assert tokenizer.get_vocab_size(with_added_tokens=True) == VOCAB_SIZE
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(VOCAB_SIZE)]
    assert sum(text.isprintable() and "\ufffd" not in text for text in texts) > 0.9 * VOCAB_SIZE
    for text in ("The quick brown fox", "bado kelu\n", "naïve 你好 \x00"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_empty_directory_is_taken_as_it_is(tmp_path, monkeypatch):
    """Also the working directory, which must stay the one that the shell is in."""
    monkeypatch.chdir(tmp_path)
    number = tmp_path.stat().st_ino
    assert run(["demo-checkpoint", "."]) == 0
    assert (tmp_path / "config.json").is_file()
    assert tmp_path.stat().st_ino == number


def test_other_checkpoints_and_files_are_left_alone(tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path / "precious", seed=5)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear", encoding="utf-8")
    for directory in (checkpoint, folder):
        before = contents(directory)
        assert run(["demo-checkpoint", str(directory)]) == 2
        assert "is not empty" in capsys.readouterr().err
        assert contents(directory) == before
    assert run(["demo-checkpoint", str(folder / "letter.txt")]) == 2
    assert "letter.txt: Not a directory" in capsys.readouterr().err
    assert (folder / "letter.txt").read_text(encoding="utf-8") == "dear"


def test_files_have_the_usual_permissions(tmp_path):
    assert run(["demo-checkpoint", str(tmp_path / "demo")]) == 0
    plain = tmp_path / "plain"
    plain.touch()
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "demo").iterdir()}
    assert modes == {stat.S_IMODE(plain.stat().st_mode)}


@pytest.mark.parametrize("existing", [False, True])
def test_what_fails_does_not_look_complete_and_harms_no_earlier_one(tmp_path, monkeypatch, existing):
    target = tmp_path / "demo"
    if existing:
        assert run(["demo-checkpoint", str(target)]) == 0
    before = contents(target) if existing else {NOTE_FILE: (NOTE + "\n").encode()}

    def fail(directory, seed):
        write_demo_checkpoint(directory, seed)
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(di_engine.demo, "write_demo_checkpoint", fail)
        assert run(["demo-checkpoint", str(target), "--seed", "1"]) == 1
    assert contents(target) == before
    assert run(["demo-checkpoint", str(target)]) == 0
    assert (target / "config.json").is_file()


def test_interrupted_move_leaves_no_configuration(tmp_path, monkeypatch):
    """``config.json`` goes first and comes last."""
    target = tmp_path / "demo"
    assert run(["demo-checkpoint", str(target)]) == 0
    moved = []

    def replace(source, destination):
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(source.name)
        return source.rename(destination)

    monkeypatch.setattr(Path, "replace", replace)
    assert run(["demo-checkpoint", str(target)]) == 130
    assert "config.json" not in contents(target)

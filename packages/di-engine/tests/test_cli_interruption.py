"""Ctrl-C and SIGTERM at any moment of ``di``: their exit codes, no traceback, and nothing that goes on in spite of them
or is left behind."""

import signal
import subprocess
import sys
import textwrap

import pytest
from di_engine.cli import interruption

INTERRUPTED_IMPORT = """
    import signal, sys
    from di_engine.cli import main

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == interrupted:
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    pass  # as torch does while it imports numpy

    interrupted = sys.argv.pop(1)
    signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop(1)))
    sys.meta_path.insert(0, Finder())
    main()
"""

INTERRUPTED_WRITE = """
    import signal, sys
    import di_engine.demo
    from di_engine.cli import main

    number = int(sys.argv.pop(1))
    di_engine.demo.write_demo_checkpoint = lambda directory, seed: signal.raise_signal(number)
    main()
"""

INTERRUPTED_BENCHMARK = """
    import signal, sys, tempfile
    import di_engine.benchmark.generated
    from di_engine.cli import main

    def write(directory, raw):
        (directory / "model.safetensors").write_bytes(b"half of it")
        try:
            signal.raise_signal(number)
        finally:
            for again in (number, signal.SIGINT, signal.SIGTERM):  # as timeout and shells may
                signal.raise_signal(again)

    number, tempfile.tempdir = int(sys.argv.pop(1)), sys.argv.pop(1)
    di_engine.benchmark.generated.write_generated = write
    main()
"""

INTERRUPTED_AT_ONCE = """
    import signal
    from di_engine.cli import interruption

    numbers = (signal.SIGINT, signal.SIGTERM)
    interruption.exit_at_once()
    interruption.raise_from_now_on()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.raise_signal(number)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    finally:
        for _ in range(100):
            pass
        print("cleared up")
"""

INTERRUPTED_PACKING = """
    import signal, sys
    import di_model.packed_file
    from di_engine.cli import main

    def interrupted(*_):
        (part,) = directory.glob("*.part")
        assert part.stat().st_size
        signal.raise_signal(number)

    directory = di_model.packed_file.Path(sys.argv[-1])
    number = int(sys.argv.pop(1))
    di_model.packed_file.pack = interrupted
    main()
"""

INTERRUPTED_END = """
    import atexit, signal
    import di_engine.demo
    from di_engine.cli import main

    di_engine.demo.write_demo_checkpoint = lambda directory, seed: None
    atexit.register(signal.raise_signal, signal.SIGINT)
    main()
"""


def python(code, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, text=True, check=False)


@pytest.mark.parametrize("module", ["typer", "rich.console", "torch", "numpy", "di_engine.llm"])
def test_imports_cannot_swallow_an_interrupt(checkpoint, module):
    command = ["generate", checkpoint, "--prompt", "a", "--max-num-seqs", 4, "--threads", 1]
    ended = python(INTERRUPTED_IMPORT, module, "default_int_handler", *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (interruption.EXIT_INTERRUPTED, "", "")


ENDS = [
    (int(signal.SIGINT), interruption.EXIT_INTERRUPTED),
    (int(signal.SIGTERM), interruption.EXIT_TERMINATED),
]


def test_ignored_interrupts_stay_ignored():
    """``nohup`` and shells that start background jobs ask for that."""
    ended = python(INTERRUPTED_IMPORT, "typer", "SIG_IGN", "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "di-engine" in ended.stdout


@pytest.mark.parametrize(("number", "exit_code"), ENDS)
def test_work_that_was_begun_is_cleared_up(tmp_path, number, exit_code):
    ended = python(INTERRUPTED_WRITE, number, "demo-checkpoint", tmp_path / "demo")
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, "", "")
    assert not list((tmp_path / "demo").glob(".unfinished-*"))


@pytest.mark.parametrize(("number", "exit_code"), ENDS)
def test_a_generated_model_is_not_left_behind(tmp_path, number, exit_code):
    ended = python(INTERRUPTED_BENCHMARK, number, tmp_path, "bench", "model", "--model", "generated")
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "exit_code"), ENDS)
def test_a_half_packed_file_is_not_left_behind(tmp_path, checkpoint, number, exit_code):
    command = ["generate", checkpoint, "--prompt", "a", "--max-num-seqs", 4, "--threads", 1]
    ended = python(INTERRUPTED_PACKING, number, *command, "--packed-directory", tmp_path)
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    assert "Traceback" not in ended.stderr
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_of_signals_that_come_together_one_is_raised():
    ended = python(INTERRUPTED_AT_ONCE)
    assert ended.returncode in (interruption.EXIT_TERMINATED, -signal.SIGINT)
    assert ended.stdout == "cleared up\n"
    assert "ignored" not in ended.stderr


def test_until_there_is_something_to_clear_up_sigterm_ends_the_process():
    ended = python(INTERRUPTED_IMPORT.replace("SIGINT", "SIGTERM"), "typer", "SIG_DFL", "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (interruption.EXIT_TERMINATED, "", "")


def test_end_of_the_process_has_no_traceback_either(tmp_path):
    ended = python(INTERRUPTED_END, "demo-checkpoint", tmp_path / "demo")
    assert (ended.returncode, ended.stderr) == (interruption.EXIT_INTERRUPTED, "")
    assert ended.stdout.startswith("wrote ")


def test_handlers_of_others_are_left_alone():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        interruption.exit_at_once()
        interruption.raise_from_now_on()
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a program that has called none of ours
        interruption.raise_from_now_on()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

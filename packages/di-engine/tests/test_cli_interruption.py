"""Ctrl-C at any moment of ``di``: exit code 130, no traceback, and nothing that goes on in spite of it."""

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
    import signal
    import di_engine.demo
    from di_engine.cli import main

    di_engine.demo.write_demo_checkpoint = lambda directory, seed: signal.raise_signal(signal.SIGINT)
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


def test_ignored_interrupts_stay_ignored():
    """``nohup`` and shells that start background jobs ask for that."""
    ended = python(INTERRUPTED_IMPORT, "typer", "SIG_IGN", "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "di-engine" in ended.stdout


def test_work_that_was_begun_is_cleared_up(tmp_path):
    ended = python(INTERRUPTED_WRITE, "demo-checkpoint", tmp_path / "demo")
    assert (ended.returncode, ended.stdout, ended.stderr) == (interruption.EXIT_INTERRUPTED, "", "")
    assert not list((tmp_path / "demo").glob(".unfinished-*"))


def test_end_of_the_process_has_no_traceback_either(tmp_path):
    ended = python(INTERRUPTED_END, "demo-checkpoint", tmp_path / "demo")
    assert (ended.returncode, ended.stderr) == (interruption.EXIT_INTERRUPTED, "")
    assert ended.stdout.startswith("wrote ")


def test_handlers_of_others_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruption.exit_at_once()
        interruption.raise_from_now_on()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

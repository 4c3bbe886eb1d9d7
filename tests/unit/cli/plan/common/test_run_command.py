"""A command as it would be alone."""

import os
import signal
import sys
from pathlib import Path

import pytest

from stepwell.cli.plan.common.run_command import CannotRun, run


def never() -> None:
    pytest.fail("it was quick")


def test_its_exit_code() -> None:
    """Or that of the signal that ended it, as a shell says it."""
    assert run(["sh", "-c", "exit 7"], never, 60) == 7
    assert run(["true"], never, 60) == 0
    assert run(["sh", "-c", "kill -KILL $$"], never, 60) == 137


def test_where_it_writes(capfd: pytest.CaptureFixture[str]) -> None:
    """To our stdout; aside, to our stderr."""
    run(["echo", "here"], never, 60)
    run(["echo", "there"], never, 60, stdout_to_stderr=True)
    assert capfd.readouterr() == ("here\n", "there\n")


def test_beats_while_it_runs(tmp_path: Path) -> None:
    """Again and again, until it ends: it waits for the third."""
    door = tmp_path / "door"
    os.mkfifo(door)
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            descriptor = os.open(door, os.O_WRONLY)
            os.close(descriptor)

    assert run(["sh", "-c", f"read line < {door}; exit 5"], beat, 0.01) == 5
    assert len(beats) >= 3


@pytest.mark.parametrize("number, ends", [(signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGINT, False)])
def test_signals(number: signal.Signals, ends: bool, tmp_path: Path) -> None:  # noqa: FBT001 - an example
    """What would end us is passed on. Ctrl-C is not: whoever has a terminal has it from there."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))\n"
        "for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):\n"
        "    signal.signal(each, lambda number, _: sys.exit(int(number)))\n"
        "open(sys.argv[1], 'w').write(str(__import__('os').getpid()))\n"
        "while True: time.sleep(0.05)\n"  # `pause` would sleep through a signal that comes just before it
    )
    ready = tmp_path / "ready"
    before = signal.getsignal(number)
    done: list[int] = []

    def beat() -> None:
        if ready.exists() and ready.read_text() and not done:
            done.append(1)
            os.kill(os.getpid(), number)
            if not ends:
                os.kill(int(ready.read_text()), signal.SIGUSR1)

    assert run([sys.executable, "-c", code, str(ready)], beat, 0.01) == (number if ends else 9)
    assert signal.getsignal(number) is before


def test_what_is_no_program(tmp_path: Path) -> None:
    """That is said, and is no exit code of a command."""
    program = tmp_path / "program"
    program.write_text("no program")
    program.chmod(0o755)
    with pytest.raises(CannotRun, match="Exec format error"):
        run([str(program)], never, 60)

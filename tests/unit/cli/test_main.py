"""What every command has in common: arguments, exit codes, one-line errors."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import stepwell as sw
from stepwell.cli import status
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.output import print_error
from stepwell.cli.main import main
from stepwell.transport.address import ADDRESS_VARIABLE
from tests.support.cli.processes import COMMAND


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["serve", "--hot-tokens", "many"],
        ["serve", "--hot-tokens", "0"],
        ["serve", "--log-level", "loud"],
        ["serve", "--durability", "disk"],
        ["serve", "--data-dir", ""],
        ["serve", "--data-dir", "/nowhere", "--durability", "none"],
        ["doctor"],
        ["backup"],
        ["backup", "/nowhere/copy"],
        ["backup", "", "--data-dir", "/nowhere"],
        ["status", "--loud"],
        ["status", "--address", "/tmp/" + "x" * 200],  # noqa: S108 - nothing is made there
        ["plan"],
        ["plan", "dance"],
        ["plan", "show"],
        ["plan", "new", "fix"],
        ["plan", "list", "--state", "happy"],
        ["plan", "record", "01M000"],
        ["plan", "apply", "01M000", "--root", ""],
        ["action", "create"],
    ],
    ids=" ".join,
)
def test_misuse_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is answered on stderr, with nothing on stdout."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "stepwell" in told.err


@pytest.mark.parametrize("command", [["status"], ["action", "list"]])
def test_no_manager_is_1(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says that there is none, and how to get one."""
    assert main([*command, "--address", str(tmp_path / "no.sock")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no manager at" in line
    assert "stepwell serve" in line


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed version, or that there is none."""
    monkeypatch.setattr(metadata, "version", lambda _: "1.2.3")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "stepwell 1.2.3\n"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert main(["--version"]) == 0
    assert "not installed" in capsys.readouterr().out


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is said in one line."""

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "connect", interrupted)
    assert main(["status"]) == 130
    assert capsys.readouterr().err == "stepwell: interrupted\n"


def test_an_interrupt_while_it_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands are not there yet, but Ctrl-C is answered."""

    class HalfRead(ModuleType):
        def __getattr__(self, _: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "stepwell.cli.command_line", HalfRead("half read"))
    assert main(["status"]) == 130
    assert capsys.readouterr().err == "stepwell: interrupted\n"


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "command, code, said",
    [
        ("serve", 1, "it cannot be started: No usable temporary directory"),
        ("workers", 1, "it cannot be started: No usable temporary directory"),
        ("status", 2, "there is no default address (No usable temporary directory"),
    ],
)
def test_no_room_to_start(command: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for what is needed at the beginning: that is said in a line."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        f"from stepwell.cli.main import main; sys.exit(main([{command!r}]))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.startswith(f"stepwell: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_names_in_complaints_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """A file's name is not to move the cursor of whoever reads that it was left out."""
    print_error("left out a\x1b[2J\r\nb")
    assert capsys.readouterr().err == "stepwell: left out a?[2J b\n"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(command in told for command in ("serve", "workers", "ask", "status", "doctor", "backup"))
    assert all(command in told for command in ("action", "plan"))


@pytest.mark.parametrize(
    "command, codes",
    [
        ("plan", ("2, asked for wrongly", "3, a conflict", "4, constrained")),
        ("plan apply", ("0, done", "1, refused or failed", "3, a conflict", "4, constrained")),
        ("plan record", ("that of the command", "125", "126", "127")),
        ("action create", ("0, done", "1, refused or failed")),
    ],
)
def test_help_has_exit_codes_and_keys(command: str, codes: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever writes a script finds there what it can rely on."""
    assert main([*command.split(), "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(code in told for code in codes)
    assert " " not in command or "one JSON object, for machines: `" in told


def test_an_unread_result_is_no_traceback() -> None:
    """`stepwell status | true`: nobody reads, and that is nobody's error."""
    with sw.Runtime.start(workers=0) as runtime:
        command = subprocess.Popen(
            [*COMMAND, "status", "--address", runtime.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert command.stdout is not None
        command.stdout.close()
        _, told = command.communicate()
    assert (command.returncode, told) == (141, b"")


@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize(
    "command, code", [("--help", 0), ("--version", 0), ("dance", 2), ("status --address /nowhere", 1)]
)
def test_a_closed_stream_changes_no_exit_code(command: str, code: int, stream: str) -> None:
    """`stepwell COMMAND >&-`: there is nowhere to write to, and no traceback either."""
    words = f'exec "$0" -m stepwell {command} {stream}>&-'
    done = subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_no_address_is_the_default_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of `stepwell.connect()`: a manager that was started without an address is found without one."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert resolve_address(None) == str(tmp_path / "stepwell" / "manager.sock")
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "a.sock"))
    assert resolve_address(None) == str(tmp_path / "a.sock")


def test_a_relative_address_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed has to hold in whatever directory it is pasted."""
    monkeypatch.chdir(tmp_path)
    assert resolve_address("a.sock") == str(tmp_path / "a.sock")

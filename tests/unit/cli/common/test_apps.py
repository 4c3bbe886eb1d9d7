"""The frame of all commands: options of several words, help, and imports that wait until they are needed."""

import json
import subprocess
import sys

import pytest

from stepwell.cli.common.apps import repeat_options
from stepwell.cli.main import main
from tests.support.cli.processes import run

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

OPTIONS = frozenset({"--kinds", "--focus"})
COMMANDS = (
    "assemble", "why", "diff", "eval", "serve", "workers", "ingest", "ask", "action create", "action list", "plan new",
    "plan list", "plan show", "plan subplans", "plan merge", "plan resolve", "plan record", "plan diff", "plan apply",
    "plan queue", "plan rollback", "plan cancel", "plan retry", "plan revert", "status", "doctor", "backup",
    "prove",
    "log append", "log last", "log since", "log follow", "log pop", "log list", "log retain", "log clear", "log delete",
    "pool create", "pool list", "pool resize", "pool delete",
)  # fmt: skip


@pytest.mark.parametrize(
    "words, repeated",
    [
        ("q --kinds code text --json", "q --kinds code --kinds text --json"),
        ("--kinds code text --focus a b", "--kinds code --kinds text --focus a --focus b"),
        ("q --project a b", "q --project a b"),
        ("q --kinds=code text", "q --kinds=code text"),
        ("--kinds code -- q --kinds code text", "--kinds code -- q --kinds code text"),
        ("--kinds", "--kinds"),
        ("", ""),
    ],
)
def test_options_of_several_words(words: str, repeated: str) -> None:
    """Typer reads one word for each option. What belongs to no such option stays as it is."""
    assert repeat_options(words.split(), OPTIONS) == repeated.split()


def imported(*arguments: str) -> set[str]:
    """Return the modules of commands that a call imports."""
    program = (
        "import json, sys; from stepwell.cli.main import main; main(sys.argv[1:]); print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    found = {name.removeprefix("stepwell.cli.") for name in names if name.startswith("stepwell.cli.")}
    return {name for name in found if name.partition(".")[0] not in {"common", "main", "command_line"}}


@pytest.mark.parametrize(
    "arguments, modules",
    [
        (["--help"], set()),
        (["--version"], set()),
        (["dance"], set()),
        (["plan", "--help"], {"plan"}),
        (["log", "--help"], {"log", "log.exit_codes"}),
        (["status", "--help"], {"status"}),
        (["plan", "new", "--help"], {"plan", "plan.new"}),
    ],
)
def test_a_call_imports_no_other_command(arguments: list[str], modules: set[str]) -> None:
    """Importing all of them would take longer than most of them run."""
    assert imported(*arguments) == modules


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The usage, the summary that the list of commands has, and each argument in the words of its declaration."""
    *group, name = command.split()
    assert main([*group, "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.partition("Commands:")[2].split())
    assert main([*command.split(), "--help"]) == 0
    first = capsys.readouterr().out
    assert main([*command.split(), "-h"]) == 0
    assert capsys.readouterr().out == first
    usage, summary, *_ = first.split("\n\n")
    assert usage.startswith(f"Usage: stepwell {command} [OPTIONS]")
    assert f"{name} {' '.join(summary.split()).removesuffix('.')}" in listed
    assert not {"<", "{", "│"} & {*usage}
    assert "<str>" not in first
    assert all(len(line) <= 100 for line in first.splitlines())


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is missing above would not be looked at."""
    names = set()
    for group in ([], ["plan"], ["action"], ["log"], ["pool"]):
        assert main([*group, "--help"]) == 0
        rows = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        names |= {" ".join([*group, row.split()[0]]) for row in rows if row.startswith("  ") and row[2] != " "}
    assert names - {"plan", "action", "log", "pool"} == {*COMMANDS}


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "Missing command. Try `stepwell --help`."),
        (["stauts"], "No such command 'stauts'. Did you mean 'status'? Try `stepwell --help`."),
        (["plan", "shwo"], "No such command 'shwo'. Did you mean 'show'? Try `stepwell plan --help`."),
        (["plan", "show"], "Missing argument 'PLAN'. Try `stepwell plan show --help`."),
        (["status", "--loud"], "No such option: --loud. Try `stepwell status --help`."),
        (["status", "more"], "Got unexpected extra argument(s) (more). Try `stepwell status --help`."),
        (["assemble", "q", "--budget", "[red]"], "Invalid value for '--budget': '[red]' is no whole number. Try"),
        (["ask", "q", "--deadline", "soon"], "Invalid value for '--deadline': 'soon' is no number. Try"),
        (["plan", "list", "--state", "happy"], "'happy' is not one of queued, processing, complete, errored, "),
        (["serve", "--workers", "-1"], "'-1' is not a number from 0 to 256. Try `stepwell serve --help`."),
        (["workers", "--workers", "0"], "'0' is not a number from 1 to 256. Try `stepwell workers --help`."),
        (["workers", "--max-memory", "lots"], "'lots' is no size: give one such as 512M or 2G. Try"),
        (["plan", "new", "a", "--project", "p", "--argument", "x"], "'x' is not NAME=VALUE. Try"),
        (["ingest", ".", "--include-secrets", "--redact-entropy"], "--include-secrets turns redaction off"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_is_wrong_with_the_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the argument, and where to read about it; quoted as it is, brackets included."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert told.out == ""
    assert line.startswith("stepwell: ")
    assert said in line


def test_help_that_is_not_read() -> None:
    """`stepwell --help | true` ends in silence."""
    with subprocess.Popen(
        [sys.executable, "-m", "stepwell", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate()
    assert (process.returncode, told) == (141, b"")


def test_a_defect_has_the_usual_traceback() -> None:
    """Typer would replace the hook, and print its own."""
    program = "import sys; from stepwell.cli.main import main; main(['--version']); print(sys.excepthook.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "sys"


def test_the_same_program() -> None:
    """`python -m stepwell` calls itself stepwell in its help."""
    assert run("plan", "--help").stdout.startswith("Usage: stepwell plan ")

"""The app with all commands, and the handling of errors that they share.

The exit codes are listed in `common.exit_codes`. Expected errors (`StepwellError`, and wrong arguments) become one line
on stderr and an exit code. An unexpected exception is a defect and keeps its traceback. Ctrl-C is handled in `main`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.main import get_command

from stepwell import limits
from stepwell.cli.common.apps import group_app
from stepwell.cli.common.exit_codes import FAILED, MISUSED, OUTPUT_CLOSED
from stepwell.cli.common.output import discard_stdout, print_error, write_result
from stepwell.errors import InvalidArgument, StepwellError

_PROGRAM: Final = "stepwell"
_COMPLETE: Final = "_STEPWELL_COMPLETE"
"""The variable by which a shell asks for completions. Its script, which typer writes, has the name too."""

app: Final = group_app(
    "stepwell.cli",
    {
        "assemble": "Assemble the best context for a question",
        "why": "Explain why a fragment is in an answer, or is not",
        "diff": "Explain the differences between two answers",
        "eval": "Measure how much of the evidence for questions is found",
        "serve": "Run a manager in the foreground",
        "workers": "Add a pool of workers to a running manager",
        "ingest": "Bring a project up to date with the files of a directory",
        "ask": "Ask strategies which fragments answer a question",
        "action": "Create and list the actions that plans are made of",
        "plan": "Create, record, inspect, apply and roll back plans",
        "log": "Append to logs, read and follow them",
        "pool": "Create and list pools of tokens that agents share",
        "status": "Show the state of a running manager",
        "doctor": "Check a data directory without changing it",
        "backup": "Make a consistent copy of a data directory, also while its manager runs",
        "prove": "Record calls of many processes, and judge if one order explains them all",
    },
    about="A multiprocess runtime in which many agents share context, plans and changes.",
    has_completion=True,
)


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the value of the option
    """Print the version and end, if the option was given."""
    if is_wanted:
        write_result(f"{_PROGRAM} {_version()}\n")
        raise typer.Exit


@app.callback()
def _root(
    *, version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Show the version.")] = False
) -> None:
    """Take the options that stand before a command."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code. `KeyboardInterrupt` passes through."""
    if os.environ.get(_COMPLETE):
        return _complete()
    return run_app(app, _PROGRAM, argv)


def run_app(app: typer.Typer, program: str, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments of a program, or of the process, with an app, run what they name and return the exit code.

    An expected error becomes a message and a code: 2 for wrong arguments, 1 for any other `StepwellError`, 141 if the
    reader of stdout is gone, 1 if stdout cannot be written. The flush at the end is inside the `try`, because a full
    disk or a closed pipe often shows up only there.

    `Typer.__call__` is not used, because it replaces `sys.excepthook`, and ends the process in its own way for a closed
    pipe and for Ctrl-C.
    """
    try:
        code = _invoke(app, program, sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except typer.TyperException as error:
        print_error(_usage_text(error, program))
        return MISUSED
    except StepwellError as error:
        print_error(error.message)
        return MISUSED if isinstance(error, InvalidArgument) else FAILED
    except BrokenPipeError:
        discard_stdout()
        return OUTPUT_CLOSED
    except OSError as error:  # stdout is a file on a disk that is full, say
        print_error(f"the result cannot be written: {error.strerror or error}")
        discard_stdout()
        return FAILED
    return code


def _invoke(app: typer.Typer, program: str, argv: Sequence[str]) -> int:
    """Run a command and return its exit code. `--help`, `--version` and the like end by an exception."""
    command = get_command(app)
    try:
        with command.make_context(program, [*argv]) as context:
            code: int = command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except SystemExit as exit_:  # typer's own options about completion
        return exit_.code if isinstance(exit_.code, int) else FAILED
    return code


def _usage_text(error: typer.TyperException, program: str) -> str:
    """Return what is wrong with the arguments, and where to read about them."""
    message = error.format_message().strip()
    end = "" if message.endswith((".", "?")) else "."
    context: object = getattr(error, "ctx", None)
    return f"{message}{end} Try `{getattr(context, 'command_path', program)} --help`."


def _complete() -> int:
    """Print the completions that a shell asks for, and return the exit code. An error completes nothing, in silence."""
    os.environ["COLUMNS"] = str(limits.PIPE_COLUMNS)  # a shell would take a folded line for another completion
    try:
        get_command(app).main([], prog_name=_PROGRAM, complete_var=_COMPLETE, standalone_mode=False)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else FAILED
    except Exception:  # noqa: BLE001 - the user is in the middle of a line
        return FAILED
    return 0


def _version() -> str:
    """Return the version of the installed package. A checkout that is run without being installed has none."""
    from importlib import metadata  # noqa: PLC0415 - takes as long as all other imports, and only `--version` needs it

    try:
        return metadata.version("stepwell")
    except metadata.PackageNotFoundError:
        return "(run from its source, not installed)"

"""The parser of the command line, and the handling of errors that all commands share.

The exit codes are listed in `common.exit_codes`. Expected errors (`StepwellError`) become one line on stderr and an
exit code. An unexpected exception is a defect and keeps its traceback. Ctrl-C is handled in `main`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from stepwell.cli import action, ask, assemble, backup, diff, doctor, ingest, plan, serve, status, why, workers
from stepwell.cli import eval as evaluation
from stepwell.cli.common.exit_codes import FAILED, MISUSED, OUTPUT_CLOSED
from stepwell.cli.common.output import discard_stdout, print_error
from stepwell.cli.common.parser import CommandParser
from stepwell.errors import InvalidArgument, StepwellError


def run(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command that they name and return its exit code. `KeyboardInterrupt` passes
    through.
    """
    return run_guarded(_parser(), argv)


def run_guarded(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments with the given parser, call the `run` function that they lead to, and return the exit code.

    An expected error becomes a message and a code: 2 for an `InvalidArgument`, 1 for any other `StepwellError`, 141 if
    the reader of stdout is gone, 1 if stdout cannot be written. The flush at the end is inside the `try`, because a
    full disk or a closed pipe often shows up only there.
    """
    try:
        arguments = parser.parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as exit_:  # argparse has said why
        return exit_.code if isinstance(exit_.code, int) else FAILED
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


def _parser() -> argparse.ArgumentParser:
    """Return the parser with every command, in the order in which `--help` lists them."""
    parser = CommandParser(
        prog="stepwell", description="A multiprocess runtime in which many agents share context, plans and changes."
    )
    parser.add_argument("--version", action="version", version=f"stepwell {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in {
        "assemble": assemble,
        "why": why,
        "diff": diff,
        "eval": evaluation,
        "serve": serve,
        "workers": workers,
        "ingest": ingest,
        "ask": ask,
        "action": action,
        "plan": plan,
        "status": status,
        "doctor": doctor,
        "backup": backup,
    }.items():
        command_parser = commands.add_parser(name, help=command.SUMMARY, description=f"{command.SUMMARY}.")
        command.add_arguments(command_parser)
        command_parser.set_defaults(run=command.run)
    return parser


def _version() -> str:
    """Return the version of the installed package. A checkout that is run without being installed has none."""
    try:
        return metadata.version("stepwell")
    except metadata.PackageNotFoundError:
        return "(run from its source, not installed)"

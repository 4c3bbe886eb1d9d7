"""The commands, and what they have in common: how they are asked for, how they fail, and how they end.

Exit codes: 0, done; 1, it failed, or `doctor` found problems; 2, it was asked for wrongly; 74, the data directory that
`serve` keeps its state in cannot be written; 130, interrupted; 141, nobody reads the output. `plan` has two more, 3 for
a conflict and 4 for constrained, and `plan record` ends as the command that it runs, or with 125 to 127 if it cannot.
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
from stepwell.errors import InvalidArgument, StepwellError


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code. A Ctrl-C is left to the caller."""
    return run_guarded(_parser(), argv)


def run_guarded(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, call the `run` that they lead to; an expected error becomes a message and a code."""
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
    parser = argparse.ArgumentParser(
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
    try:
        return metadata.version("stepwell")
    except metadata.PackageNotFoundError:
        return "(run from its source, not installed)"

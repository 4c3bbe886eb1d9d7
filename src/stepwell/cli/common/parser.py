"""The parser of all commands: `argparse`, whose messages are escaped on a terminal.

Messages of argparse quote the arguments, which a script may have taken from elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from stepwell.terminal import write

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandParser(argparse.ArgumentParser):
    """A parser of arguments. The parsers of its subcommands are of this class, too."""

    color = False  # Python 3.14 colours messages, and could not tell its colours from those in an argument

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write a message. argparse calls it for help, usage, version and errors."""
        is_result = file is sys.stdout
        with suppress(AttributeError, OSError):  # as argparse does: no stream, or a closed one
            write(sys.stdout if is_result else sys.stderr, message)

"""Options and arguments: how a parameter of a command is declared, and how its text becomes a value.

Every text is converted by a function of our own. A message then says what to give, in the words of this program; and
a path that is not UTF-8 stays what it is, while typer's own conversion refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, NamedTuple

import typer
from typer.models import ArgumentInfo, OptionInfo

Completion = Callable[[typer.Context, str], list[str]]
"""Returns the values that complete a word, for a shell: it takes the parsed context and the beginning of the word."""

JSON_ABOUT: Final = "one JSON object, for machines"


class NameValue(NamedTuple):
    """The parts of NAME=VALUE."""

    name: str
    value: str


def option(
    *names: str,
    metavar: str,
    about: str,
    parse: Callable[[str], object] = str,
    complete: Completion | None = None,
) -> OptionInfo:
    """Return the declaration of an option with a value."""
    found: OptionInfo = typer.Option(
        *names, autocompletion=complete, help=about, metavar=metavar, parser=_converter(parse)
    )
    return found


def flag(name: str, about: str) -> OptionInfo:
    """Return the declaration of an option without a value, which is off unless it is given."""
    found: OptionInfo = typer.Option(name, help=about)
    return found


def argument(
    metavar: str, about: str, *, parse: Callable[[str], object] = str, complete: Completion | None = None
) -> ArgumentInfo:
    """Return the declaration of a positional argument."""
    found: ArgumentInfo = typer.Argument(
        autocompletion=complete, help=about, metavar=metavar, parser=_converter(parse), show_default=False
    )
    return found


def address_option(about: str) -> OptionInfo:
    """Return the option that names a manager. It has two spellings: `--address` as in `serve`, and `--connect`."""
    return option("--connect", "--address", metavar="SOCKET", about=about)


JsonFlag = Annotated[bool, flag("--json", JSON_ABOUT)]


def json_flag(keys: str) -> OptionInfo:
    """Return the declaration of `--json`, with a description of the keys of the object."""
    return flag("--json", f"{JSON_ABOUT}: {keys}")


def choice(*names: str, values: Iterable[str], about: str) -> OptionInfo:
    """Return the declaration of an option with one of a few values, which shells complete."""
    known = {str(value): value for value in values}

    def parse(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}")
        return known[text]

    def complete(_context: typer.Context, incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return option(*names, metavar="|".join(known), about=about, parse=parse, complete=complete)


def whole_number(text: str) -> int:
    """Return the number that a text is."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number") from None


def decimal_number(text: str) -> float:
    """Return the number that a text is, which may have a fraction."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None


def name_value(text: str) -> NameValue:
    """Return the parts of NAME=VALUE. The value may contain further equals signs."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return NameValue(name, value)


def _converter(parse: Callable[[str], object]) -> Callable[[object], object]:
    """Return a function that converts a text, and returns a default as it is: typer passes defaults, too."""

    def convert(value: object) -> object:
        return parse(value) if isinstance(value, str) else value

    return convert

"""The typer apps of the command line: the settings that all of them share, and groups that import a command when it is
called.

Importing all commands takes longer than most of them run. A group therefore knows only the names and the summaries of
its commands: `stepwell --help` imports none of them, and `stepwell status` imports one. Each command is a module with
an `app`; the docstring of its function is the rest of its help.

Help and errors are plain text. Typer would render them with rich, which reads brackets in an argument as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from stepwell.errors import StartFailed

# Typer does not export these types, and an overridden method has to accept them.
_Context: TypeAlias = Any
_HelpFormatter: TypeAlias = Any

_CONTEXT: Final[dict[str, object]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_LIST_OPTIONS: Final = frozenset({"--focus", "--kinds", "--strategies"})


def command_app() -> typer.Typer:
    """Return an app for a module with one command."""
    return typer.Typer(
        add_completion=False,
        context_settings={**_CONTEXT},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def group_app(
    package: str, summaries: Mapping[str, str], *, about: str, epilog: str | None = None, has_completion: bool = False
) -> typer.Typer:
    """Return an app with the commands of a package, in the order in which `--help` lists them.

    The command NAME is the `app` of the module PACKAGE.NAME. `has_completion` adds the options that install the
    completion of a shell; only the outermost app can have them.
    """
    app = typer.Typer(
        add_completion=has_completion,
        cls=LazyGroup,
        context_settings={**_CONTEXT},
        epilog=epilog,
        help=about,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        subcommand_metavar="COMMAND ...",
    )
    for name, summary in summaries.items():
        app.command(name, help=f"{summary}.", short_help=summary)(_loader(f"{package}.{name}"))
    return app


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders, which know the summary of a command and how to load it.

    `--help` and the completion of names use the placeholders as they are.
    """

    def resolve_command(self, ctx: _Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the first word names, loaded, with its summary before the rest of its help."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        if placeholder is None or placeholder.callback is None:
            return name, placeholder, rest
        command = placeholder.callback()
        command.help = "\n\n".join(filter(None, (placeholder.help, command.help)))
        return name, command, rest


def _loader(module: str) -> Callable[[], object]:
    """Return a function that imports a module and returns the command, or the group, that its `app` describes.

    It raises `StartFailed` if the system refuses what the module needs, for instance a temporary directory with room.
    """

    def load() -> object:
        try:
            found = import_module(module)
        except OSError as error:
            raise StartFailed(f"it cannot be started: {error.strerror or error}") from None
        return get_command(found.app)

    return load


class ShellCommand(TyperCommand):
    """A command whose help is in the words of its declaration, and whose options may take several words."""

    def parse_args(self, ctx: _Context, args: list[str]) -> list[str]:
        """Parse the arguments. An option of several words, such as `--strategies keyword graph`, is repeated before
        each of them, because typer reads one word for each option.
        """
        return super().parse_args(ctx, repeat_options(args, _LIST_OPTIONS))

    def collect_usage_pieces(self, ctx: _Context) -> list[str]:
        """Return the words of the usage line. Typer puts a required argument in braces, which manuals use for a
        choice.
        """
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: _Context, formatter: _HelpFormatter) -> None:
        """Write the arguments and the options. Typer adds the Python type of an argument, which tells a user
        nothing.
        """
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and param.param_type_name == "argument":
                sections["Arguments"].append((str(param.metavar or param.name), record[1]))
            elif record is not None:
                sections["Options"].append(record)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def repeat_options(words: Sequence[str], options: Container[str]) -> list[str]:
    """Return the words, with an option of several words repeated before each of them.

    Its words end at the next option. Words behind `--` belong to no option.
    """
    found: list[str] = []
    option, is_first = "", True
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at:]]
        if word.startswith("-"):
            option, is_first = (word if word in options else ""), True
        elif option:
            found += [] if is_first else [option]
            is_first = False
        found.append(word)
    return found

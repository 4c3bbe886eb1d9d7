"""The table of bugs, and the decorator that enters a bug into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

from msgspec import Struct

PutBack = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that puts a bug into the real code, for the length of its block."""


class Bug(Struct, frozen=True):
    """A bug that the simulator has to find."""

    name: str
    description: str
    put_back: PutBack


BUGS: dict[str, Bug] = {}
"""All bugs by name, in the order of their definition."""


def bug(description: str) -> Callable[[PutBack], PutBack]:
    """Enter the decorated function into the table, under its own name with dashes."""

    def enter(put_back: PutBack) -> PutBack:
        name = put_back.__name__.replace("_", "-")
        BUGS[name] = Bug(name, description, put_back)
        return put_back

    return enter


@contextmanager
def patched(*places: tuple[object, str, object]) -> Iterator[None]:
    """Replace attributes of classes or modules, each given by its owner, its name and its new value."""
    with ExitStack() as stack:
        for owner, name, value in places:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def do_nothing(*_: object, **__: object) -> None:
    """Take the place of a function that has an effect and no result."""

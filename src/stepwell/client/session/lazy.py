"""Values that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

T = TypeVar("T")
Owner = TypeVar("Owner")


class lazy_property(Generic[T]):  # noqa: N801 - it is used as a decorator, like `property`
    """`functools.cached_property` without a lock: Python 3.11 has one, for all instances, held while one is made.

    A body may have to be read from a disk, and a child may be forked meanwhile.
    """

    def __init__(self, make: Callable[[Owner], T]) -> None:
        self._make: Callable[..., T] = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = self._make(instance)
        vars(instance)[self._name] = value  # where it is found before this is, from now on
        return value

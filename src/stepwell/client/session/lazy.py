"""`lazy_property`: an attribute that is computed at its first use and stored in the instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

T = TypeVar("T")
Owner = TypeVar("Owner")


class lazy_property(Generic[T]):  # noqa: N801 - it is used as a decorator, like `property`
    """`functools.cached_property` without its lock.

    Python 3.11 holds one lock for all instances while a value is computed. Here a value may be a body that is read from
    a disk, which would stop all other threads; and a child that is forked meanwhile would inherit a lock that is never
    released. Without the lock two threads may compute the same value. That is harmless, because values are immutable.
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
        vars(instance)[self._name] = value  # found before this descriptor, which defines no `__set__`
        return value

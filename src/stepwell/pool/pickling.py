"""Functions, arguments and results as bytes, between a program and the workers that it spawned itself.

Data goes the quick way, as `pickle` knows it. A function or a class that nobody could import, of a notebook, of
`__main__` or from inside another function, is copied, with what it refers to; what `pickle` does not know, `dill` may.

This is the only module that unpickles, and only what came over a socketpair that a child inherited.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Final, TypeVar, cast

import dill

from stepwell.pool import copying
from stepwell.pool.copying import Key

PicklingError = pickle.PicklingError

_Reduced = tuple[Callable[..., object], tuple[object, ...]]

_PROTOCOL: Final = 5
_LOCKS: Final[dict[type, Callable[[], object]]] = {type(make()): make for make in (threading.Lock, threading.RLock)}
_AS_USUAL: Final = cast("_Reduced", NotImplemented)

_copies: Final = copying.Copies[bytes]()


def dumps(value: object) -> bytes:
    """What `loads` makes a copy of. Raises whatever somebody's `__reduce__` raises."""
    try:
        file = io.BytesIO()
        _Pickler(file, _PROTOCOL).dump(value)
    except Exception:  # noqa: BLE001 - what the quick way does not know, dill may
        return pickle.dumps(_Dilled(value), _PROTOCOL)
    return file.getvalue()


def loads(data: bytes | bytearray) -> object:
    """What was given to `dumps`, at the other end."""
    return cast("object", pickle.loads(data))  # noqa: S301 - from a process that is ours


class _Pickler(pickle.Pickler):
    """Copies functions and classes apart from the data, so that a class is copied once however often it is sent."""

    def reducer_override(self, value: object) -> _Reduced:
        if isinstance(value, type) and not copying.can_be_imported(value):
            return _class_from, _copies.get(value, lambda: _dilled(value))
        if isinstance(value, FunctionType) and not copying.can_be_imported(value):
            return _undilled, (_dilled(value),)
        return _AS_USUAL


class _DillPickler(dill.Pickler):
    """By itself, dill does not know a class again, copies no enumeration, and turns `sys.stdout` round meanwhile."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self._globals: dict[int, dict[str, object]] = {}

    def reducer_override(self, value: object) -> object:
        if isinstance(value, type) and not copying.can_be_imported(value):
            return copying.reduced_class(value)
        if isinstance(value, FunctionType) and not copying.can_be_imported(value):
            return copying.reduced_function(value, self._globals.setdefault(id(value.__globals__), {}))
        if isinstance(value, TypeVar) and not copying.can_be_imported(value):
            return copying.reduced_variable(value)
        if isinstance(value, CellType):
            return copying.reduced_cell(value)
        if make := _LOCKS.get(type(value)):
            return make, ()  # nobody would ever release the copy of one that is held
        return NotImplemented


class _Dilled:
    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[object, ...]:
        return _undilled, (_dilled(self._value),)


def _dilled(value: object) -> bytes:
    file = io.BytesIO()
    _DillPickler(file).dump(value)
    return file.getvalue()


def _undilled(data: bytes) -> object:
    return dill.loads(data, ignore=True)  # noqa: S301 - see above


def _class_from(key: Key, data: bytes) -> object:
    return copying.known.get(key) or _undilled(data)

"""Functions, arguments and results as bytes, between a program and the processes that it started itself.

`cloudpickle` sends by reference what the other process can import. It sends by value what the other process cannot:
functions and classes of `__main__`, of a notebook, or from inside another function, with the globals that they name.

A class that travels by value has the same identifier in both processes. So an instance that a worker returns is of
the program's own class, and an exception that a worker raises is caught by its name. `cloudpickle` provides that; the
exceptions to its rules are in `_Pickler` and `_by_value`.

This is the only module of the package that unpickles, and only data that came over a descriptor which a child
inherited from the program that started it.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Mapping
from enum import Enum, EnumType
from types import resolve_bases
from typing import Any, ClassVar, Final, Protocol, TypedDict, cast

import cloudpickle

from stepwell import limits

PicklingError = pickle.PicklingError

_Reduced = tuple[Callable[..., object], tuple[object, ...]]
_Fill = Callable[[type, object], object]
_ClassState = tuple[dict[str, object], dict[str, object]]
_ReducedClass = tuple[Callable[..., type], tuple[object, ...], _ClassState, None, None, _Fill]

_PROTOCOL: Final = 5
_LENGTH_BY_VALUE: Final = 6  # with the function that fills the empty class; by reference there is none
_CACHED: Final = type(functools.cache(len))
_LOCKS: Final[dict[type, Callable[[], object]]] = {type(make()): make for make in (threading.Lock, threading.RLock)}
_MAIN_OF_A_CHILD: Final = "__mp_main__"
_NOT_IMPORTED: Final = frozenset({"__main__", _MAIN_OF_A_CHILD})


class _CacheParameters(TypedDict):
    maxsize: int | None
    typed: bool


class _CachedFunction(Protocol):
    """A function under `functools.cache` or `functools.lru_cache`."""

    __module__: str
    __qualname__: str
    __wrapped__: Callable[..., object]

    def cache_parameters(self) -> _CacheParameters: ...


_complete: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes that need not be filled when they arrive: they were made here, or were filled when they arrived first."""

_kept: deque[type] = deque(maxlen=limits.CLASSES_KNOWN_MAX)
"""The latest copies that were filled. Without it a worker would forget a class, with its attributes, between calls."""


def dumps(value: object) -> bytes:
    """Return bytes from which `loads` makes a copy of the value.

    Raise TypeError or PicklingError for a value that cannot be copied, and what a `__reduce__` of the user's raises.
    """
    if main := sys.modules.get(_MAIN_OF_A_CHILD):  # the `__main__` of a multiprocessing child, unknown elsewhere
        cloudpickle.register_pickle_by_value(main)
    file = io.BytesIO()
    _Pickler(file, _PROTOCOL).dump(value)
    return file.getvalue()


def loads(data: bytes | bytearray) -> object:
    """Return the copy of a value that was given to `dumps`, in this process or in the other one."""
    return cast("object", pickle.loads(data))  # noqa: S301 - from a process that is ours


def _lock(lock: object) -> _Reduced:
    """Copy a lock as a new one, because the copy of a held lock would never be released."""
    return _LOCKS[type(lock)], ()


def _cached_function(function: _CachedFunction) -> _Reduced | str:
    """Copy a function under `functools.cache` with an empty cache, unless the other process can import it."""
    found: object = None if function.__module__ in _NOT_IMPORTED else sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is function:
        return function.__qualname__
    return _cached, (function.__wrapped__, function.cache_parameters())


def _cached(function: Callable[..., object], parameters: _CacheParameters) -> Callable[..., object]:
    return functools.lru_cache(parameters["maxsize"], parameters["typed"])(function)


def _weak_dict(
    given: weakref.WeakKeyDictionary[object, object] | weakref.WeakValueDictionary[object, object],
) -> _Reduced:
    """Copy a dictionary of weak references, such as the one inside of a `functools.singledispatch` function."""
    return type(given), (dict(given),)


def _weak_reference(given: weakref.ReferenceType[object]) -> _Reduced:
    """Copy a weak reference. The copy is dead if the original is, or if nothing else that is sent holds the object."""
    return _referring_to, (given(),)


def _referring_to(value: object) -> weakref.ReferenceType[object]:
    return weakref.ref(set[object]() if value is None else value)


class _Pickler(cloudpickle.Pickler):
    """The pickler of `cloudpickle`, which also copies locks, caches and weak references, and a class only once."""

    dispatch_table: ClassVar = ChainMap[type, Callable[[Any], _Reduced | str]](
        {
            **dict.fromkeys(_LOCKS, _lock),
            _CACHED: _cached_function,
            weakref.WeakKeyDictionary: _weak_dict,
            weakref.WeakValueDictionary: _weak_dict,
            weakref.ReferenceType: _weak_reference,
        },
        cloudpickle.Pickler.dispatch_table,
    )

    def reducer_override(self, obj: object) -> object:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and reduced is not NotImplemented:
            found = cast("tuple[object, ...]", reduced)
            return _by_value(obj, cast("_ReducedClass", found)) if len(found) == _LENGTH_BY_VALUE else found
        return reduced


def _by_value(kind: type, reduced: _ReducedClass) -> tuple[object, ...]:
    """Return how to copy a class, corrected in four points.

    A class is filled only once in a process. `cloudpickle` fills it each time it arrives; for the program's own class,
    which comes back from a worker, that would replace the methods by copies with other globals.

    A copy has the slots of the class, which `cloudpickle` leaves out (a `NamedTuple` makes them itself), and an
    enumeration has its aliases as members and not as plain attributes.

    A copy has the annotations of the class. Since Python 3.14 a class computes them when they are first read, by a
    function that `cloudpickle` leaves out.
    """
    make, given, state, *_, fill = reduced
    _complete.add(kind)
    names = cast("dict[str, object]", given[3])  # what the class has from the beginning; of an enumeration, its members
    if isinstance(kind, EnumType):
        for name, member in cast("type[Enum]", kind).__members__.items():
            names[name] = member.value
            state[0].pop(name, None)
    elif "__slots__" in vars(kind) and resolve_bases(cast("tuple[object, ...]", given[2])) == kind.__bases__:
        names["__slots__"] = vars(kind)["__slots__"]
    if sys.version_info >= (3, 14):
        state[0]["__annotations__"] = _annotations(kind)
    return make, given, (fill, state), None, None, _fill_once


if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def _annotations(kind: type) -> Mapping[str, object]:
        """Return the annotations of a class; as texts, if one of them names what does not exist yet."""
        try:
            return get_annotations(kind)
        except NameError:
            return get_annotations(kind, format=Format.STRING)


def _fill_once(kind: type, filling: tuple[_Fill, _ClassState]) -> None:
    """Fill a new copy of a class with its attributes, and leave a class alone that is complete."""
    if kind in _complete:
        return
    _complete.add(kind)
    _kept.append(kind)
    fill, state = filling
    fill(kind, state)
    if issubclass(kind, Enum) and "__init__" in state[0]:
        for member in kind:  # they were made before the class had its `__init__`
            value: object = member.value
            arguments = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            cast("Callable[..., None]", vars(kind)["__init__"])(member, *arguments)

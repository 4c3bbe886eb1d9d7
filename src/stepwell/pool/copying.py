"""Copies of functions and classes that the other process cannot import, in terms that a pickler understands.

Each is made empty first and filled afterwards, so that functions and classes may name each other and themselves.

A class that was copied is known by a key, on both sides: what a worker returns is an instance of the program's own
class, and what it raises is caught by its name. It is copied once: what is changed of it later is not seen.
"""

from __future__ import annotations

import dis
import importlib
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from enum import Enum, EnumMeta
from itertools import count
from types import CellType, CodeType, FunctionType, ModuleType, new_class, resolve_bases
from typing import Final, Generic, TypedDict, TypeVar, cast, is_typeddict

from stepwell import limits

Key = tuple[str, int]
Reduced = tuple[object, ...]
T = TypeVar("T")

_NOT_IMPORTED: Final = frozenset({None, "__main__", "__mp_main__"})
_NAMES_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"})
_OF_THE_TYPE: Final = frozenset({"__dict__", "__weakref__", "_abc_impl", "__slots__", "__module__"})
_OF_THE_ENUM: Final = frozenset({"__new__", "_generate_next_value_"})
_OF_THE_FUNCTION: Final = ("__defaults__", "__kwdefaults__", "__doc__", "__annotations__", "__qualname__", "__module__")


class _Known:
    """Classes that were copied, here or there."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._token = secrets.token_hex(8)  # classes go down to workers of workers, and come back
        self._numbers = count()
        self._classes: dict[Key, type] = {}
        self._keys: dict[type, Key] = {}
        self.empty: set[type] = set()

    def key(self, kind: type) -> Key:
        with self._guard:
            return self._keys.get(kind) or self.add((self._token, next(self._numbers)), kind)

    def get(self, key: Key) -> type | None:
        return self._classes.get(key)

    def add(self, key: Key, kind: type) -> Key:
        with self._guard:
            self._classes[key] = kind
            self._keys[kind] = key
            if len(self._classes) > limits.CLASSES_KNOWN_MAX:
                self._keys.pop(self._classes.pop(next(iter(self._classes))), None)
        return key

    def made(self, key: Key, make: Callable[[], type]) -> type:
        if key not in self._classes:
            kind = make()
            self.empty.add(kind)
            self.add(key, kind)
        return self._classes[key]


known: Final = _Known()


class Copies(Generic[T]):
    """What was made of a class, for as long as that exists."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[type, tuple[Key, T]] = weakref.WeakKeyDictionary()

    def get(self, kind: type, make: Callable[[], T]) -> tuple[Key, T]:
        key = known.key(kind)
        found = self._made.get(kind)
        if found is None or found[0] != key:
            found = self._made[kind] = (key, make())
        return found


def can_be_imported(value: type | FunctionType | TypeVar) -> bool:
    """Whether the other process finds it under its name."""
    if value.__module__ in _NOT_IMPORTED:
        return False
    found: object = sys.modules.get(value.__module__)
    for name in getattr(value, "__qualname__", value.__name__).split("."):
        found = getattr(found, name, None)
    return found is value or value.__module__ == "builtins"


# Functions.


def reduced_function(function: FunctionType, shared: dict[str, object]) -> Reduced:
    """`shared` stands for the module's globals: functions of one module that travel together share them."""
    names = _names(function.__code__)
    used = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    attributes = {name: getattr(function, name) for name in _OF_THE_FUNCTION}
    state = (used, attributes, vars(function), [*_submodules(used, function.__code__)])
    given = (function.__code__, shared, function.__name__, function.__closure__)
    return _make_function, given, state, None, None, _fill_function


def reduced_cell(cell: CellType) -> Reduced:
    """A variable of an enclosing function, which may not have a value yet."""
    try:
        contents = cell.cell_contents
    except ValueError:
        return CellType, ()
    return CellType, (), (contents,), None, None, _fill_cell


def _make_function(
    code: CodeType, names: dict[str, object], name: str, closure: tuple[CellType, ...] | None
) -> FunctionType:
    return FunctionType(code, names, name, None, closure)


def _fill_function(
    function: FunctionType, state: tuple[dict[str, object], dict[str, object], dict[str, object], list[str]]
) -> None:
    used, attributes, own, submodules = state
    for name in submodules:
        importlib.import_module(name)
    for name, value in attributes.items():
        setattr(function, name, value)
    vars(function).update(own)
    function.__globals__.update(used, __name__=function.__module__)


def _fill_cell(cell: CellType, contents: tuple[object]) -> None:
    (cell.cell_contents,) = contents


_names_of: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def _names(code: CodeType) -> frozenset[str]:
    """The globals that it names; attributes of the same name would drag in whatever is called like them."""
    found = _names_of.get(code)
    if found is None:
        named = {each.argval for each in dis.get_instructions(code) if each.opname in _NAMES_GLOBALS}
        found = _names_of[code] = frozenset(named.union(*map(_names, _inner(code))))
    return found


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _submodules(used: dict[str, object], code: CodeType) -> Iterator[str]:
    """What `import urllib.request` has made of `urllib`: imported by its name alone, it would not have it."""
    words = _words(code)
    for package in used.values():
        if isinstance(package, ModuleType) and hasattr(package, "__path__"):
            prefix = f"{package.__name__}."
            for name in [*sys.modules]:
                if name.startswith(prefix) and words.issuperset(name.removeprefix(prefix).split(".")):
                    yield name


def _words(code: CodeType) -> set[str]:
    return set(code.co_names).union(*map(_words, _inner(code)))


# Classes.


def reduced_class(kind: type) -> Reduced:
    """The class, empty, and what is to be in it."""
    if isinstance(kind, EnumMeta):
        return _reduced_enum(cast("type[Enum]", kind))
    own = vars(kind)
    slots: str | tuple[str, ...] = own.get("__slots__", ())
    left_out = _OF_THE_TYPE.union([slots] if isinstance(slots, str) else slots)
    first = {name: own[name] for name in ("__slots__", "__module__") if name in own}
    state = {name: value for name, value in own.items() if name not in left_out}
    given = (known.key(kind), type(kind), kind.__name__, _bases(kind), first)
    return _make_class, given, state | {"__qualname__": kind.__qualname__}, None, None, _fill_class


def reduced_variable(variable: TypeVar) -> Reduced:
    """A type variable, which a generic class has to have from the beginning."""
    constraints: tuple[object, ...] = variable.__constraints__
    facts = (variable.__bound__, variable.__covariant__, variable.__contravariant__, variable.__module__)
    return _make_variable, (variable.__name__, constraints, *facts)


def _make_variable(name: str, constraints: tuple[object, ...], bound: object, *rest: object) -> object:
    covariant, contravariant, module = rest
    kind = cast("Callable[..., TypeVar]", TypeVar)
    made = kind(name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)
    made.__module__ = cast("str", module)
    return made


def _bases(kind: type) -> tuple[object, ...]:
    """As they were written, where that says more: `Generic[T]`, `TypedDict`."""
    if is_typeddict(kind):
        return (TypedDict,)
    written: tuple[object, ...] = vars(kind).get("__orig_bases__", ())
    return written if resolve_bases(written) == kind.__bases__ else kind.__bases__


def _make_class(key: Key, meta: type, name: str, bases: tuple[object, ...], first: dict[str, object]) -> type:
    return known.made(key, lambda: new_class(name, bases, {"metaclass": meta}, lambda names: names.update(first)))


def _fill_class(kind: type, state: dict[str, object]) -> None:
    if kind in known.empty:
        known.empty.remove(kind)
        for name, value in state.items():
            setattr(kind, name, value)


def _reduced_enum(kind: type[Enum]) -> Reduced:
    members = {name: member.value for name, member in kind.__members__.items()}
    methods: dict[str, object] = {
        name: cast("object", each)
        for name, each in vars(kind).items()
        if isinstance(each, FunctionType | classmethod | staticmethod | property) and name not in _OF_THE_ENUM
    }
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **members}
    given = (known.key(kind), kind.__name__, kind.__bases__, names)
    return _make_enum, given, methods, None, None, _fill_enum


def _make_enum(key: Key, name: str, bases: tuple[type, ...], given: dict[str, object]) -> type:
    def fill(names: dict[str, object]) -> None:
        for each, value in given.items():
            names[each] = value  # noqa: PERF403 - one at a time, or the enumeration does not notice

    return known.made(key, lambda: new_class(name, bases, {}, fill))


def _fill_enum(kind: type[Enum], methods: dict[str, object]) -> None:
    if kind not in known.empty:
        return
    _fill_class(kind, methods)
    for member in kind if "__init__" in methods else ():
        value: object = member.value
        given = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        cast("Callable[..., None]", methods["__init__"])(member, *given)

"""What nobody can import is copied, with what it refers to; and a class comes home as itself."""

import functools
import gc
import sys
import threading
import types
import urllib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle.cloudpickle
import pytest

from stepwell import limits
from stepwell.pool import pickling
from stepwell.pool.pickling import dumps, loads

Sent = Callable[[object], Any]

TRACKED = ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID")
"""The registries in which cloudpickle knows the classes that it has sent or received."""


@functools.cache
def importable() -> int:
    return 1


MAIN = """
import abc, collections, contextlib, dataclasses, enum, functools, typing, urllib, urllib.request

counter = 0
unrelated = (each for each in ())  # cannot be copied, and need not be: an attribute is called like it

def bump():
    global counter
    counter += 1
    return look()

def look():
    return counter

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def fetch():
    return urllib.request.Request("http://x").unrelated if counter > 10 else urllib.request.__name__

def annotated(point: "Point", *, scale: int = 2) -> "Point":
    '''Doubles.'''
    class Inner:
        factor = scale
    return Point(point.x * Inner.factor)
annotated.mark = "marked"

def counting():
    def inner(n):
        return 1 if n < 2 else n * inner(n - 1)
    def unset():
        return later
    if counter > 10:
        later = 1
    return inner, unset

@functools.cache
def cached(n):
    return [n, counter]

def uses_cached(n):
    return cached(n)

@functools.singledispatch
def dispatched(value):
    return "other"

@dispatched.register
def _(value: int):
    return "number"

@contextlib.contextmanager
def opened():
    yield counter

class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    CRIMSON = 1
    @property
    def other(self):
        return Colour.BLUE if self is Colour.RED else Colour.RED
    @classmethod
    def first(cls):
        return cls.RED

class Planet(enum.Enum):
    EARTH = (3, 4)
    def __init__(self, a, b):
        self.area = a * b

class Size(enum.Enum):
    S = 1
    def __init__(self, number):
        self.twice = 2 * number

class Level(enum.IntFlag):
    LOW = enum.auto()
    HIGH = enum.auto()

@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED
    def pair(self):
        return Pair(self, Point(self.x + 1))
    @staticmethod
    def origin():
        return Point(0)
    @functools.cached_property
    def far(self):
        return super().__hash__() is not None

@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int

class OneSlot:
    __slots__ = "only"

Pair = collections.namedtuple("Pair", "a b")

class Named(typing.NamedTuple):
    a: int = 3

class Row(typing.TypedDict):
    a: int

T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    def __init__(self, content: T):
        self.content = content

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

class Square(Shape):
    def area(self):
        return 4

class Oops(Exception):
    pass
"""


@pytest.fixture
def main() -> SimpleNamespace:
    """A program's `__main__`, which nobody can import."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(MAIN, names)  # noqa: S102 - our own text
    return SimpleNamespace(**names)


class Process:
    """The state of pickling in one process: which classes it knows."""

    def __init__(self) -> None:
        self._state = {
            (cloudpickle.cloudpickle, TRACKED[0]): weakref.WeakKeyDictionary[type, str](),
            (cloudpickle.cloudpickle, TRACKED[1]): weakref.WeakValueDictionary[str, type](),
            (pickling, "_complete"): weakref.WeakSet[type](),
            (pickling, "_kept"): deque[type](maxlen=limits.CLASSES_KNOWN_MAX),
        }

    @contextmanager
    def here(self) -> Iterator[None]:
        """Run the block in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for (module, name), value in self._state.items():
                patch.setattr(module, name, value)
            yield


@pytest.fixture
def elsewhere() -> Process:
    """Another process, which knows none of our classes."""
    return Process()


@pytest.fixture
def sent(elsewhere: Process) -> Sent:
    """What another process makes of it, which knows none of our classes."""

    def send(value: object) -> object:
        data = dumps(value)
        with elsewhere.here():
            return loads(data)

    return send


# What is copied.


def test_functions_that_name_each_other(main: SimpleNamespace, sent: Sent) -> None:
    """And themselves, from outside and inside other functions."""
    even = sent(main.even)
    assert (even(10), even(7)) == (True, False)
    assert even is not main.even
    inner, unset = sent(main.counting())
    assert inner(5) == 120
    with pytest.raises(NameError):
        unset()


def test_functions_share_their_globals(main: SimpleNamespace, sent: Sent) -> None:
    """Those that travel together, as they did at home; the originals are left alone."""
    bump = sent(main.bump)
    assert (bump(), bump()) == (1, 2)
    assert main.look() == 0


def test_function_is_copied_entirely(main: SimpleNamespace, sent: Sent) -> None:
    """Name, defaults, annotations, documentation and attributes."""
    copy = sent(main.annotated)
    assert (copy.__name__, copy.__doc__, copy.mark) == ("annotated", "Doubles.", "marked")
    assert copy.__annotations__ == {"point": "Point", "scale": int, "return": "Point"}
    assert copy(main.Point(4)).x == 8
    assert copy(main.Point(4), scale=3).x == 12
    with sent(main.opened)() as counter:
        assert counter == 0


def test_functions_with_a_cache(main: SimpleNamespace, sent: Sent) -> None:
    """The copy has a cache of its own; one that can be imported is not copied."""
    assert main.cached(1) is main.cached(1)
    copy = sent(main.cached)
    assert copy(1) is copy(1)
    assert copy(1) == main.cached(1)
    assert copy.cache_parameters() == {"maxsize": None, "typed": False}
    assert sent(main.uses_cached)(2) == [2, 0]
    assert sent(importable) is importable


def test_function_that_dispatches(main: SimpleNamespace, sent: Sent) -> None:
    """With all its implementations, whether they have been called or not."""
    assert main.dispatched(1) == "number"
    copy = sent(main.dispatched)
    assert (copy(2), copy("x")) == ("number", "other")


def test_submodules_that_a_function_uses_are_imported(main: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import urllib` alone would not have them."""
    data = dumps(main.fetch)
    monkeypatch.delitem(sys.modules, "urllib.request")
    copy: Any = loads(data)
    assert copy.__globals__["urllib"] is urllib
    assert copy() == "urllib.request"
    assert "urllib.request" in sys.modules


def test_classes_of_every_kind(main: SimpleNamespace, sent: Sent) -> None:
    """Data, slots, named tuples, generics, abstract ones; their methods find what they name."""
    point = sent(main.Point(1))
    assert type(point) is not main.Point
    assert type(point).__qualname__ == "Point"
    assert [each.x for each in point.pair()] == [1, 2]
    assert (point.origin().x, point.far, point == type(point)(1)) == (0, True, True)
    assert sent(main.Slotted(5)).x == 5
    assert sent(main.OneSlot).only
    assert not hasattr(sent(main.Slotted(5)), "__dict__")
    assert sent(main.Pair(1, 2)) == (1, 2)
    assert sent(main.Named()).a == 3
    assert sent(main.Row).__annotations__ == sent(main.Named).__annotations__ == {"a": int}
    assert {*sent(main.Point).__annotations__} == {"x", "colour"}
    assert sent(main.Box[int]("x")).content == "x"
    assert sent(main.Square()).area() == 4
    with pytest.raises(TypeError, match="abstract"):
        sent(main.Shape)()


def test_enumerations(main: SimpleNamespace, sent: Sent) -> None:
    """Members, aliases, methods, and what their `__init__` makes of them."""
    red = sent(main.Colour.RED)
    kind = type(red)
    assert (red.name, red.value, kind.CRIMSON is red, kind["BLUE"].other is red) == ("RED", 1, True, True)
    assert kind.first() is kind["CRIMSON"] is red
    assert kind(2).other is red
    assert (sent(main.Planet.EARTH).area, sent(main.Size.S).twice) == (12, 2)
    assert int(sent(main.Level.LOW | main.Level.HIGH)) == 3


def test_what_can_be_imported_is_not_copied(sent: Sent) -> None:
    """It is the same at the other end."""
    for value in (Path, urllib, threading.Thread.start, type(None), types.FunctionType, len, Sent):
        assert sent(value) == value


def test_modules(sent: Sent) -> None:
    """They are imported at the other end, and travel with what else there is."""
    copy = sent([sys, lambda: 3])
    assert (copy[0], copy[1]()) == (sys, 3)


def test_lock_is_a_new_one(sent: Sent) -> None:
    """Nobody would ever release the copy of one that is held."""
    for lock in (threading.Lock(), threading.RLock()):
        with lock:
            copy = sent(lock)
        assert copy.acquire(blocking=False)
        copy.release()


def test_weak_references(main: SimpleNamespace, sent: Sent) -> None:
    """They refer to the copy of what is sent with them, and are dead if nothing else holds it."""
    kept, lost = main.Point(1, 2), main.Point(3, 4)
    copy = sent([kept, weakref.ref(kept), weakref.WeakValueDictionary({1: kept}), weakref.ref(lost)])
    assert copy[1]() is copy[0]
    assert copy[2][1] is copy[0]
    gc.collect()
    assert copy[3]() is None
    del lost
    assert sent(weakref.ref(main.Point(5, 6)))() is None


def test_what_nobody_knows() -> None:
    """Is an error here, before anything is sent."""
    with pytest.raises(TypeError, match="generator"):
        dumps(each for each in [1])


# What comes home.


def test_class_comes_home_as_itself(main: SimpleNamespace, elsewhere: Process) -> None:
    """What a worker returns is an instance of the program's own class, and its error is caught by its name."""
    values = [main.Point(1), main.Colour.BLUE, main.Oops("x"), main.Point(2).pair, main.annotated]
    data = dumps(values)
    methods = {name: vars(main.Point)[name] for name in ("pair", "origin", "far")}
    with elsewhere.here():
        copies: Any = loads(data)
        assert [type(copy) is type(value) for copy, value in zip(copies[:3], values[:3], strict=True)] == [False] * 3
        answer = dumps(copies)
    home: Any = loads(answer)
    point, blue, oops, pair, annotated = home
    assert type(point) is main.Point
    assert blue is main.Colour.BLUE
    assert type(oops) is main.Oops
    assert type(pair()[0]) is main.Point
    assert type(annotated(point)) is main.Point
    assert main.Point.origin() == main.Point(0)
    assert {name: vars(main.Point)[name] for name in methods} == methods, "the class itself is left alone"


def test_class_is_known_when_it_comes_again(main: SimpleNamespace, elsewhere: Process) -> None:
    """A worker has one class, however often it is sent, with what the worker has changed of it."""
    first, second = dumps(main.Point(1)), dumps(main.Point(2))
    with elsewhere.here():
        point: Any = loads(first)
        type(point).origin = "changed"
        other: Any = loads(second)
        assert type(other) is type(point)
        assert other.origin == "changed"
        del point, other
        gc.collect()
        again: Any = loads(first)
        assert again.origin == "changed"


def test_classes_that_are_known_are_bounded(
    main: SimpleNamespace, elsewhere: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten, and would be copied anew."""
    data = [dumps(value) for value in (main.Slotted(1), main.Oops(), main.Pair(1, 2))]
    with elsewhere.here():
        monkeypatch.setattr(pickling, "_kept", deque(maxlen=2))
        forgotten = weakref.ref(type(loads(data[0])))
        known = [weakref.ref(type(loads(each))) for each in data[1:]]
        gc.collect()
        assert forgotten() is None
        assert all(each() is not None for each in known)
        assert type(loads(data[0])).__name__ == "Slotted"


def test_class_of_a_child_of_multiprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `__main__` has another name, under which no other process could import it."""
    module = types.ModuleType("__mp_main__")
    exec("def f():\n    return Point()\nclass Point: ...", vars(module))  # noqa: S102 - our own text
    monkeypatch.setitem(sys.modules, "__mp_main__", module)
    data = [dumps(value) for value in (vars(module)["f"], vars(module)["Point"]())]
    monkeypatch.delitem(sys.modules, "__mp_main__")
    found: list[Any] = [loads(each) for each in data]
    function, point = found
    assert type(function()).__name__ == type(point).__name__ == "Point"

"""The same calls on stores that only read and write: right for one caller, and wrong for two at once."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.errors import StartFailed
from stepwell.prove import dict_server, peers
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    History,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    PlanReadCall,
    PlanStepCall,
    RecordedCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
    TrialHeader,
)
from stepwell.prove.peers import PeerPerformer
from stepwell.prove.verdict import judge
from tests.support.prove.calls import made, saw
from tests.support.prove.simulated import PlainValues

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

BOTH = TransactCall((ReplaceCall("x", None, "1"), StoreCall("y", "2")))
STEPS: list[tuple[AnyCall, AnyOutcome]] = [
    (LogPopCall("l"), saw(None)),
    (LogAppendCall("l", "1"), Accepted()),
    (LogAppendCall("l", "2"), Accepted()),
    (LogPopCall("l"), saw("2")),
    (LogReadCall("l"), saw("1")),
    (StoreCall("a", "1"), Accepted()),
    (ReplaceCall("a", "1", "2"), Accepted()),
    (ReplaceCall("a", "1", "3"), Declined()),
    (GetCall("a"), saw("2")),
    (DeleteCall("a"), Accepted()),
    (DeleteCall("a"), Declined()),
    (BOTH, Accepted()),
    (BOTH, Declined()),
    (SnapshotCall(("x", "y", "a")), saw("1", "2", None)),
    (PlanReadCall("p"), saw("strategize/queued")),
    (PlanStepCall("p", "start_strategize"), Accepted()),
    (PlanStepCall("p", "start_strategize"), Declined()),
    (PlanStepCall("p", "complete_strategize"), Accepted()),
    (PlanStepCall("p", "execute_plan"), Accepted()),
    (PlanReadCall("p"), saw("execute/queued")),
]


def test_one_caller() -> None:
    """Alone, read-compare-write has the outcomes that the calls must have."""
    performer = PeerPerformer(PlainValues(), "me")
    assert performer.perform(tuple(call for call, _ in STEPS)) == [outcome for _, outcome in STEPS]
    other = PeerPerformer(PlainValues(), "other")
    assert other.perform((PlanStepCall("p", "complete_strategize"),)) == [Declined()]


class _Meeting(PlainValues):
    """A store in which two callers have both read before either writes: the race that a busy machine makes."""

    def __init__(self) -> None:
        super().__init__()
        self._barrier = threading.Barrier(2)

    def put(self, values: Mapping[str, str]) -> None:
        self._barrier.wait(60)
        super().put(values)


@pytest.mark.parametrize("call", [ReplaceCall("x", None, "1"), BOTH, PlanStepCall("p", "start_strategize")])
def test_two_callers(call: AnyCall) -> None:
    """Two callers win what one may win, and the judge finds it in what they have recorded."""
    store = _Meeting()
    records: list[RecordedCall] = []

    def run(lane: int) -> None:
        (outcome,) = PeerPerformer(store, str(lane)).perform((call,))
        records.append(made(0, 10, call, outcome, lane))

    threads = [threading.Thread(target=run, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verdict = judge(History(TrialHeader("s", 1, 2, 1, 1.0), tuple(records)))
    assert verdict.result == "illegal"
    assert verdict.counterexample is not None
    assert len(verdict.counterexample.calls) == 2


def test_errors_leave_it_open() -> None:
    """An error of a store may come after its effect."""

    class Broken(PlainValues):
        def put(self, _values: Mapping[str, str]) -> None:
            raise RuntimeError("database is locked")

    assert PeerPerformer(Broken(), "me").perform((StoreCall("a", "1"),)) == [NoAnswer()]


def test_dict(tmp_path: Path) -> None:
    """The dict of a real server, from two connections."""
    with peers.serve_peer(peers.DICT, tmp_path) as address:
        with peers.open_peer(peers.DICT, address) as one, peers.open_peer(peers.DICT, address) as other:
            assert one.perform((StoreCall("a", "1"),)) == [Accepted()]
            assert other.perform((GetCall("a"), DeleteCall("a"), GetCall("a"))) == [saw("1"), Accepted(), saw(None)]


def test_dict_that_does_not_start(tmp_path: Path) -> None:
    """A directory in which no socket can be made is an error, and no server is left."""
    with pytest.raises(StartFailed), dict_server.served(tmp_path / "missing"):
        pytest.fail("it has started")


@pytest.fixture
def langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with LangGraph's surface, so that the tests need no LangGraph."""
    databases: dict[str, dict[str, dict[str, str]]] = {}

    class PutOp:
        def __init__(self, namespace: tuple[str, ...], key: str, value: dict[str, str]) -> None:
            assert namespace
            self.key, self.value = key, value

    class SqliteStore:
        def __init__(self, path: str) -> None:
            self._rows = databases.setdefault(path, {})

        @classmethod
        @contextmanager
        def from_conn_string(cls, path: str) -> Iterator[SqliteStore]:
            yield cls(path)

        def setup(self) -> None:
            """Nothing to create."""

        def get(self, _namespace: tuple[str, ...], key: str) -> types.SimpleNamespace | None:
            return types.SimpleNamespace(value=self._rows[key]) if key in self._rows else None

        def batch(self, ops: list[PutOp]) -> None:
            self._rows.update({op.key: op.value for op in ops})

        def delete(self, _namespace: tuple[str, ...], key: str) -> None:
            self._rows.pop(key, None)

    modules: dict[str, dict[str, object]] = {
        "langgraph": {},
        "langgraph.store": {},
        "langgraph.store.base": {"PutOp": PutOp},
        "langgraph.store.sqlite": {"SqliteStore": SqliteStore, "__spec__": object()},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("langgraph")
def test_sqlite(tmp_path: Path) -> None:
    """LangGraph's store, through its own calls."""
    assert peers.is_installed(peers.SQLITE)
    assert peers.round_ms_of(peers.SQLITE) > peers.round_ms_of(peers.DICT)
    with peers.serve_peer(peers.SQLITE, tmp_path) as address, peers.open_peer(peers.SQLITE, address) as performer:
        assert performer.perform(tuple(call for call, _ in STEPS)) == [outcome for _, outcome in STEPS]


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is missing, in whole or in part, is no error."""
    assert peers.is_installed(peers.DICT)
    monkeypatch.setattr(peers, "_SQLITE_MODULE", "no_such_package.store.sqlite")
    assert not peers.is_installed(peers.SQLITE)
    monkeypatch.setattr(peers, "_SQLITE_MODULE", "no_such_package")
    assert not peers.is_installed(peers.SQLITE)

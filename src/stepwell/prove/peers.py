"""The same workload on what programs use without a manager: a shared dict, and a store in SQLite.

Neither has a compare-and-set, a transaction or plans. A program that needs them reads, compares and writes, and that is
done here: the calls and their meaning stay the same, and the judge shows what other processes do in between. Each peer
writes several keys with the one call that it has for that. Watches are left out, because neither has them.
"""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, assert_never, cast

import msgspec

from stepwell import limits
from stepwell.prove import dict_server
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    Observed,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.models import PLAN_START, PLAN_STEPS
from stepwell.prove.workload import Request

DICT: Final = "SyncManager dict"
SQLITE: Final = "LangGraph SqliteStore"

_SQLITE_MODULE: Final = "langgraph.store.sqlite"
_NAMESPACE: Final = ("prove",)


class KeyValues(Protocol):
    """A store with values by key, which several processes share."""

    def get(self, key: str) -> str | None:
        """Return a value; None if there is none."""
        ...

    def put(self, values: Mapping[str, str]) -> None:
        """Store values with one call."""
        ...

    def delete(self, key: str) -> None:
        """Delete a value that may be there."""
        ...


class PeerPerformer:
    """Makes the calls of a workload on a store that has none of them but reads and writes. One thread uses it."""

    def __init__(self, store: KeyValues, holder: str) -> None:
        self._store = store
        self._holder = holder

    def perform(self, request: Request) -> list[AnyOutcome]:
        """Make the calls of a request one after the other. An error of the store leaves an outcome unknown."""
        outcomes: list[AnyOutcome] = []
        for call in request:
            try:
                outcomes.append(self._outcome(call))
            except Exception:  # noqa: BLE001 - whatever a peer raises, such as "database is locked"
                outcomes.append(NoAnswer())
        return outcomes

    def _outcome(self, call: AnyCall) -> AnyOutcome:
        match call:
            case StoreCall():
                self._store.put({call.key: call.value})
                return Accepted()
            case ReplaceCall():
                return self._write_if_expected((call,))
            case TransactCall():
                return self._write_if_expected(call.writes)
            case GetCall():
                return Observed((self._store.get(call.key),))
            case SnapshotCall():
                return Observed(tuple(self._store.get(key) for key in call.keys))
            case DeleteCall():
                if self._store.get(call.key) is None:
                    return Declined()
                self._store.delete(call.key)
                return Accepted()
            case PlanReadCall():
                return Observed((self._plan(call.plan)[0],))
            case PlanStepCall():
                return self._plan_step(call)
            case LogAppendCall():
                self._store.put({f"log {call.log}": msgspec.json.encode([*self._log(call.log), call.value]).decode()})
                return Accepted()
            case LogPopCall():
                values = self._log(call.log)
                self._store.put({f"log {call.log}": msgspec.json.encode(values[:-1]).decode()})
                return Observed((values[-1] if values else None,))
            case LogReadCall():
                return Observed(tuple(self._log(call.log)))
            case _:
                assert_never(call)

    def _write_if_expected(self, writes: tuple[StoreCall | ReplaceCall, ...]) -> AnyOutcome:
        """Compare, and then write."""
        if any(isinstance(each, ReplaceCall) and self._store.get(each.key) != each.expected for each in writes):
            return Declined()
        self._store.put({each.key: each.value for each in writes})
        return Accepted()

    def _log(self, log: str) -> list[str]:
        """Return the values of a log, which is one value of the store."""
        return msgspec.json.decode(self._store.get(f"log {log}") or "[]", type=list[str])

    def _plan(self, plan: str) -> tuple[str, str]:
        """Return the position of a plan, and who holds it."""
        position, _, holder = (self._store.get(f"plan {plan}") or PLAN_START).partition(" ")
        return position, holder

    def _plan_step(self, call: PlanStepCall) -> AnyOutcome:
        """Look where the plan is, and then move it."""
        position, holder = self._plan(call.plan)
        target = PLAN_STEPS[call.step].get(position)
        if target is None or (call.step.startswith("complete") and holder != self._holder):
            return Declined()
        held = f" {self._holder}" if call.step.startswith("start") else ""
        self._store.put({f"plan {call.plan}": target + held})
        return Accepted()


class _SharedDict:
    """A dict that lives in a server process of `multiprocess`."""

    def __init__(self, shared: dict_server.DictProxy) -> None:
        self._shared = shared

    def get(self, key: str) -> str | None:
        return self._shared.get(key)

    def put(self, values: Mapping[str, str]) -> None:
        self._shared.update(values)

    def delete(self, key: str) -> None:
        self._shared.pop(key, None)


class _SqliteStore:
    """A store of LangGraph, each thread with a connection of its own to the same file.

    LangGraph ships types that need LangChain; so the store is used here without them.
    """

    def __init__(self, store: Any, put: Callable[..., object]) -> None:  # noqa: ANN401 - see the class
        self._store = store
        self._put = put

    def get(self, key: str) -> str | None:
        found = self._store.get(_NAMESPACE, key)
        return None if found is None else cast("str", found.value["value"])

    def put(self, values: Mapping[str, str]) -> None:
        self._store.batch([self._put(_NAMESPACE, key, {"value": value}) for key, value in values.items()])

    def delete(self, key: str) -> None:
        self._store.delete(_NAMESPACE, key)


def round_ms_of(subject: str) -> int:
    """Return the length of a round. Processes wait for each other's locks in SQLite, and would rarely meet in a short
    one.
    """
    return limits.PROVE_SQLITE_ROUND_MS if subject == SQLITE else limits.PROVE_ROUND_MS


def is_installed(peer: str) -> bool:
    """Return True if a peer can be used here."""
    if peer != SQLITE:
        return True
    try:
        return importlib.util.find_spec(_SQLITE_MODULE) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def serve_peer(peer: str, directory: Path) -> AbstractContextManager[str]:
    """Return a block in which a peer can be used from other processes, at the address that it yields."""
    return dict_server.served(directory) if peer == DICT else _prepared(directory)


@contextmanager
def _prepared(directory: Path) -> Generator[str]:
    """Yield the path of a new database with the tables of a store."""
    path = str(directory / "store.sqlite")
    with _opened_sqlite(path):
        yield path


@contextmanager
def open_peer(peer: str, address: str) -> Generator[PeerPerformer]:
    """Yield what makes calls on a peer, for one thread."""
    holder = secrets.token_hex(4)
    if peer == DICT:
        yield PeerPerformer(_SharedDict(dict_server.connected(address)), holder)
    else:
        with _opened_sqlite(address) as store:
            yield PeerPerformer(store, holder)


@contextmanager
def _opened_sqlite(path: str) -> Generator[KeyValues]:
    """Yield a store with a connection of its own."""
    module = importlib.import_module(_SQLITE_MODULE)
    put = importlib.import_module("langgraph.store.base").PutOp
    with module.SqliteStore.from_conn_string(path) as store:
        store.setup()
        yield _SqliteStore(store, put)

"""An actor of Ray and one of Dask: each a store in a process that its framework looks after.

A framework is started by a process of its own, which is the leader of all that the framework starts: what it does not
end itself is killed with its leader's group.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contenders.base import Item, Place
from benchmarks.contenders.managers import LockedStore, Proxied
from benchmarks.section import CannotRun

_START_SECONDS_MAX = 60.0
_END_SECONDS_MAX = 20.0
_NAME = "store"
_spawn = get_context("spawn")

Serve = Callable[[Path], AbstractContextManager[object]]
"""Starts a framework with an actor, and yields the address of both for clients."""


@contextmanager
def _led(package: str, serve: Serve, directory: Path) -> Generator[Place]:
    """Run a framework in a process group of its own for the duration of the block."""
    if find_spec(package) is None:
        raise CannotRun(f"{package} is not installed: pip install {package}")
    ours, theirs = _spawn.Pipe()
    leader = _spawn.Process(target=_lead, args=(serve, directory, theirs))
    leader.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS_MAX):
            raise CannotRun(f"{package} did not start within {_START_SECONDS_MAX:g} s")
        try:
            said = ours.recv()
        except EOFError as error:
            raise CannotRun(f"{package} died while it started") from error
        if isinstance(said, CannotRun):
            raise said
        yield Place(said)
    finally:
        ours.close()
        leader.join(_END_SECONDS_MAX)
        assert leader.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.kill()  # the process may have ended before it had a group
        leader.join()


def _lead(serve: Serve, directory: Path, owner: Connection) -> None:
    """Serve until the parent process closes the pipe or ends."""
    os.setsid()
    with (directory / "log").open("wb") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    with ExitStack() as stack:
        try:
            where = stack.enter_context(serve(directory))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
            owner.send(CannotRun(f"{type(error).__name__}: {error}"))
            return
        owner.send(where)
        with suppress(EOFError):
            owner.recv()


class _RayAddress(NamedTuple):
    address: str
    token: str


@contextmanager
def start_ray(directory: Path) -> Generator[Place]:
    with _led("ray", _serve_ray, _own(directory, "ray")) as place:
        yield place


def _own(directory: Path, name: str) -> Path:
    own = directory / name
    own.mkdir()
    return own


@contextmanager
def _serve_ray(directory: Path) -> Generator[_RayAddress]:
    token = secrets.token_hex(32)
    ray = _import_ray(token)
    context = ray.init(
        address="local",
        namespace=_NAME,
        num_cpus=1,
        object_store_memory=128 * 1024 * 1024,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(directory),
        _node_ip_address="127.0.0.1",
    )
    try:
        store = ray.remote(num_cpus=0)(LockedStore).options(name=_NAME).remote()
        ray.get(store.clear.remote())
        yield _RayAddress(context.address_info["gcs_address"], token)
    finally:
        ray.shutdown()


def _import_ray(token: str) -> Any:  # noqa: ANN401 - it is not installed everywhere, and neither are its types
    """Import Ray with a token of its own, because Ray would otherwise write one to the user's home directory."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token, RAY_USAGE_STATS_ENABLED="0")
    return import_module("ray")


class RayActor:
    """A Ray actor: each operation is one method call and one `ray.get`."""

    def __init__(self, ray: Any, actor: Any) -> None:  # noqa: ANN401 - see `_import_ray`
        self._fetch = ray.get
        self._actor = actor

    def put(self, key: str, body: bytes) -> None:
        self._fetch(self._actor.put.remote(key, body))

    def get(self, key: str) -> bytes:
        body: bytes = self._fetch(self._actor.get.remote(key))
        return body

    def put_many(self, items: Sequence[Item]) -> None:
        self._fetch(self._actor.put_many.remote(items))

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        bodies: list[bytes] = self._fetch(self._actor.get_many.remote(keys))
        return bodies

    def clear(self) -> None:
        self._fetch(self._actor.clear.remote())


@contextmanager
def connect_ray(where: object) -> Generator[Proxied]:
    assert isinstance(where, _RayAddress)
    ray = _import_ray(where.token)
    ray.init(address=where.address, namespace=_NAME, log_to_driver=False, logging_level="ERROR")
    try:
        yield Proxied(RayActor(ray, ray.get_actor(_NAME)))
    finally:
        ray.shutdown()


@contextmanager
def start_dask(directory: Path) -> Generator[Place]:
    with _led("distributed", _serve_dask, _own(directory, "dask")) as place:
        yield place


@contextmanager
def _serve_dask(directory: Path) -> Generator[str]:
    os.environ["DASK_TEMPORARY_DIRECTORY"] = str(directory)
    distributed = _import_dask()
    options = {"n_workers": 1, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        store = client.submit(LockedStore, actor=True)
        store.result()
        distributed.Variable(_NAME, client=client).set(store)
        yield cluster.scheduler_address


def _import_dask() -> Any:  # noqa: ANN401 - see `_import_ray`
    """Import Dask with its self-monitoring turned off, because that would disturb the timing of other contenders."""
    os.environ.update(
        DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL="10s",
        DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL="60s",
        DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="False",
    )
    return import_module("distributed")


class DaskActor:
    """A Dask actor: each operation is one method call and its `result()`."""

    def __init__(self, actor: Any) -> None:  # noqa: ANN401 - see `_import_ray`
        self._actor = actor

    def put(self, key: str, body: bytes) -> None:
        self._actor.put(key, body).result()

    def get(self, key: str) -> bytes:
        body: bytes = self._actor.get(key).result()
        return body

    def put_many(self, items: Sequence[Item]) -> None:
        self._actor.put_many(items).result()

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        bodies: list[bytes] = self._actor.get_many(keys).result()
        return bodies

    def clear(self) -> None:
        self._actor.clear().result()


@contextmanager
def connect_dask(where: object) -> Generator[Proxied]:
    distributed = _import_dask()
    with distributed.Client(where) as client:
        yield Proxied(DaskActor(distributed.Variable(_NAME, client=client).get().result()))

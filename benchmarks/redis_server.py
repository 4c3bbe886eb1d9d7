"""A Redis of our own, at a Unix socket, for as long as it is measured."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.section import CannotRun

if TYPE_CHECKING:
    from redis import Redis

_START_SECONDS_MAX: Final = 10.0


@contextmanager
def running(directory: Path, *options: str) -> Generator[tuple[str, int]]:
    """Yield the address and the process id of a server that writes to the directory only what the options say."""
    for package in ("redis", "hiredis"):
        if find_spec(package) is None:
            raise CannotRun(f"{package} is not installed: pip install 'redis[hiredis]'")
    server = shutil.which("redis-server")
    if server is None:
        raise CannotRun("there is no redis-server: apt-get install redis-server")
    address = str(directory / "redis")
    given = ["--port", "0", "--unixsocket", address, "--save", "", "--dir", str(directory), *options]
    process = subprocess.Popen([server, *given], stdout=subprocess.DEVNULL)
    try:
        _await(process, address)
        yield address, process.pid
    finally:
        process.kill()
        process.wait()


def connected(address: str) -> Redis:
    """Return a client as a context manager."""
    import redis  # noqa: PLC0415 - only where there is one

    return redis.Redis(unix_socket_path=address)


def _await(process: subprocess.Popen[bytes], address: str) -> None:
    import redis  # noqa: PLC0415 - only where there is one

    until = time.monotonic() + _START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < until:
        try:
            with connected(address) as connection:
                connection.ping()
                return
        except redis.ConnectionError:
            time.sleep(0.01)
    raise CannotRun(f"redis-server did not answer within {_START_SECONDS_MAX:g} s (exit code: {process.poll()})")

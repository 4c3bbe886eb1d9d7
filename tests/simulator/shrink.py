"""Shrinking: from a run that fails to a smaller one that fails too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.simulator.run import Result, run
from tests.simulator.settings import LimitSize, RunSettings

REGRESSIONS = Path(__file__).with_name("regressions")


def shrunk(settings: RunSettings) -> tuple[RunSettings, Result]:
    """Return the smallest settings that still fail, as far as single steps lead there, and their result."""
    result = run(settings)
    assert result.violation is not None, "only a run that fails is shrunk"
    while True:
        for smaller in _smaller(settings):
            found = run(smaller)
            if found.violation is not None:
                settings, result = smaller, found
                break
        else:
            return settings, result


def _smaller(settings: RunSettings) -> Iterator[RunSettings]:
    """Yield settings with less of one thing: workloads, faults, clients, operations, or another kind of disorder."""
    for each in settings.workloads if len(settings.workloads) > 1 else ():
        yield replace(settings, workloads=tuple(name for name in settings.workloads if name != each))
    for kind in settings.faults:
        yield replace(settings, faults=tuple(other for other in settings.faults if other is not kind))
    for count in range(1, settings.fault_count):
        yield replace(settings, fault_count=count)
    if settings.clients > 1:
        yield replace(settings, clients=settings.clients - 1)
    if settings.operations > 1:
        yield replace(settings, operations=settings.operations // 2)
    for simpler in (
        {"actors": (1, 1)},
        {"limits": LimitSize.REAL},
        {"eagerness": 1.0},
        {"partial": 0.0},
        {"overlap": 0.0},
        {"busy_faults": 0.0},
    ):
        if (smaller := replace(settings, **simpler)) != settings:
            yield smaller


def write_regression(settings: RunSettings, name: str) -> Path:
    """Write the settings of a run that failed, so that it is run from now on."""
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings)) + b"\n")
    return path


def regressions() -> dict[str, RunSettings]:
    """Return the runs that failed once, by name."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=RunSettings)
        for path in sorted(REGRESSIONS.glob("*.json"))
    }

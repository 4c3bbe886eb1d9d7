"""A slice of the benchmark, so that it cannot rot. It times nothing that a test could fail on."""

import pytest

from benchmarks import assembly, bodies, durable, recovery, small, tasks
from benchmarks.contenders import contenders


def test_everybody_takes_part_with_small_bodies() -> None:
    """Each contender puts and gets in each round, and has a ratio to the standard library's."""
    with contenders() as peers:
        rates = small.measure(peers, rounds=2, operations=10)
        base = peers[0].name
    assert all(len(values) == 2 and min(values) > 0 for works in rates.values() for values in works.values())
    assert small.ratios(rates, base)[base, "put"] == 1.0
    assert small.ratios(rates, base).keys() >= small.WANTED.keys()


def test_everybody_reads_the_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender's readers read in each round; who is absent says why."""
    monkeypatch.setattr(bodies, "READERS", 1)
    seconds, absent = bodies.measure(rounds=1, reads=2)
    assert all(len(values) == 1 and values[0] > 0 for values in seconds.values())
    assert all(absent.values())
    named = {name for pair in bodies.WANTED for name in pair}
    assert named <= seconds.keys() | absent.keys()


def test_everybody_writes_durably(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender's writers write in each round; who is absent says why."""
    monkeypatch.setattr(durable, "CLIENTS", 1)
    rates, absent = durable.measure(rounds=1, seconds=0.01)
    assert all(len(values) == 1 and values[0] > 0 for values in rates.values())
    assert all(absent.values())
    named = {name for pair in durable.WANTED for name in pair}
    assert named <= rates.keys() | absent.keys()


def test_every_directory_is_opened() -> None:
    """Those with something in them are larger than the empty one."""
    empty, *others = recovery.measure(rounds=1, fragments=50, events=20)
    assert [each.name for each in others] == ["50 fragments", "10 events", "20 events"]
    assert all(each.seconds > 0 and each.mebibytes >= empty.mebibytes > 0 for each in others)


def test_everybody_does_the_tasks() -> None:
    """Each contender does both kinds in each round; who is absent says why."""
    seconds, absent = tasks.measure(rounds=1, long=2, short=4)
    assert all(len(values) == 1 and values[0] > 0 for works in seconds.values() for values in works.values())
    assert all(absent.values())
    assert {peer for _, peer in tasks.WANTED} <= seconds.keys() | absent.keys()


def test_everybody_answers_questions() -> None:
    """Each one first, warm, and after fragments were added."""
    seconds = assembly.measure(rounds=1, fragments=300)
    assert {phase: len(values) for phase, values in seconds["bm25s"].items()} == {"first": 1, "warm": 20, "added": 1}
    assert all(min(values) > 0 for phases in seconds.values() for values in phases.values())
    assert len(seconds) == 4

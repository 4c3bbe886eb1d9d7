"""A slice of the benchmark, so that it cannot rot. It times nothing that a test could fail on."""

import pytest

from benchmarks import anatomy, assembly, bodies, chart, durable, lifecycles, pressure, recovery, scale, small, tasks
from benchmarks.contenders import managers, stepwell_client
from benchmarks.contenders.base import Contender
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.section import Figures, Goal, Section, in_rounds


def test_everybody_takes_part_with_small_bodies() -> None:
    """Each contender is in the tables with every round, or absent for a reason; one that fails stops nobody else."""
    broken = Contender(name="broken", start=stepwell_client.start_nothing, connect=managers.connect_dict)
    scale = small.Scale(few=2, crowd=3, batch=2, large_batch=3)
    sections = small.run(rounds=1, seconds=0.002, scale=scale, contenders=[broken, *CONTENDERS])
    rates, *_, cpu = sections
    absent = rates.absent
    assert "TypeError" in absent["broken"]
    assert all(absent.values())
    assert {each.contender for each in rates.figures} == {each.name for each in CONTENDERS} - absent.keys()
    assert {"stepwell", "SyncManager dict", "BaseManager class", "RLock in one process", "pipe ping-pong"}.isdisjoint(
        absent
    )
    assert {"stepwell", "SyncManager dict"} <= {each.contender for each in cpu.figures}
    for section in sections:
        assert all(len(each.values) == 1 and min(each.values) > 0 for each in section.figures)
        for goal in section.goals:
            assert section.reached(goal) is not None or {goal.contender, goal.peer} & absent.keys(), goal


def test_every_step_of_a_command() -> None:
    """Of each kind of command, many at a time and one."""
    (section,) = anatomy.run(rounds=2, frames=2)
    _check(section, rounds=2)
    assert len(section.figures) == len(anatomy.WORKS) * 2 * 3


def test_everybody_reads_large_bodies() -> None:
    """Each contender writes, and its readers read, in each round; who is absent says why."""
    (section,) = bodies.run(rounds=1, reads=2, sizes=bodies.SIZES[:2], readers=1)
    _check(section, rounds=1)
    assert {each.work for each in section.figures} == {
        *("64 KiB, written once", "64 KiB, read by 1", "1,024 KiB, written once", "1,024 KiB, read by 1")
    }
    assert {name for goal in section.goals for name in (goal.contender, goal.peer)} <= _named(section)


def test_every_store_demotes() -> None:
    """With however many fragments: there are as many after it, and the difference has a row."""
    latencies, cpu, memory = pressure.run(rounds=1, entries=(100, 300, 1_000), stores=20, batches=3)
    for section in (latencies, cpu, memory):
        assert all(len(each.values) == 1 for each in section.figures)
        assert {goal.contender for goal in section.goals} <= _named(section)
    assert [len(section.figures) for section in (latencies, cpu, memory)] == [3, 7, 3]
    assert all(each.median > 0 for each in latencies.figures)


def test_everybody_writes_durably() -> None:
    """Each contender's writers write in each round, at both levels; who is absent says why."""
    sections = durable.run(rounds=1, seconds=0.01, clients=(1, 2))
    for section in sections:
        _check(section, rounds=1)
        assert {each.work for each in section.figures} == {"1 client", "2 clients"}
    assert {goal.peer for goal in sections[0].goals} <= _named(sections[0]) | {"SQLite, a commit each, 1 client"}


def test_everybody_does_the_tasks() -> None:
    """Each contender does both kinds in each round; who is absent says why."""
    (section,) = tasks.run(rounds=1, long=2, short=4)
    _check(section, rounds=1)
    assert {goal.peer for goal in section.goals if goal.peer} <= _named(section)


def test_everybody_answers_questions() -> None:
    """Each one first, then others, and after fragments were added and changed."""
    milliseconds, shares = assembly.run(rounds=1, sizes=(300,), questions=2)
    for section, works in ((milliseconds, 4), (shares, 2)):
        _check(section, rounds=1)
        assert len(section.figures) == 4 * works
        assert all(section.reached(goal) is not None for goal in section.goals)


def test_everybody_lives_and_records() -> None:
    """Plans come to their end, and records go where they belong, in memory, on disk and with the peer."""
    for section in lifecycles.run(rounds=1, lifecycles=4, records=10, clients=2):
        _check(section, rounds=1)
        assert len(section.figures) == 3
        assert not section.absent


def test_many_fragments_are_stored_and_viewed() -> None:
    """With both budgets, all steps take time in the client, and the manager's memory grows."""
    seconds, client, manager, memory = scale.run(rounds=1, fragments=2_000)
    for section in (seconds, client, manager, memory):
        assert all(len(each.values) == 1 for each in section.figures)
        assert all(section.reached(goal) is not None for goal in section.goals)
    assert [len(section.figures) for section in (seconds, client, manager, memory)] == [13, 12, 12, 4]
    assert all(each.median > 0 for section in (seconds, client, memory) for each in section.figures)


def test_every_directory_is_opened() -> None:
    """Those with something in them are larger than the empty one."""
    seconds, mebibytes = recovery.run(rounds=1, fragments=50, events=20)
    for section in (seconds, mebibytes):
        _check(section, rounds=1)
        names = [each.contender for each in section.figures]
        assert names == [f"stepwell, {what}" for what in ("empty", "50 fragments", "10 events", "20 events")]
        assert all(section.reached(goal) is not None for goal in section.goals)
    empty, *others = mebibytes.figures
    assert all(each.median >= empty.median for each in others)


def test_who_fails_is_out_and_says_why() -> None:
    """A peer that fails has no figures, not even those before, and costs nobody else theirs; ours is not forgiven."""
    tries = iter((1.0, 1.0))
    turns = {("work", "peer"): lambda: next(tries), ("work", "stepwell"): lambda: 2.0}
    figures, absent = in_rounds(2, turns)
    assert figures == (Figures("work", "stepwell", (2.0, 2.0)),)
    assert "StopIteration" in absent["peer"]
    with pytest.raises(ZeroDivisionError):
        in_rounds(1, {("work", "stepwell"): lambda: 1 / 0})


def test_goals_and_chart() -> None:
    """What is behind is said; the chart has a bar for each figure, and is the same for the same figures."""
    figures = (Figures("put", "stepwell", (200.0, 100.0, 300.0)), Figures("put", "<peer>", (100.0,)))
    goals = (Goal("put", "stepwell", "at least", 3.0, "<peer>"), Goal("put", "stepwell", "at least", 1.0, "absent"))
    section = Section(title="t", unit="/s", figures=figures, goals=goals, absent={"absent": "why"})
    assert [*section.behind()] == ["stepwell, put: 2 of <peer>, at least 3 is wanted"]
    misnamed = Section(title="t", unit="/s", figures=figures, goals=(Goal("putt", "stepwell", "at least", 1.0),))
    assert [*misnamed.behind()] == ["stepwell, putt: it was not measured"]
    panels = [chart.Panel("One at a time", {"store": "put"})]
    svg = chart.drawn("Title", panels, [section])
    assert svg == chart.drawn("Title", panels, [section])
    assert all(f">{text}</text>" in svg for text in ("stepwell", "&lt;peer&gt;", "200", "100", "Absent: absent"))
    with pytest.raises(ValueError, match="nothing to draw"):
        chart.drawn("Title", panels, [])


def _check(section: Section, rounds: int) -> None:
    """Everybody has a value for each round, and whoever has none a reason."""
    assert section.figures
    assert all(len(each.values) == rounds and min(each.values) > 0 for each in section.figures)
    assert all(section.absent.values())


def _named(section: Section) -> set[str]:
    return {each.contender for each in section.figures} | section.absent.keys()

"""The feed: the latest steps, whole, in order, and bounded; what it has forgotten it says, or finds in the store."""

from collections.abc import Iterable, Sequence

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.commands import Command, Write
from stepwell.domain.event_builder import ProjectsOf, events_of
from stepwell.domain.events import AnyEvent, FragmentStored
from stepwell.domain.machine import Outcome
from stepwell.domain.plans.commands import CancelPlan, CreateAction, ForgetPlans, UseAction
from stepwell.domain.plans.model import ProjectLink
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import SetBudget, StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import AnyChange, Origin
from stepwell.manager import event_feed as module
from stepwell.manager.event_feed import EventFeed

NOW_MS = 1_700_000_000_000
ORIGIN = Origin("test", NOW_MS)


def put(fragment_id: str, tokens: int = 1) -> StoreFragment:
    return StoreFragment("p", fragment_id, b"body", tokens, Tier.HOT)


def stored(revision: int, fragment_id: str = "a") -> AnyEvent:
    return FragmentStored(revision, NOW_MS, "p", fragment_id, Tier.HOT, None, 1, 4, b"", "text")


class Source:
    """A state whose changes are fed."""

    def __init__(self, budget: TierBudget | None = None) -> None:
        self.state = State(budget)
        self.feed = EventFeed(self.projects_of)

    def projects_of(self, plan_id: str) -> tuple[str, ...]:
        return self.state.plans.rows[plan_id].projects

    def do(self, *commands: Command[Reply]) -> int:
        """One command, or a transaction; its revision."""
        outcomes: Sequence[Outcome]
        if len(commands) == 1:
            outcomes = [machine.apply(self.state, commands[0], ORIGIN)]
        else:
            outcomes = machine.apply_all(self.state, [each for each in commands if isinstance(each, Write)], ORIGIN)
        self.feed.record(outcomes, NOW_MS)
        return self.state.revision

    def after(self, revision: int, limit: int = 1_000) -> tuple[list[int], int]:
        """The revisions of the events behind one, and how far that is."""
        events, reached = self.feed.events_after(revision, limit, self.state.revision)
        return [event.revision for event in events], reached


@pytest.fixture
def source() -> Source:
    return Source()


def test_everything_in_order(source: Source) -> None:
    """From any revision on, each event once."""
    for number in range(10):
        source.do(put(f"{number}"))
    assert source.after(0) == ([*range(1, 11)], 10)
    assert source.after(7) == ([8, 9, 10], 10)
    assert source.after(10) == ([], 10)


def test_a_write_that_changed_nothing(source: Source) -> None:
    """It has a revision and no event; whoever is told so far is told so."""
    source.do(SetBudget(source.state.budget))
    assert source.after(0) == ([], 1)
    source.do(put("a"))
    source.do(SetBudget(source.state.budget))
    assert source.after(0) == ([2], 3)


def test_whole_revisions(source: Source) -> None:
    """A transaction is told as one, whatever the limit."""
    source.do(put("a"))
    source.do(*(put(f"{number}") for number in range(5)))
    source.do(put("b"))
    assert source.after(0, 1) == ([1], 1)
    assert source.after(0, 2) == ([1] + [2] * 5, 2)
    assert source.after(1, 3) == ([2] * 5, 2)
    assert source.after(2, 3) == ([3], 3)


def test_one_step_that_is_larger_than_the_limit(source: Source) -> None:
    """Demotions belong to the store that made them."""
    source.do(SetBudget(TierBudget(hot_tokens=100)))
    for number in range(100):
        source.do(put(f"{number}"))
    revision = source.do(put("large", 100))
    assert source.after(revision - 1, 10) == ([revision] * 101, revision)


def test_what_is_too_much_is_forgotten(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oldest first, whole revisions: from where it has everything, it says."""
    monkeypatch.setattr(limits, "EVENTS_BUFFERED", 10)
    for number in range(8):
        source.do(put(f"{number}"))
    source.do(*(put(f"t{number}") for number in range(5)))
    assert source.feed.resume_point(0) == 3
    assert source.feed.resume_point(2) == 3
    assert source.feed.resume_point(3) == 3
    assert source.feed.resume_point(9) == 9
    assert source.after(3) == ([4, 5, 6, 7, 8] + [9] * 5, 9)


def test_one_step_that_is_larger_than_the_feed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_BUFFERED", 4)
    source.do(put("a"))
    source.do(*(put(f"{number}") for number in range(5)))
    assert source.feed.resume_point(0) == 2
    assert source.after(2) == ([], 2)
    source.do(put("b"))
    assert source.after(2) == ([3], 3)


def test_events_of_fragments_are_made_when_asked_for(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once: where nobody watches, a store costs no event."""
    made: list[int] = []

    def counted(changes: Iterable[AnyChange], revision: int, at_ms: int, projects_of: ProjectsOf) -> list[AnyEvent]:
        made.append(revision)
        return events_of(changes, revision, at_ms, projects_of)

    monkeypatch.setattr(module, "events_of", counted)
    source.do(put("a"))
    source.do(put("b"))
    assert not made
    source.after(0)
    source.after(0)
    assert made == [1, 2]


def test_a_plan_that_is_forgotten_meanwhile(source: Source) -> None:
    """What belonged to it is still told to those, and only those, whose projects it was of."""
    source.do(CreateAction("act", "", "", "planner", "coder"))
    source.do(UseAction("plan", "act", (ProjectLink("p"),)))
    source.do(CancelPlan("plan"))
    source.do(ForgetPlans(0, 0))
    assert source.state.plans.get("plan") is None
    events, _ = source.feed.events_after(0, 100, source.state.revision)
    assert [(type(event).__name__, event.scope) for event in events] == [
        ("ActionCreated", ()),
        ("ActionUsed", ()),
        ("PlanCreated", ("p",)),
        ("PlanMoved", ("p",)),
        ("PlanForgotten", ("p",)),
    ]


class BodyStoreHarness:
    """Events that are kept elsewhere, a revision each."""

    def __init__(self, oldest: int, latest: int) -> None:
        self.oldest = oldest
        self.latest = latest

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        return [stored(each) for each in range(revision + 1, self.latest + 1)][:limit]

    def oldest_event(self) -> int:
        return self.oldest


def test_what_is_forgotten_is_in_the_store() -> None:
    """It goes on there, and then from memory; what the store has forgotten too is missed."""
    feed = EventFeed(lambda _: (), floor=20, archive=BodyStoreHarness(5, 22))
    feed.publish([stored(21), stored(22)])
    assert (feed.resume_point(2), feed.resume_point(7), feed.resume_point(20)) == (5, 7, 20)
    assert feed.events_after(7, 4, 22) == ([stored(each) for each in range(8, 12)], 11)
    assert feed.events_after(18, 100, 22) == ([stored(each) for each in range(19, 23)], 22)
    assert feed.events_after(20, 1, 22) == ([stored(21)], 21)


def test_published_events_keep_their_revisions_together() -> None:
    feed = EventFeed(lambda _: ())
    feed.publish([stored(1), stored(2, "a"), stored(2, "b"), stored(4)])
    assert feed.events_after(0, 2, 5) == ([stored(1), stored(2, "a"), stored(2, "b")], 3)
    assert feed.events_after(3, 2, 5) == ([stored(4)], 5)

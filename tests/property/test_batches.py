"""A batch comes to the same as its commands one by one: the same answers, rows, events, views and bytes in memory."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.commands import Command
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.manager.request_handler import RequestExecution, RequestHandler, TimeBudget
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.reader.catalogue_reader import replay
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.codec import PartlyDecodedRequest, decode_results, encode_results
from stepwell.protocol.messages import Result
from stepwell.storage.store import SessionRow
from stepwell.telemetry import Logger, LogLevel
from tests.property.test_fast_path import commands, gets, plain
from tests.support.domain.world import image
from tests.support.memory.catalogue import assert_same
from tests.support.spelled import spelled

NOW_MS = 1_700_000_000_000


class Standing(StateClock):
    """A clock that does not tell the two apart."""

    def now_ms(self) -> int:
        return NOW_MS


class Manager:
    """As much of one as answers requests."""

    def __init__(self, owner: StateOwner) -> None:
        self.owner = owner
        self._requests = RequestHandler(owner, Standing(), Logger(LogLevel.ERROR))
        self._session = SessionRecord(SessionRow("s", ("p", "q"), 1, ""), None)

    def answer(self, asked: Sequence[Command[Reply]]) -> tuple[Result, ...]:
        return self._requests.respond(
            PartlyDecodedRequest(1, tuple(asked), atomic=False, answered=0), self._session, {}
        ).results

    def answer_in_slices(self, asked: Sequence[Command[Reply]], steps: Iterator[int]) -> tuple[Result, ...]:
        """Execute a batch in slices of some steps each. It may go on in another manager: only the results go along."""
        message = PartlyDecodedRequest(1, tuple(asked), atomic=False, answered=0)
        results: list[Result] = []
        while len(results) < len(asked):
            execution = RequestExecution(message, decode_results(encode_results(results)))
            self._requests.advance(execution, self._session, {}, Steps(next(steps)))
            assert len(execution.results) > len(results)
            results = execution.results
        return tuple(results)

    def bodies(self) -> dict[bytes, bytes]:
        """What is kept, as it can be read."""
        store = self.owner.bodies
        return {
            digest: store.segment(handle.segment).read(handle.offset, handle.stored)
            for digest, handle in store.handles.items()
        }

    def check_views(self) -> None:
        """Assert that the catalogue of each project says what the table does."""
        for project in ("p", "q"):
            while (ends := self.owner.open_view([project], Origin("s", NOW_MS), 0.0)) is None:
                self.owner._catalogues.work()
            rows = {entry.row.fragment_id: entry.row for entry in self.owner._state.fragments.created_after(project, 0)}
            handles = self.owner.bodies.locate(row.digest for row in rows.values())
            assert_same(replay(ends[0], self._segment), rows, handles)

    def check_forms(self) -> None:
        """Assert that each body gets the form of its tier, when there is time for it."""
        store = self.owner.bodies
        while self.owner.work():
            pass
        for digest, handle in store.handles.items():
            tier = store.refs.tier_of(digest)
            assert tier is not None
            assert store.fits(digest, handle, tier)

    def _segment(self, number: int) -> memoryview:
        segment = self.owner.bodies.segment(number)
        assert isinstance(segment, MemorySegment)
        return segment.view[:].toreadonly()


class Steps(TimeBudget):
    """A budget of so many steps."""

    def __init__(self, left: int) -> None:
        self._left = left

    def is_spent(self) -> bool:
        self._left -= 1
        return self._left <= 0


@contextmanager
def manager(budget: TierBudget) -> Iterator[Manager]:
    with closing(StateOwner(budget)) as owner:
        yield Manager(owner)


batches = st.one_of([st.lists(each, min_size=2, max_size=70) for each in (gets, plain, commands)])


@given(
    st.lists(batches, min_size=1, max_size=4),
    st.builds(TierBudget, hot_tokens=st.sampled_from([6, 100]), warm_entries=st.sampled_from([3, 100])),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.sampled_from([1, 4, limits.COMMANDS_PER_RUN]),
)
def test_one_by_one(
    asked: list[list[Command[Reply]]], budget: TierBudget, slices: list[int], commands_per_run: int
) -> None:
    """At once, in slices that end anywhere, and one by one on the general path."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(limits, "COMMANDS_PER_RUN", commands_per_run))
        one, sliced, other = (stack.enter_context(manager(budget)) for _ in range(3))
        other.owner._shortcuts.clear()
        steps = itertools.cycle(slices)
        for batch in asked:
            expected = tuple(result for each in batch for result in other.answer([each]))
            assert one.answer(batch) == expected
            assert sliced.answer_in_slices(batch, steps) == expected
            one.check_views()
        for each in (one, sliced):
            assert image(each.owner._state) == image(other.owner._state)
            assert each.bodies() == other.bodies()
        revision = one.owner.revision
        feeds = (each.owner.journal.feed for each in (one, sliced, other))
        assert len({spelled(feed.events_after(0, 1_000, revision)) for feed in feeds}) == 1
        one.check_forms()
        one.check_views()

"""A batch comes to the same as its commands one by one: the same answers, rows, events and bytes in memory."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from hypothesis import given
from hypothesis import strategies as st

from stepwell.domain.commands import Command
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.model import TierBudget
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import StateClock, StateOwner
from stepwell.protocol.codec import PartlyDecodedRequest
from stepwell.protocol.messages import Result
from stepwell.storage.store import SessionRow
from stepwell.telemetry import Logger, LogLevel
from tests.property.test_fast_path import commands, gets, plain
from tests.support.domain.world import image

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

    def bodies(self) -> dict[bytes, bytes]:
        """What is kept, as it can be read."""
        store = self.owner.bodies
        return {
            digest: store.segment(handle.segment).read(handle.offset, handle.stored)
            for digest, handle in store.handles.items()
        }


@contextmanager
def manager(budget: TierBudget) -> Iterator[Manager]:
    with closing(StateOwner(budget)) as owner:
        yield Manager(owner)


batches = st.one_of([st.lists(each, min_size=2, max_size=70) for each in (gets, plain, commands)])


@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from([6, 100]))
def test_one_by_one(asked: list[list[Command[Reply]]], hot_tokens: int) -> None:
    with manager(TierBudget(hot_tokens=hot_tokens)) as one, manager(TierBudget(hot_tokens=hot_tokens)) as other:
        for batch in asked:
            assert one.answer(batch) == tuple(result for each in batch for result in other.answer([each]))
        assert image(one.owner._state) == image(other.owner._state)
        assert one.bodies() == other.bodies()
        revision = one.owner.revision
        feeds = (each.owner.journal.feed for each in (one, other))
        assert len({repr(feed.events_after(0, 1_000, revision)) for feed in feeds}) == 1

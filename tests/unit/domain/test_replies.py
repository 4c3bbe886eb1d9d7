"""A reply names the bodies that travel beside it."""

from stepwell.domain.changesets.model import Content, EntryRow, Operation
from stepwell.domain.replies import EntryPage, Reply, SessionEnded


def entry(before: Content | None, after: Content | None) -> EntryRow:
    return EntryRow("plan", "cs", 1, Operation.MODIFY, "a", None, before, after, "tool", 0)


def test_most_want_none() -> None:
    """Only what carries content wants bodies."""
    reply: Reply = SessionEnded(())
    assert reply.body_digests == ()


def test_entries_want_the_bodies_that_are_held() -> None:
    """If they were asked for; of a side that is known by its digest only there are no bytes to send."""
    rows = (
        entry(Content(b"1" * 32, 4, held=True), Content(b"2" * 32, 5, held=True)),
        entry(None, Content(b"3" * 32, 5, held=True)),
        entry(Content(b"4" * 32, None, held=False), None),
    )
    assert EntryPage(rows, None, with_bodies=True).body_digests == (b"1" * 32, b"2" * 32, b"3" * 32)
    assert EntryPage(rows, None, with_bodies=False).body_digests == ()

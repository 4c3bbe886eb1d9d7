"""A reply names the bodies that travel beside it, and a page can be iterated and counted."""

from typing import get_args

import pytest

from stepwell.domain.changesets.model import Content, EntryRow, Operation
from stepwell.domain.replies import AnyReply, EntryPage, Page, ProjectPage, Reply, SessionEnded

PAGES = [kind for kind in get_args(AnyReply) if issubclass(kind, Page)]


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


@pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.__name__)
def test_page_is_iterated_and_counted(kind: type[ProjectPage]) -> None:
    """By its own rows, which are its first field; the cursor is kept."""
    others = [False for _ in kind.__struct_fields__[2:]]
    page = kind(("a", "b"), "b", *others)
    assert ([*page], len(page), page.cursor) == (["a", "b"], 2, "b")
    assert "a" in page


@pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.__name__)
def test_page_without_rows_is_false(kind: type[ProjectPage]) -> None:
    """As an empty list is; also if it has a cursor, because no row matched so far."""
    others = [False for _ in kind.__struct_fields__[2:]]
    assert not kind((), "b", *others)
    assert kind(("a",), None, *others)


def test_every_reply_with_a_cursor_is_a_page() -> None:
    assert {kind for kind in get_args(AnyReply) if "cursor" in kind.__struct_fields__} == {*PAGES}
    assert len(PAGES) == 10

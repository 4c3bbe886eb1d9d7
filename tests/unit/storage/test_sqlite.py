"""The store writes a turn as it was, and what belongs together goes together."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepwell.domain.tiers.commands import DemoteFragment, GetFragment, StoreFragment
from stepwell.domain.tiers.model import Tier
from stepwell.domain.verdict import Origin
from stepwell.storage.store import SessionRow
from tests.support.memory.bodies import compressible
from tests.support.memory.bodies import fill as send
from tests.support.storage.state import NOON_MS, durable_state, kept

SESSION = SessionRow("session", None, 1, "")
LARGE = 10_000_000


def test_session_that_begins_anew_has_no_replies(tmp_path: Path) -> None:
    """It ended and began in one turn: what the earlier one was answered is no answer to the later one's requests."""
    with durable_state(tmp_path) as made:
        made.journal.record_session(SESSION)
        made.journal.record_reply("session", 1, b"of the earlier one")
        made.commit()
        made.journal.record_session_end("session")
        made.journal.record_session(SESSION)
        made.commit()
        assert (kept(tmp_path).sessions, kept(tmp_path).replies) == ([SESSION], [])


def test_session_that_ends_leaves_no_reply(tmp_path: Path) -> None:
    """Not even that of its last turn."""
    with durable_state(tmp_path) as made:
        made.journal.record_session(SESSION)
        made.commit()
        made.journal.record_reply("session", 1, b"frame")
        made.journal.record_session_end("session")
        made.commit()
        assert (kept(tmp_path).sessions, kept(tmp_path).replies) == ([], [])


def test_fragment_that_moves_in_the_turn_that_writes_its_use(tmp_path: Path) -> None:
    """It is written as it is in the end, not as it was when its use was noted."""
    with durable_state(tmp_path) as made:
        made.store_one("a", b"body")
        made.commit()
        made.do(GetFragment("p", "a"), NOON_MS + 1)
        made.journal.write_uses()
        made.do(DemoteFragment("p", "a"), NOON_MS + 2)
        made.commit()
        entry = made.owner._state.fragments.entries["p", "a"]
        (found,) = kept(tmp_path).fragments
        assert found.row == entry.row
        assert (found.tick, found.touched_at_ms) == (entry.tick, entry.touched_at_ms)
        assert (found.access_count, found.accesses_since_move) == (entry.access_count, entry.accesses_since_move)


def test_packed_size_of_a_large_body_is_known_after_a_restart(tmp_path: Path) -> None:
    """Also when writing it compressed took several turns: what it takes of the arena, once warm, follows from it."""
    body = compressible(LARGE)
    with durable_state(tmp_path) as made:
        upload = made.owner.reserve(len(body), 0, Origin("alice", NOON_MS))
        assert upload is not None
        while not upload.prepare():
            pass
        send(upload, body)
        held = made.owner.bodies.stage(upload)
        command = StoreFragment("p", "a", 1, 1, Tier.COLD)
        made.owner.execute(command, Origin("alice", NOON_MS, uploads={1: held}))
        made.owner.bodies.unstage(held[0])
        made.commit()
        made.work()
        packed = made.owner._state.bodies.counts[held[0]].packed
        assert packed < len(body) // 10
    with durable_state(tmp_path) as made:
        assert made.owner._state.bodies.counts[held[0]].packed == packed


def test_turn_leaves_the_store_as_it_was_told(tmp_path: Path) -> None:
    """A session is found with the projects and the number that it had."""
    rows = [
        SESSION,
        SessionRow("scoped", ("p", "q/r"), 2**22, "boot/17", 9),
        SessionRow("nothing", (), 0, "", 2**62),
    ]
    with durable_state(tmp_path) as made:
        for row in rows:
            made.journal.record_session(row)
        made.journal.tidy({"scoped": 12}, 0.0)
        made.commit()
    expected = {row.session_id: row for row in rows} | {"scoped": msgspec.structs.replace(rows[1], answered=12)}
    assert {row.session_id: row for row in kept(tmp_path).sessions} == expected

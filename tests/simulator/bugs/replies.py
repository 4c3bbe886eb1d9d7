"""Bugs of replies and sessions in the manager: a request that is sent again takes effect twice, or gets no reply."""

from __future__ import annotations

from contextlib import AbstractContextManager

from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.journal import Journal
from stepwell.manager.large_requests import LargeRequests
from stepwell.manager.loop import Loop
from stepwell.manager.request_handler import LargeRequest
from stepwell.manager.sessions import PartialReply, SessionRecord, SessionTable, _ClientProcess
from stepwell.protocol.messages import Result
from stepwell.storage.store import SessionRow
from tests.simulator.bugs.registry import bug, do_nothing, patched


@bug("The manager sends the replies of a turn before it commits the turn.")
def reply_before_commit() -> AbstractContextManager[None]:
    def turn(self: Loop) -> None:
        ready = self._poll()
        self._now_s = self._requests.now_s()
        busy = self._apply(ready)
        self._reply(busy)
        self._journal.commit()
        self._sharing.close_retired()

    return patched((Loop, "turn", turn))


@bug("The manager does not look for the remembered reply of a request that is sent again.")
def no_resend_table() -> AbstractContextManager[None]:
    return patched((SessionRecord, "recall", lambda _self, _request_id, _answered: None))


@bug("The reply of a write is remembered in memory and not stored, so that a restart forgets it.")
def reply_not_stored() -> AbstractContextManager[None]:
    return patched((Journal, "record_reply", do_nothing))


@bug("The manager forgets the reply of the oldest pending request, one too many.")
def reply_forgotten_too_early() -> AbstractContextManager[None]:
    forget = SessionRecord._forget_below

    def forget_one_more(self: SessionRecord, answered: int) -> None:
        forget(self, answered + 1)

    return patched((SessionRecord, "_forget_below", forget_one_more))


@bug("The store deletes the reply of the oldest pending request, one too many.")
def stored_reply_deleted_too_early() -> AbstractContextManager[None]:
    tidy = Journal.tidy

    def tidy_too_much(self: Journal, answered: dict[str, int], now_s: float) -> None:
        tidy(self, {session_id: number + 1 for session_id, number in answered.items()}, now_s)

    return patched((Journal, "tidy", tidy_too_much))


@bug("A restarted manager does not restore the sessions of its predecessor.")
def sessions_not_restored() -> AbstractContextManager[None]:
    return patched((Loop, "restore_sessions", do_nothing))


@bug("A restored session gets another generation, as if it were a new one.")
def session_restored_as_new() -> AbstractContextManager[None]:
    add = SessionTable._add

    def add_as_new(self: SessionTable, row: SessionRow, process: _ClientProcess | None) -> SessionRecord:
        session = add(self, row, process)
        session.generation += 1
        return session

    return patched((SessionTable, "_add", add_as_new))


@bug("The results of a part of a batch are not stored, so that a restart executes the part again.")
def part_of_batch_not_stored() -> AbstractContextManager[None]:
    return patched((LargeRequests, "_store_part", do_nothing))


@bug("A batch that is continued begins one command too early.")
def batch_continued_too_early() -> AbstractContextManager[None]:
    results = PartialReply.results

    def all_but_last(self: PartialReply) -> list[Result]:
        return results(self)[:-1]

    return patched((PartialReply, "results", all_but_last))


@bug("The results so far of a batch are forgotten with its connection, so that it is executed from its beginning.")
def batch_forgotten_with_connection() -> AbstractContextManager[None]:
    def forget(_self: LargeRequests, request: LargeRequest) -> None:
        request.session.resume(request.request_id)

    return patched((LargeRequests, "_suspend", forget))


@bug("The leases of a session stay when the session ends.")
def lease_kept_after_session() -> AbstractContextManager[None]:
    end_session = Housekeeping.end_session

    def end_other_session(self: Housekeeping, _session_id: str) -> object:
        return end_session(self, "another session")

    return patched((Housekeeping, "end_session", end_other_session))


@bug("The death of a client's process is not noticed: its session and leases stay for the grace.")
def death_of_client_ignored() -> AbstractContextManager[None]:
    return patched((Loop, "_on_process_death", do_nothing))

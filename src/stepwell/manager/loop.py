"""The loop: one thread, one turn after the other. Poll, read, apply, commit, reply.

Everything that the promises say about order follows from here: requests take effect in the order in which the loop
applies them, and it applies one at a time. No peer can hold it up, because nothing in it waits for a peer: reading
and writing never block, work per peer and turn is bounded, and what a peer does not read waits in a bounded outbox.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Collection, Mapping
from typing import assert_never

from stepwell import limits
from stepwell.errors import Busy, ManagerFault, OutcomeUnknown, ProtocolError, StepwellError
from stepwell.manager.connection import READ, WRITE, ClientConnection
from stepwell.manager.deferred import DeferredRequests
from stepwell.manager.handshake import Handshake
from stepwell.manager.reply_cache import ReplyCache
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.manager.sessions import SessionRecord, SessionTable
from stepwell.manager.task_dispatch import TaskDispatcher
from stepwell.manager.uploads import Uploads
from stepwell.manager.watchers import Watchers
from stepwell.protocol.codec import PartlyDecodedRequest, decode_from_client
from stepwell.protocol.messages import (
    AskStatus,
    AskView,
    ClientMessage,
    FollowTasks,
    Goodbye,
    Hello,
    JoinAsWorker,
    OfferUpload,
    Refusal,
    Rejected,
    ReportProgress,
    Request,
    SegmentsReleased,
    TasksReceived,
    TransactionRequest,
    WatchEvents,
)
from stepwell.storage.store import StoredState
from stepwell.telemetry import Logger
from stepwell.transport.address import credentials
from stepwell.transport.busy_wait import Spin
from stepwell.transport.peer import Peer

_HOUSEKEEPING_S = 0.25


class Loop:
    """Serves a listener until one of `signals`, descriptors with the reason that they stand for, is readable."""

    def __init__(
        self,
        listener: socket.socket,
        requests: RequestHandler,
        *,
        log: Logger,
        signals: Mapping[int, str] | None = None,
        spin_s: float = limits.SPIN_SECONDS,
    ) -> None:
        self._listener = listener
        self._requests = requests
        self._journal = requests.owner.journal
        self._log = log
        self._signals = dict(signals or {})
        self._spin = Spin(spin_s)
        self._sessions = SessionTable()
        self._bodies = requests.owner.bodies
        self._bodies.labour.on_failure = lambda error: log.error("memory.faulted", exc_info=error)
        self._sharing = SegmentSharing(self._bodies)
        self._answering = ReplyCache(requests, self._sharing, self._journal)
        self._guests: dict[int, ClientConnection] = {}
        self._arrived = memoryview(bytearray(limits.RECEIVE_BYTES_PER_TURN))  # one for all: it is emptied at once
        self._backlog: dict[int, ClientConnection] = {}  # frames have arrived that no turn has come to yet
        self._parking = DeferredRequests(requests, self._sharing, self._journal.store.epoch)
        self._watchers = Watchers(self._journal.feed, requests, log)
        self._welcoming = Handshake(self._sessions, self._sharing, self._journal)
        self._dispatcher = TaskDispatcher(requests, self._sharing, log)
        self._started_at_s = self._now_s = requests.now_s()
        self._housekeep_at_s = self._sweep_at_s = self._tidy_at_s = self._now_s
        self._drain_until_s: float | None = None
        self._evicted = 0
        self._epoll = select.epoll()
        for fd in (listener.fileno(), *self._signals):
            self._epoll.register(fd, READ)

    def run(self) -> None:
        """Turn until drained, and leave nothing unwritten."""
        while not self._is_drained():
            self.turn()
        while self._journal.write_uses():
            self._journal.commit()
        self._journal.commit()

    def expect(self, kept: StoredState) -> None:
        """Give those who were connected to an earlier manager their time to come back."""
        self._sessions.restore(kept.sessions, kept.replies, self._now_s)
        for session in self._sessions:
            if session.pidfd is not None:
                self._watch(session.pidfd)

    def stop(self, reason: str) -> None:
        """Accept nobody and nothing more; answer what has arrived, then end."""
        if self._drain_until_s is None:
            self._log.info("manager.draining", reason=reason, peers=len(self._guests))
            self._drain_until_s = time.monotonic() + limits.DRAIN_SECONDS_MAX
            self._epoll.unregister(self._listener.fileno())
            for fd, guest in self._guests.items():
                guest.peer.read(self._arrived, self._now_s)
                self._backlog[fd] = guest

    def close(self) -> None:
        """Let go of every descriptor."""
        for guest in list(self._guests.values()):
            self._guests.pop(guest.peer.fileno())
            guest.uploads.close()
            guest.peer.close()
        self._sessions.close()
        self._epoll.close()

    def turn(self) -> None:
        """One turn: what is ready is read and applied, peer by peer; it is committed; and then the replies go out."""
        ready = self._poll()
        self._now_s = self._requests.now_s()
        busy = self._apply(ready)
        self._journal.commit()
        self._reply(busy)
        self._sharing.retire()

    def _apply(self, ready: list[tuple[int, int]]) -> Collection[ClientConnection]:
        """Do what is asked; whoever may have to be told of it."""
        for fd, events in ready:
            self._attend(fd, events)
        busy, self._backlog = self._backlog, {}
        if self._parking.guests:
            busy |= self._parking.guests
        for guest in busy.values():
            self._serve(guest)
        if self._now_s >= self._housekeep_at_s:
            self._housekeep()
        return busy.values()

    def _reply(self, guests: Collection[ClientConnection]) -> None:
        """Send what was answered. Nothing is sent anywhere else: so that all of it was committed before."""
        told = self._watchers.tell(self._now_s)
        told += self._dispatcher.dispatch()
        for guest in dict.fromkeys((*guests, *told)) if told else guests:
            self._flush(guest)

    def _poll(self) -> list[tuple[int, int]]:
        """What is ready. After a busy turn, look again for a moment before sleeping: waking up costs more.

        Bodies change their form in idle moments; while memory is short, or somebody waits for it, after every turn.
        """
        if (self._parking.guests or self._bodies.is_pressed) and self._requests.owner.work():
            return self._epoll.poll(0)
        ready = self._epoll.poll(0)
        if ready or self._backlog or self._watchers.has_more or self._dispatcher.has_more:
            return ready
        if self._drain_until_s is not None:
            return self._epoll.poll(0.01)
        if ready := self._spin.poll_briefly(self._epoll.poll):
            return ready
        if self._requests.owner.work():
            return self._epoll.poll(0)
        return self._epoll.poll(
            max(0.0, min(self._housekeep_at_s - self._requests.now_s(), self._requests.seconds_to_deadline))
        )

    def _attend(self, fd: int, events: int) -> None:
        guest = self._guests.get(fd)
        if guest is not None:
            # Whoever has frames waiting sends no more until they are done: its buffer stays bounded.
            waits = fd in self._backlog or guest.parked is not None or guest.peer.is_full
            if guest.parked is not None and events & (select.EPOLLHUP | select.EPOLLERR):
                guest.peer.is_open = False
            if events & ~WRITE and self._drain_until_s is None and not waits:
                guest.peer.read(self._arrived, self._now_s)
            self._backlog[fd] = guest
        elif fd == self._listener.fileno():
            if self._drain_until_s is None:
                self._accept()
        elif fd in self._signals:
            self._epoll.unregister(fd)
            self.stop(self._signals.pop(fd))
        elif session := self._sessions.of_process(fd):
            self._bury(session)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            self._epoll.register(connection.fileno(), READ)
        except OSError as error:  # the peer gave up already, or we have no descriptor left
            self._log.warning("peer.not_accepted", reason=str(error))
            self._epoll.modify(self._listener.fileno(), 0)  # until housekeeping; it would only be ready again
            return
        who = credentials(connection)
        guest = ClientConnection(Peer(connection, self._now_s), who, Uploads(self._requests.owner), self._now_s)
        if who.uid != os.geteuid():
            self._log.warning("peer.refused", uid=who.uid, pid=who.pid)
            connection.close()
            return
        self._guests[connection.fileno()] = guest
        if len(self._guests) > limits.PEERS_MAX:
            self._reject(guest, Busy(f"{limits.PEERS_MAX} peers are connected already: try again later"))
            self._backlog[connection.fileno()] = guest

    def _serve(self, guest: ClientConnection) -> None:
        """Apply what a peer has sent, a bounded number of commands, or the one request that has more."""
        done = 0
        while done < limits.COMMANDS_PER_TURN:
            revision = self._journal.revision
            try:
                if guest.parked is not None and not self._parking.resume(guest, guest.parked, self._now_s):
                    if guest.uploads.is_preparing:
                        break  # it is only a matter of turns
                    return
                if (frame := guest.peer.next_frame()) is None:
                    return
                done += self._handle(guest, decode_from_client(frame))
            except StepwellError as error:
                self._reject(guest, error)
                return
            except Exception as error:  # noqa: BLE001 - a defect outside the state costs its finder alone
                self._log.exception("peer.met_a_defect", pid=guest.credentials.pid)
                kind = ManagerFault if self._journal.revision == revision else OutcomeUnknown
                self._reject(guest, kind(f"your message met a defect ({error!r})"[: limits.ERROR_CHARS_MAX]))
                return
            if not guest.peer.has_more and guest.parked is None:
                return
            if self._requests.now_s() - self._now_s > limits.TURN_SECONDS_MAX:
                break
        self._backlog[guest.peer.fileno()] = guest

    def _handle(self, guest: ClientConnection, message: ClientMessage | PartlyDecodedRequest) -> int:
        """Do what a message asks; how many commands it was worth."""
        if isinstance(message, Hello):
            self._welcome(guest, message)
            return 1
        session = guest.session
        if session is None:
            raise ProtocolError("the first message of a connection is Hello")
        match message:
            case _ if guest.is_watching:
                raise ProtocolError("whoever watches asks for nothing else: use another connection")
            case Request() | TransactionRequest() | PartlyDecodedRequest():
                self._answering.respond(guest, session, message)
                guest.uploads.release()
                return len(message.commands)
            case OfferUpload() | AskView():
                guest.parked, guest.parked_at_s = message, self._now_s
            case WatchEvents():
                self._watchers.join(guest, message, self._now_s)
            case JoinAsWorker():
                self._dispatcher.employ(guest, message)
            case FollowTasks():
                self._dispatcher.follow(guest, message)
            case ReportProgress() | TasksReceived():
                self._dispatcher.hear(guest, message)
            case SegmentsReleased():
                self._sharing.holders.release(session, message.segments)
            case AskStatus():
                uptime_s = self._now_s - self._started_at_s
                peers, sessions = len(self._guests), len(self._sessions)
                self._answering.report(
                    guest, session, message, uptime_s=uptime_s, peers=peers, sessions=sessions, evicted=self._evicted
                )
            case Goodbye():
                self._end(session)
                guest.peer.is_open = False
            case _:
                assert_never(message)
        return 1

    def _welcome(self, guest: ClientConnection, hello: Hello) -> None:
        session = self._welcoming.welcome(guest, hello, self._requests.revision)
        if session.pidfd is not None and session.connections == 1:
            self._watch(session.pidfd)
        self._log.debug("peer.welcomed", pid=guest.credentials.pid, session_id=session.session_id)

    def _watch(self, pidfd: int) -> None:
        try:
            self._epoll.register(pidfd, READ)
        except OSError:  # watched already, since the session reconnected within its grace; or no room for one more
            return

    def _reject(self, guest: ClientConnection, error: StepwellError) -> None:
        """Say why, as far as the peer listens, and end the connection. Nobody else notices."""
        self._log.warning("peer.rejected", pid=guest.credentials.pid, reason=error.message)
        guest.peer.send(Rejected(Refusal.of(error, self._requests.revision)))
        guest.peer.is_open = False

    def _flush(self, guest: ClientConnection) -> None:
        peer = guest.peer
        was_full = peer.is_full
        if peer.outbox:
            peer.flush(self._now_s)
        if not peer.is_open:
            self._part(guest)
            return
        if was_full and not peer.is_full:  # what it sent while it did not read
            self._backlog[peer.fileno()] = guest
        interest = READ
        if peer.outbox or guest.parked:
            interest = (0 if peer.is_full or guest.parked else READ) | (WRITE if peer.outbox else 0)
        if interest != guest.interest:
            self._epoll.modify(peer.fileno(), interest)
            guest.interest = interest

    def _part(self, guest: ClientConnection) -> None:
        """A connection ends. Its session goes on for its grace if there is anything to come back for."""
        fd = guest.peer.fileno()
        if self._guests.pop(fd, None) is None:
            return
        self._backlog.pop(fd, None)
        self._parking.leave(fd)
        self._watchers.leave(guest)
        self._dispatcher.leave(guest)
        self._epoll.unregister(fd)
        guest.uploads.close()
        guest.peer.close()
        guest.peer.is_open = False  # its answers of this turn go nowhere
        session = guest.session
        if session is not None:
            self._sessions.leave(session, self._now_s)
            if session.connections == 0:
                self._sharing.holders.forget(session)
                if session.is_over:  # whatever another of its connections has taken since it said so
                    self._end(session)

    def _bury(self, session: SessionRecord) -> None:
        """The session's process is dead, even if a child of it still holds the socket."""
        self._log.info("session.died", session_id=session.session_id)
        for guest in [each for each in self._guests.values() if each.session is session]:
            if guest.is_working:  # what it has finished before it died is finished
                guest.peer.read(self._arrived, self._now_s)
                self._serve(guest)
            guest.peer.is_open = False
            self._part(guest)
        self._end(session)

    def _end(self, session: SessionRecord) -> None:
        ended = self._requests.end_session(session.session_id)
        if ended.plan_ids:
            self._log.info("leases.ended", session_id=session.session_id, plan_ids=ended.plan_ids)
        self._dispatcher.end(session.session_id)
        session.is_over = True
        if session.connections == 0:
            self._forget(session)

    def _forget(self, session: SessionRecord) -> None:
        self._sessions.forget(session)
        self._journal.part(session.session_id)

    def _housekeep(self) -> None:
        """What has to happen by time alone."""
        self._housekeep_at_s = self._now_s + _HOUSEKEEPING_S
        if self._drain_until_s is None:
            self._epoll.modify(self._listener.fileno(), READ)
        self._requests.housekeep_leases()
        self._requests.owner.housekeep(self._now_s)
        if self._now_s >= self._tidy_at_s:
            self._tidy_at_s = self._now_s + limits.TIDY_SECONDS
            self._journal.tidy({each.session_id: each.answered for each in self._sessions}, self._now_s)
        for session in self._sessions.overdue(self._now_s):
            self._end(session)
        live = {*self._sharing.live}
        for guest in list(self._guests.values()):
            guest.known &= live
            shy = guest.session is None and self._now_s - guest.joined_at_s > limits.HELLO_SECONDS_MAX
            is_stalled = guest.peer.is_stalled(self._now_s) and not guest.is_working  # whose task has a deadline
            if shy or is_stalled or guest.uploads.is_forgotten(self._now_s):
                self._evicted += 1
                self._log.warning("peer.evicted", pid=guest.credentials.pid, said_hello=not shy)
                self._part(guest)
        self._bound_retired()
        if self._now_s >= self._sweep_at_s and not (self._requests.sweep() | self._requests.forget_plans()):
            self._sweep_at_s = self._now_s + limits.SWEEP_SECONDS

    def _bound_retired(self) -> None:
        """Whoever has held on to memory that is gone for us, and longest, is disconnected."""
        for session in self._sharing.holders.beyond(limits.RETIRED_BYTES_MAX):
            self._log.warning("session.held_on", session_id=session.session_id)
            for guest in [each for each in self._guests.values() if each.session is session]:
                self._evicted += 1
                self._part(guest)

    def _is_drained(self) -> bool:
        if self._drain_until_s is None:
            return False
        waiting = bool(self._backlog) or any(guest.peer.outbox for guest in self._guests.values())
        return not waiting or time.monotonic() >= self._drain_until_s

"""The loop: one thread, one turn after the other. Poll, read, apply, commit, reply.

All promises about order follow from this module. Requests take effect in the order in which the loop applies them, and
it applies one at a time. `Loop.turn` shows the whole order in five lines: everything that a turn applies is committed
by one `Journal.commit`, and replies leave the manager behind that commit only.

No peer can delay the loop, because nothing in it waits for a peer:

- Reads and writes do not block. One turn reads a bounded number of bytes and applies a bounded number of commands for
  each connection; the rest stays in `_backlog` for the next turn, behind the other connections.
- A reply that the peer does not read stays in its outbox. Once the outbox is full, the loop reads nothing more from
  that peer, so that both buffers are bounded; a peer that does not read for too long is evicted.
- A request that cannot be answered yet (see `deferred`) suspends its own connection only. So does a large one, which is
  executed in slices over several turns, behind the small requests (see `large_requests`).

Errors are contained at three levels. A refusal is a normal response. A violation of the protocol, or a defect outside
the state, closes the one connection that caused it. A defect while the state changes raises
`StateBroken`, which no handler here catches, and ends the manager.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import assert_never

from stepwell import limits
from stepwell.errors import Busy, ProtocolError, StepwellError
from stepwell.manager.acceptor import Acceptor
from stepwell.manager.connection import HANGUP, READ, WRITE, ClientConnection
from stepwell.manager.deferred import DeferredRequests
from stepwell.manager.farewell import defect_error
from stepwell.manager.handshake import Handshake
from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.large_requests import LargeRequests
from stepwell.manager.reply_cache import ReplyCache
from stepwell.manager.request_handler import LargeRequest, RequestHandler
from stepwell.manager.sessions import SessionRecord, SessionTable
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.manager.task_dispatch import TaskDispatcher
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
    ManagerEnded,
    OfferUpload,
    ReadsReported,
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
from stepwell.telemetry import LimitedLogger, Logger
from stepwell.transport.busy_wait import Spin
from stepwell.transport.kernel import Kernel
from stepwell.transport.stream_socket import ListeningSocket


class Loop:
    """Serves the connections of one listening socket.

    The loop owns the connections, the sessions and all their descriptors, and uses the state through `requests.owner`.
    It belongs to the thread that made the state owner; no method may be called from another thread. `signals` maps
    descriptors to reasons: when one of them becomes readable, the loop stops accepting, drains and ends.
    """

    def __init__(
        self,
        listener: ListeningSocket,
        requests: RequestHandler,
        *,
        log: Logger,
        signals: Mapping[int, str] | None = None,
        spin_s: float = limits.SPIN_SECONDS,
        kernel: Kernel | None = None,
    ) -> None:
        kernel = kernel or Kernel()
        self._listener = listener
        self._requests = requests
        self._journal = requests.owner.journal
        self._log = log
        self._peer_log = LimitedLogger(log)  # for events that peers cause
        self._signals = dict(signals or {})
        self._spin = Spin(spin_s)
        self._sessions = SessionTable(kernel, kernel.descriptor_bounds().processes_max)
        self._bodies = requests.owner.bodies
        self._index = requests.owner.index
        self._bodies.background.on_failure = lambda error: log.error("memory.faulted", exc_info=error)
        self._sharing = SegmentSharing(self._bodies, requests.owner.index)
        self._reply_cache = ReplyCache(requests, self._sharing, self._journal)
        self._connections: dict[int, ClientConnection] = {}
        # Shared by all connections: `Peer.read` copies its contents into the connection's framer at once.
        self._receive_buffer = memoryview(bytearray(limits.RECEIVE_BYTES_PER_TURN))
        # Connections, by descriptor, that have unserved frames or something to flush: the next turn serves them.
        self._backlog: dict[int, ClientConnection] = {}
        self._large = LargeRequests(requests, self._reply_cache, self._sharing, self._journal)
        self._deferred = DeferredRequests(requests, self._large, self._sharing, self._journal.store.epoch)
        self._watchers = Watchers(self._journal.feed, requests, log)
        self._handshake = Handshake(self._sessions, self._sharing, self._journal)
        self.housekeeping = Housekeeping(requests.owner, requests.clock, log)
        self._dispatcher = TaskDispatcher(self.housekeeping, self._sharing, kernel, log)
        self._started_at_s = self._now_s = requests.now_s()
        self._drain_until_s: float | None = None
        self._evicted = 0
        self._epoll = kernel.poller()
        for fd in (listener.fileno(), *self._signals):
            self._epoll.register(fd, READ)
        self._acceptor = Acceptor(listener, self._epoll, requests.owner, kernel, self._peer_log)

    def run(self) -> None:
        """Turn until the loop is drained.

        Then write the remaining access times, so that a restart keeps the LRU order, and let the tables follow the log.
        """
        while not self._is_drained():
            self.turn()
        self._index.invalidate()
        self._journal.finish()

    def restore_sessions(self, stored: StoredState) -> None:
        """Expect the clients of an earlier manager: restore their sessions and watch their processes.

        A session whose client does not reconnect within the grace ends like any other session without connections.
        """
        self._sessions.restore(stored.sessions, stored.replies, stored.reply_parts, self._now_s)
        for session in self._sessions:
            if session.pidfd is not None:
                self._watch_process(session.pidfd)

    def stop(self, reason: str) -> None:
        """Stop accepting connections and reading requests; answer what has arrived, then let `run` end.

        Each connection is read once more here, because a request that was sent before the stop should get its answer.
        """
        if self._drain_until_s is None:
            self._log.info("manager.draining", reason=reason, peers=len(self._connections))
            self._drain_until_s = time.monotonic() + limits.DRAIN_SECONDS_MAX
            self._epoll.unregister(self._listener.fileno())
            for fd, connection in self._connections.items():
                connection.peer.read(self._receive_buffer, self._now_s)
                self._backlog[fd] = connection

    def send_farewell(self, farewell: ManagerEnded) -> None:
        """Send the last message to every connection, as far as its socket accepts it now."""
        for connection in self._connections.values():
            connection.peer.send_last(farewell)

    def close(self) -> None:
        """Close all connections and every descriptor of the loop. Nothing is committed here."""
        for connection in list(self._connections.values()):
            self._connections.pop(connection.peer.fileno())
            connection.uploads.close()
            connection.peer.close()
        self._sessions.close()
        self._acceptor.close()
        self._epoll.close()

    def turn(self) -> None:
        """Run one turn: read and apply, commit, publish, reply.

        The order is the guarantee. A reply or an event leaves only after the commit of the changes that it reports.
        Clients that read in shared memory see them in between: not before they are committed, and not after a reply.
        Retired segments are closed last, because replies of this turn may still carry their descriptors.
        """
        ready = self._poll()
        self._now_s = self._requests.now_s()
        busy = self._apply(ready)
        self._journal.commit()
        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))
        self._reply(busy)
        self._sharing.close_retired()

    def _apply(self, ready: list[tuple[int, int]]) -> Collection[ClientConnection]:
        """Apply everything that is ready, and return the connections that may have something to send.

        The backlog is exchanged before it is served, because serving may put a connection into the next one.
        """
        for fd, events in ready:
            self._on_ready(fd, events)
        self.housekeeping.expire_fragments()
        busy, self._backlog = self._backlog, {}
        if self._deferred.connections:
            busy |= self._deferred.connections
        for connection in busy.values():
            self._serve(connection)
        for connection in self._large.slices(busy.values()) if self._large else ():
            busy[connection.peer.fileno()] = connection
            self._serve(connection)
        if self._now_s >= self.housekeeping.due_at_s:
            self._housekeep()
        return busy.values()

    def _reply(self, connections: Collection[ClientConnection]) -> None:
        """Send the replies, events and task messages of this turn.

        This is the only place where the manager sends. It runs behind the commit, so that everything sent is durable.
        """
        notified = self._watchers.publish(self._now_s)
        notified += self._dispatcher.dispatch()
        for connection in dict.fromkeys((*connections, *notified)) if notified else connections:
            self._flush(connection)

    def _poll(self) -> list[tuple[int, int]]:
        """Wait for descriptors that are ready, and return them with their events.

        The wait ends early when a connection has unserved frames, a watcher is behind or a task is due. Before the
        thread sleeps it polls again for a moment (see `Spin`), because waking up costs as much as serving a request.

        Background work on bodies (compression, emptying of segments) happens here in idle moments. While memory is
        short, or a deferred request waits for room, a slice of it runs before every turn instead.
        """
        if (self._deferred.connections or self._bodies.is_pressed) and self._requests.owner.work():
            return self._epoll.poll(0)
        ready = self._epoll.poll(0)
        has_more = self._watchers.has_more or self._dispatcher.has_more or self.housekeeping.has_expired
        if ready or self._backlog or self._large or has_more:
            return ready
        if self._drain_until_s is not None:
            return self._epoll.poll(limits.DRAIN_POLL_SECONDS)
        if ready := self._spin.poll_briefly(self._epoll.poll):
            return ready
        if self.housekeeping.work():
            return self._epoll.poll(0)
        return self._epoll.poll(
            max(0.0, min(self.housekeeping.due_at_s - self._requests.now_s(), self.housekeeping.seconds_to_deadline))
        )

    def _on_ready(self, fd: int, events: int) -> None:
        """Handle one ready descriptor: a connection, the listener, a stop signal or the death of a client's process."""
        connection = self._connections.get(fd)
        if connection is not None:
            peer = connection.peer
            if connection.deferred is not None:
                if events & HANGUP:
                    peer.is_open = False
            # A connection with unserved frames is not read further, so that its receive buffer stays bounded.
            elif events != WRITE and fd not in self._backlog and not peer.is_full and self._drain_until_s is None:
                peer.read(self._receive_buffer, self._now_s)
            self._backlog[fd] = connection
        elif fd == self._listener.fileno():
            if self._drain_until_s is None:
                self._accept()
        elif fd in self._signals:
            self._epoll.unregister(fd)
            self.stop(self._signals.pop(fd))
        else:
            for session in self._sessions.by_pidfd(fd):
                self._on_process_death(session)

    def _accept(self) -> None:
        """Accept one connection, and refuse it with `Busy` if too many peers are connected."""
        connection = self._acceptor.accept(self._now_s)
        if connection is None:
            return
        fd = connection.peer.fileno()
        self._connections[fd] = connection
        if len(self._connections) > (peers_max := self._acceptor.peers_max):
            self._reject(connection, Busy(f"{peers_max} peers are connected already: try again later"))
            self._backlog[fd] = connection

    def _serve(self, connection: ClientConnection) -> None:
        """Apply the requests that a connection has sent, up to the bounds of one turn.

        A turn serves at least one request of each connection, even one that exceeds the bounds alone. What remains goes
        to the backlog, so that the next turn continues behind all other connections. A protocol error or a defect ends
        the connection; the message says whether the request may have taken effect, because a client may retry only if
        not.
        """
        done = 0
        while done < limits.COMMANDS_PER_TURN:
            revision = self._journal.revision
            try:
                if connection.deferred is not None and not self._deferred.resume(
                    connection, connection.deferred, self._now_s
                ):
                    if connection.uploads.is_preparing:
                        break  # the memory of the upload is allocated over some turns, without waiting
                    return
                if (frame := connection.peer.next_frame()) is None:
                    return
                done += self._handle(connection, decode_from_client(frame))
            except StepwellError as error:
                self._reject(connection, error)
                return
            except Exception as error:  # noqa: BLE001 - a defect outside the state ends one connection only
                self._peer_log.exception("peer.met_a_defect", pid=connection.credentials.pid)
                self._reject(connection, defect_error(error, changed=self._journal.revision != revision))
                return
            if not connection.peer.has_more and connection.deferred is None:
                return
            if self._requests.now_s() - self._now_s > limits.TURN_SECONDS_MAX:
                break
        self._backlog[connection.peer.fileno()] = connection

    def _handle(self, connection: ClientConnection, message: ClientMessage | PartlyDecodedRequest) -> int:
        """Handle one message, and return the number of commands that it counts for.

        A connection says Hello first; every other message needs its session. Offers of uploads and requests for views
        are only noted as deferred here: `_serve` tries to answer them at once, and again in later turns.
        """
        if isinstance(message, Hello):
            self._welcome(connection, message)
            return 1
        session = connection.session
        if session is None:
            raise ProtocolError("the first message of a connection is Hello")
        match message:
            case _ if connection.is_watching:
                raise ProtocolError("a connection that watches sends no other request: use another connection")
            case Request() | TransactionRequest() | PartlyDecodedRequest():
                if self._reply_cache.respond(connection, session, message):
                    connection.uploads.release()
                else:
                    connection.deferred = self._large.begin(connection, session, message)
                return len(message.commands)
            case ReadsReported():
                self._requests.count_reads(message, session)
                return 1 + len(message.reads) // limits.INDEX_READS_PER_COMMAND
            case OfferUpload() | AskView():
                connection.deferred, connection.deferred_at_s = message, self._now_s
            case WatchEvents():
                self._watchers.add(connection, message, self._now_s)
            case JoinAsWorker():
                self._dispatcher.add_worker(connection, message)
            case FollowTasks():
                self._dispatcher.add_follower(connection, message)
            case ReportProgress() | TasksReceived():
                self._dispatcher.handle_report(connection, message)
            case SegmentsReleased():
                self._sharing.holders.release(session, message.segments)
            case AskStatus():
                uptime_s = self._now_s - self._started_at_s
                peers, sessions = len(self._connections), len(self._sessions)
                counts = {"peers": peers, "sessions": sessions, "evicted": self._evicted}
                self._reply_cache.report(connection, session, message, uptime_s=uptime_s, **counts)
            case Goodbye():
                self._end_session(session)
                connection.peer.is_open = False
            case _:
                assert_never(message)
        return 1

    def _welcome(self, connection: ClientConnection, hello: Hello) -> None:
        """Perform the handshake, and watch the client's process if the session is new."""
        session = self._handshake.welcome(connection, hello, self._requests.revision)
        if session.pidfd is not None and session.connections == 1:
            self._watch_process(session.pidfd)
        self._log.debug("peer.welcomed", pid=connection.credentials.pid, session_id=session.session_id)

    def _watch_process(self, pidfd: int) -> None:
        """Have the loop woken when a process dies."""
        try:
            self._epoll.register(pidfd, READ)
        # Already registered, because the session reconnected within its grace; or epoll has no room. Without the
        # registration the session ends by its grace instead of at once.
        except OSError:
            return

    def _reject(self, connection: ClientConnection, error: StepwellError) -> None:
        """Report the reason to the peer, as far as it still reads, and close the connection.

        No other connection is affected.
        """
        # A client of ours raises the error. A peer that does not speak the protocol may be anything.
        log = self._peer_log.warning if isinstance(error, ProtocolError) else self._peer_log.info
        log("peer.rejected", pid=connection.credentials.pid, reason=error.message)
        connection.peer.send(Rejected(Refusal.of(error, self._requests.revision)))
        connection.peer.is_open = False

    def _flush(self, connection: ClientConnection) -> None:
        """Send what the outbox holds, and register for the events that the connection waits for next.

        The loop asks for no input of a connection that has to read first or that is deferred: the kernel's buffer then
        fills, and the peer blocks in its own send.
        """
        peer = connection.peer
        was_full = peer.is_full
        if peer.outbox:
            peer.flush(self._now_s)
        if not peer.is_open:
            self._on_disconnect(connection)
            return
        if was_full and not peer.is_full:  # its frames waited while the peer did not read
            self._backlog[peer.fileno()] = connection
        interest = READ
        if peer.outbox or connection.deferred:
            interest = (0 if peer.is_full or connection.deferred else READ) | (WRITE if peer.outbox else 0)
        if interest != connection.interest:
            self._epoll.modify(peer.fileno(), interest)
            connection.interest = interest

    def _on_disconnect(self, connection: ClientConnection) -> None:
        """Remove a connection. Its session outlives its last connection by the grace, so that the client may reconnect.

        This may be called twice for a connection, by a failed flush and by housekeeping in the same turn: the second
        call does nothing. Without connections a session holds no segments, because a client that reconnects reports
        those that it has.
        """
        fd = connection.peer.fileno()
        if self._connections.pop(fd, None) is None:
            return
        self._backlog.pop(fd, None)
        self._deferred.remove(connection)
        self._watchers.remove(connection)
        self._dispatcher.remove(connection)
        self._epoll.unregister(fd)
        connection.uploads.close()
        connection.peer.close()
        connection.peer.is_open = False  # later answers of this turn are discarded
        session = connection.session
        if session is not None:
            self._sessions.leave(session, self._now_s)
            if session.connections == 0:
                self._sharing.holders.remove(session)
                if session.is_over:  # another connection may have acquired leases since the Goodbye
                    self._end_session(session)

    def _on_process_death(self, session: SessionRecord) -> None:
        """End the session of a dead process, even if a child that it forked still holds the socket open."""
        self._log.info("session.died", session_id=session.session_id)
        for connection in [each for each in self._connections.values() if each.session is session]:
            if connection.is_working:  # results that the worker sent before it died count
                connection.peer.read(self._receive_buffer, self._now_s)
                self._serve(connection)
            connection.peer.is_open = False
            self._on_disconnect(connection)
        self._end_session(session)

    def _end_session(self, session: SessionRecord) -> None:
        """Release what a session holds: leases and tasks. The session itself is dropped with its last connection.

        Until then its remembered replies stay, since a request may still be sent again on another connection.
        """
        ended = self.housekeeping.end_session(session.session_id)
        if ended.plan_ids:
            self._log.info("leases.ended", session_id=session.session_id, plan_ids=ended.plan_ids)
        self._dispatcher.forget_session(session.session_id)
        session.is_over = True
        if session.connections == 0:
            self._drop_session(session)

    def _drop_session(self, session: SessionRecord) -> None:
        """Remove a session from the table and, with the next commit, from the store."""
        self._sessions.remove(session)
        self._journal.record_session_end(session.session_id)

    def _housekeep(self) -> None:
        """Do what is due by time alone: timers of the state, ends of sessions, evictions of connections."""
        if self._drain_until_s is None:
            self._acceptor.resume()
        self.housekeeping.run(self._sessions, self._now_s)
        for session in self._sessions.expired(self._now_s):
            self._end_session(session)
        live = {*self._sharing.live}
        for connection in list(self._connections.values()):
            connection.known &= live
            if isinstance(connection.deferred, LargeRequest):
                continue  # the peer waits for the manager
            if connection.is_overdue(self._now_s):
                self._evicted += 1
                said_hello = connection.session is not None
                self._peer_log.warning("peer.evicted", pid=connection.credentials.pid, said_hello=said_hello)
                self._on_disconnect(connection)
        self._evict_segment_holders()
        self.housekeeping.sweep_if_due(self._now_s)

    def _evict_segment_holders(self) -> None:
        """Disconnect the sessions that have held retired segments the longest, until the rest is within the bound.

        Their processes keep the memory that they have mapped; the manager cannot take it back. But they get no further
        segments, so that the memory of a client that never releases anything does not grow.
        """
        for session in self._sharing.holders.pop_oldest_beyond(limits.RETIRED_BYTES_MAX):
            self._log.warning("session.held_on", session_id=session.session_id)
            for connection in [each for each in self._connections.values() if each.session is session]:
                self._evicted += 1
                self._on_disconnect(connection)

    def _is_drained(self) -> bool:
        """Return True if the loop was stopped and has nothing left to answer, or its time to drain is over.

        Peers that do not read their last replies cannot delay the end of the manager beyond that time.
        """
        if self._drain_until_s is None:
            return False
        waiting = bool(self._backlog or self._large) or any(
            connection.peer.outbox for connection in self._connections.values()
        )
        return not waiting or time.monotonic() >= self._drain_until_s

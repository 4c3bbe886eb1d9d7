"""Large requests: batches of many commands, executed in slices, so that they do not delay small requests.

A request of more than `limits.SMALL_REQUEST_COMMANDS` commands is not executed when it arrives. It suspends its own
connection, like the other deferred requests (see `deferred`), and waits in a queue. A turn of the loop first serves the
small requests. Then the first request of the queue is executed, for `limits.LARGE_SECONDS_PER_TURN` at most; if
commands are left, it goes to the end of the queue. All large requests share this time, so that a turn stays short,
however many peers send them. Without small requests the slices are longer, because each turn costs a commit. A turn
that has answered small requests leaves the large ones to the next turn, but never twice in a row: the small replies
leave at once, and large requests progress under any load.

A transaction is atomic: it waits in the same queue, and is then executed in one step.

A batch stays one step for resending. The results of a slice are committed together with its changes, as a part of the
reply. When the connection ends before the batch is complete, the rest is not executed, so that a client that is gone
costs nothing. The client that sends the request again, to this manager or to the next one, continues behind the
commands that were executed, and gets all results. The parts are deleted when the whole reply is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from stepwell import limits
from stepwell.errors import ProtocolError
from stepwell.manager.connection import ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.reply_cache import ReplyCache
from stepwell.manager.request_handler import AnyRequest, LargeRequest, RequestHandler, TimeBudget
from stepwell.manager.sessions import PartialReply, SessionRecord
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.protocol.codec import encode_results
from stepwell.storage.store import ReplyPart


class LargeRequests:
    """The connections with a large request, by descriptor, in the order of their next slice.

    The loop owns it. Only the connection that `slices` has yielded last is advanced.
    """

    def __init__(
        self, requests: RequestHandler, reply_cache: ReplyCache, sharing: SegmentSharing, journal: Journal
    ) -> None:
        self._requests = requests
        self._reply_cache = reply_cache
        self._sharing = sharing
        self._journal = journal
        self._waiting: dict[int, ClientConnection] = {}
        self._superseded: list[ClientConnection] = []
        self._current: ClientConnection | None = None
        self._budget: TimeBudget | None = None
        self._was_skipped = False
        self._small_at_s = -math.inf  # when a small request was answered last, while large ones waited

    def __bool__(self) -> bool:
        """Return True if a large request has commands left."""
        return bool(self._waiting)

    def begin(self, connection: ClientConnection, session: SessionRecord, message: AnyRequest) -> LargeRequest:
        """Return a new large request, which waits for its first slice.

        If it was sent before and not completed, it continues behind the commands that were executed. Raise
        `ProtocolError` if it now has fewer commands than that.
        """
        self._suspend_elsewhere(session, message.request_id)
        partial = session.resume(message.request_id)
        results = partial.results() if partial is not None else []
        if len(results) > len(message.commands):
            raise ProtocolError(f"request {message.request_id} had more commands when it was sent first")
        request = LargeRequest(message, session, results)
        if partial is not None:
            request.has_effect = True
            request.stored_parts, request.stored_results = partial.stored_parts, partial.stored_results
        self._waiting[connection.peer.fileno()] = connection
        return request

    def slices(self, connections: Iterable[ClientConnection]) -> Iterator[ClientConnection]:
        """Yield the connections whose large requests have a slice in this turn; the caller resumes each.

        `connections` were served in this turn already. If one of them has a reply to send, the large requests wait for
        the next turn, unless they have waited in the turn before. Connections that lost their request to another one
        are yielded too, so that the caller closes them.
        """
        while self._superseded:
            yield self._superseded.pop()
        now_s = self._requests.now_s()
        if any(connection.peer.outbox for connection in connections):
            self._small_at_s = now_s
            if not self._was_skipped:
                self._was_skipped = True
                return
        self._was_skipped = False
        is_alone = now_s - self._small_at_s > limits.ALONE_SECONDS
        self._budget = TimeBudget(limits.LARGE_SECONDS_ALONE if is_alone else limits.LARGE_SECONDS_PER_TURN)
        while self._waiting:
            self._current = self._waiting.pop(next(iter(self._waiting)))
            yield self._current
            if self._budget.is_spent():
                break
        self._current = None

    def advance(self, connection: ClientConnection, request: LargeRequest) -> bool:
        """Execute a slice of a request, if it is its turn. Return True if the request was answered."""
        if connection is not self._current:
            return False
        self._current = None
        session, done, revision = request.session, len(request.results), self._journal.revision
        self._requests.advance(request, session, connection.uploads.held, self._budget)
        request.has_effect |= self._journal.revision != revision
        if request.is_complete:
            self._reply_cache.complete(connection, request, request.results[done:])
            connection.uploads.release()
            return True
        if self._journal.revision != revision:
            self._store_part(request)
        # A segment may be retired before the reply is complete, so its descriptor is sent now.
        self._sharing.share_for_results(connection, request.results[done:])
        self._waiting[connection.peer.fileno()] = connection
        return False

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended. The session remembers what its large request has executed."""
        self._waiting.pop(connection.peer.fileno(), None)
        request = connection.deferred
        if isinstance(request, LargeRequest):
            connection.deferred = None
            self._suspend(request)

    def _suspend_elsewhere(self, session: SessionRecord, request_id: int) -> None:
        """Suspend a request that another connection of the session has sent: its client has given that one up."""
        for connection in [*self._waiting.values()]:
            request = connection.deferred
            if isinstance(request, LargeRequest) and request.request_id == request_id and request.session is session:
                del self._waiting[connection.peer.fileno()]
                self._suspend(request)
                request.results.clear()  # they are the session's now, and are not remembered twice
                connection.peer.is_open = False
                self._superseded.append(connection)

    def _suspend(self, request: LargeRequest) -> None:
        """Have the session remember the results so far. Reads alone are executed again instead."""
        if request.results and not request.only_reads:
            partial = PartialReply([encode_results(request.results)], request.stored_parts, request.stored_results)
            request.session.suspend(request.request_id, partial)

    def _store_part(self, request: LargeRequest) -> None:
        """Store the results that the store does not have, in the same commit as the changes that they report."""
        if self._journal.is_durable:
            results = encode_results(request.results[request.stored_results :])
            self._journal.record_reply_part(
                ReplyPart(request.session.session_id, request.request_id, request.stored_parts, results)
            )
            request.stored_parts += 1
            request.stored_results = len(request.results)

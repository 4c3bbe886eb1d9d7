"""The reply cache: a request that is sent again gets the reply that it got, and has no second effect.

A client that loses its connection does not know whether its request took effect, so it reconnects and sends the request
again under the same number. The session remembers the encoded reply of each request that could have changed something,
until the client says that it has arrived (`answered`). A reply to a request that changed the state is also written to
the store in the same commit, so that the promise survives a crash of the manager: after a restart either both the
effect and the reply are there, or neither is.

Requests that only read are executed again instead, because remembering them would cost memory and protect nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from stepwell import limits
from stepwell.domain.commands import Read
from stepwell.errors import InvalidArgument, OutcomeUnknown
from stepwell.manager.connection import ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.request_handler import AnyRequest, Asked, LargeRequest, RequestHandler
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.protocol.codec import encoded_frame
from stepwell.protocol.messages import AskStatus, Refusal, Response, Result, Status


class ReplyCache:
    """Executes each request once, and puts its reply into the outbox of the connection.

    The loop owns the one instance. Descriptors of segments, and notices of retired ones, are put into the outbox before
    the reply that needs them, because the client maps segments in the order of arrival.
    """

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, journal: Journal) -> None:
        self._requests = requests
        self._sharing = sharing
        self._journal = journal
        self.commands_at_once = limits.SMALL_REQUEST_COMMANDS
        """The number of commands up to which a request is executed when it arrives."""

    def respond(self, connection: ClientConnection, session: SessionRecord, message: AnyRequest) -> bool:
        """Execute a request and send its reply, or send the remembered reply of an earlier execution.

        A request so old that its reply is forgotten gets `OutcomeUnknown`. Return False, and do nothing, if the request
        is a large one that was not answered yet: it is executed in slices (see `large_requests`).
        """
        try:
            frame = session.recall(message.request_id, message.answered)
        except OutcomeUnknown as error:
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._requests.revision),)))
            return True
        if frame is not None:
            connection.peer.send_frame(frame)
        elif len(message.commands) > self.commands_at_once:
            return False
        elif _only_reads(message.commands):
            self._answer_read(connection, self._requests.respond(message, session, connection.uploads.held))
        else:
            self._answer_write(connection, session, message)
        return True

    def complete(self, connection: ClientConnection, request: LargeRequest, latest: Sequence[Result]) -> None:
        """Remember and send the reply of a large request that is complete.

        `latest` are the results whose segments have not been shared yet. Notices of retired segments go behind the
        reply, because earlier results may have handles into them.
        """
        if request.only_reads:
            self._sharing.share_for_results(connection, latest)
            self._send(connection, request.response)
        else:
            session = request.session
            frame = self._remembered(session, request.response, is_stored=request.has_effect)
            if request.stored_parts:
                self._journal.record_completion(session.session_id, request.request_id)
            self._sharing.share_for_results(connection, latest)
            connection.peer.send_frame(frame)
        self._sharing.send_retired(connection)

    def _answer_read(self, connection: ClientConnection, response: Response) -> None:
        """Send the response to a request that only read. It is not remembered.

        Segments are shared before the response is encoded: an encoded response that is too large is replaced, and the
        descriptors that were sent for it do no harm.
        """
        self._sharing.send_segments_for(connection, response)
        self._send(connection, response)

    def _send(self, connection: ClientConnection, response: Response) -> None:
        try:
            connection.peer.send(response)
        except InvalidArgument:  # too large for a frame
            connection.peer.send(self._requests.with_unknown_outcomes(response))

    def _answer_write(self, connection: ClientConnection, session: SessionRecord, message: AnyRequest) -> None:
        """Execute a request that may change something, remember its reply, and send it.

        The order matters. The reply is remembered before it is sent, and committed together with the effect: whatever
        is lost on the way, a request that is sent again finds its reply.
        """
        revision = self._journal.revision
        response = self._requests.respond(message, session, connection.uploads.held)
        frame = self._remembered(session, response, is_stored=self._journal.revision != revision)
        self._sharing.send_segments_for(connection, response)
        connection.peer.send_frame(frame)

    def _remembered(self, session: SessionRecord, response: Response, *, is_stored: bool) -> bytes:
        """Remember a response, and return it as a frame.

        The response is encoded once: the same frame is remembered, stored and sent. It is stored only if the revision
        moved, because a request without effect may be executed again after a crash.
        """
        try:
            frame = encoded_frame(response)
        except InvalidArgument:  # too large for a frame, but the commands have taken effect
            frame = encoded_frame(self._requests.with_unknown_outcomes(response))
        session.remember(response.request_id, frame)
        if is_stored:
            self._journal.record_reply(session.session_id, response.request_id, frame)
        return frame

    def report(
        self,
        connection: ClientConnection,
        session: SessionRecord,
        message: AskStatus,
        *,
        uptime_s: float,
        peers: int,
        sessions: int,
        evicted: int,
    ) -> None:
        """Send the status of the manager. The loop passes in what only the loop knows."""
        store = self._journal.store
        self._sharing.send_retired(connection)
        connection.peer.send(
            Status(
                request_id=message.request_id,
                pid=os.getpid(),
                epoch=store.epoch,
                revision=self._requests.revision,
                requests=self._requests.served,
                metrics=self._requests.metrics(session),
                memory=self._sharing.usage(self._requests.owner.catalogues),
                index=self._sharing.index_usage(self._requests.index_hits, self._requests.index_misses),
                encoding=store.encoding,
                durability=store.durability,
                database=store.database,
                uptime_s=uptime_s,
                peers=peers,
                sessions=sessions,
                evicted=evicted,
            )
        )


def _only_reads(commands: Sequence[Asked]) -> bool:
    """Return True if no command of a request can change anything."""
    if len(commands) == 1:  # the usual case: building a generator would take longer than the command
        return isinstance(commands[0], Read)
    return all(isinstance(command, Read) for command in commands)

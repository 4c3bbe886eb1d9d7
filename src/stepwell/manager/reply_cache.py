"""Answering requests, once: sent again, a request gets the answer that it got, and nothing happens."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stepwell.domain.commands import Read
from stepwell.errors import InvalidArgument, OutcomeUnknown
from stepwell.manager.connection import ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.request_handler import Asked, RequestHandler
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.manager.sessions import SessionRecord
from stepwell.protocol.codec import PartlyDecodedRequest, encode_frame
from stepwell.protocol.messages import AskStatus, Refusal, Request, Response, Status, TransactionRequest


class ReplyCache:
    """Puts answers in outboxes, with whatever has to come before them."""

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, journal: Journal) -> None:
        self._requests = requests
        self._sharing = sharing
        self._journal = journal

    def respond(
        self,
        connection: ClientConnection,
        session: SessionRecord,
        message: Request | TransactionRequest | PartlyDecodedRequest,
    ) -> None:
        """Do what a request asks, unless it has been done."""
        try:
            frame = session.recall(message.request_id, message.answered)
        except OutcomeUnknown as error:
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._requests.revision),)))
            return
        if frame is not None:
            connection.peer.send_frame(frame)
        elif _only_reads(message.commands):
            self._answer_read(connection, self._requests.respond(message, session, connection.uploads.held))
        else:
            self._answer_write(connection, session, message)

    def _answer_read(self, connection: ClientConnection, response: Response) -> None:
        """Answer what can be asked again."""
        self._sharing.send_segments_for(connection, response)
        try:
            connection.peer.send(response)
        except InvalidArgument:  # it does not fit
            connection.peer.send(self._requests.without_answers(response))

    def _answer_write(
        self,
        connection: ClientConnection,
        session: SessionRecord,
        message: Request | TransactionRequest | PartlyDecodedRequest,
    ) -> None:
        """Do what must not be done twice, and remember what it came to."""
        revision = self._journal.revision
        response = self._requests.respond(message, session, connection.uploads.held)
        frame = _framed(response)
        if frame is None:  # it does not fit, but what was asked is done
            frame = _framed(self._requests.without_answers(response))
            assert frame is not None
        session.remember(message.request_id, frame)
        if self._journal.revision != revision:
            self._journal.record_reply(session.session_id, message.request_id, frame)
        self._sharing.send_segments_for(connection, response)
        connection.peer.send_frame(frame)

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
        """Say how the manager is."""
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
    if len(commands) == 1:  # as mostly: a generator would take longer than what is asked
        return isinstance(commands[0], Read)
    return all(isinstance(command, Read) for command in commands)


def _framed(response: Response) -> bytes | None:
    """A response as it travels; None if it is too large for that."""
    frame = bytearray()
    try:
        encode_frame(response, frame)
    except InvalidArgument:
        return None
    return bytes(frame)

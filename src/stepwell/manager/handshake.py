"""The handshake: from Hello to Welcome, and from a connection to its session.

A session is a client, a connection is one of its sockets. A client that reconnects says Hello with the same session id
and continues its session, with its leases and its remembered replies. The Welcome tells it the epoch, so that it
notices a manager with another history, and the live segments, so that it can unmap the others.
"""

from __future__ import annotations

import os

from stepwell.errors import ProtocolError
from stepwell.manager.connection import ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.sessions import SessionRecord, SessionTable
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.protocol.messages import VERSION, Hello, Welcome


class Handshake:
    """Gives each new connection its session: the one that its Hello names, or a new one.

    The loop owns the one instance, and only its thread uses it.
    """

    def __init__(self, sessions: SessionTable, sharing: SegmentSharing, journal: Journal) -> None:
        self._sessions = sessions
        self._sharing = sharing
        self._journal = journal

    def welcome(self, connection: ClientConnection, hello: Hello, revision: int) -> SessionRecord:
        """Attach a connection to the session that Hello names, put the Welcome into its outbox and return the session.

        Raise `ProtocolError` for another version of the protocol or a second Hello, `Conflict` if the session was
        opened with other projects, and `Busy` if there are too many sessions. The connection is then closed by the
        caller.
        """
        if hello.version != VERSION:
            raise ProtocolError(
                f"you speak version {hello.version} of the protocol, this manager version {VERSION}: "
                "install the same stepwell on both sides",
                version=VERSION,
            )
        if connection.session is not None:
            raise ProtocolError("Hello was said already")
        projects = frozenset(hello.projects) if hello.projects is not None else None
        is_new = hello.session_id not in self._sessions
        session = self._sessions.join(hello.session_id, projects, connection.credentials.pid, hello.label)
        if is_new:
            self._journal.record_session(session.row)
        connection.session = session
        connection.peer.allow_large_frames()
        # The client reports the segments that it still has mapped, so that their holders are counted again.
        live = tuple(self._sharing.live)
        self._sharing.holders.add(session, {*hello.mapped} & {*live})
        store = self._journal.store
        connection.peer.send(
            Welcome(
                VERSION, store.epoch, revision, os.getpid(), store.encoding, live, session.generation, store.database
            )
        )
        return session

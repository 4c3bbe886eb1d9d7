"""Welcoming: who a connection belongs to."""

from __future__ import annotations

import os

from stepwell.errors import ProtocolError
from stepwell.manager.connection import ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.manager.sessions import SessionRecord, SessionTable
from stepwell.protocol.messages import VERSION, Hello, Welcome


class Handshake:
    """Gives a guest its session, an old one if it has one."""

    def __init__(self, sessions: SessionTable, sharing: SegmentSharing, journal: Journal) -> None:
        self._sessions = sessions
        self._sharing = sharing
        self._journal = journal

    def welcome(self, guest: ClientConnection, hello: Hello, revision: int) -> SessionRecord:
        """From now on the guest may ask."""
        if hello.version != VERSION:
            raise ProtocolError(
                f"you speak version {hello.version} of the protocol, this manager version {VERSION}: "
                "install the same stepwell on both sides",
                version=VERSION,
            )
        if guest.session is not None:
            raise ProtocolError("Hello was said already")
        projects = frozenset(hello.projects) if hello.projects is not None else None
        is_new = hello.session_id not in self._sessions
        session = self._sessions.join(hello.session_id, projects, guest.credentials.pid)
        if is_new:
            self._journal.welcome(session.row)
        guest.session = session
        guest.peer.allow_large_frames()
        live = tuple(self._sharing.live)
        self._sharing.holders.give(session, {*hello.mapped} & {*live})
        store = self._journal.store
        guest.peer.send(
            Welcome(
                VERSION, store.epoch, revision, os.getpid(), store.encoding, live, session.generation, store.database
            )
        )
        return session

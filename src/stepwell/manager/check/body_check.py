"""The check of bodies: each one is read, expanded and hashed, and compared with the rows that refer to it.

Bodies are read one at a time and in slices, because all of them together may be larger than memory. A body that cannot
be read is a problem of that body and not the end of the check.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence

from stepwell.domain.state import State
from stepwell.errors import StoreDamaged
from stepwell.memory.compression import unpack_slices
from stepwell.storage.database import UNREADABLE
from stepwell.storage.load import StoredBody
from stepwell.text import plural


class BodyCheck:
    """Compares the stored bodies with the references of a state. Used once, by one thread.

    After `examine`, `counted` is the number of fragments whose body is text, and `differing` the number of those whose
    stored token count differs from `count`.
    """

    def __init__(self, db: sqlite3.Connection, state: State, count: Callable[[bytes], int] | None) -> None:
        self._db = db
        self._state = state
        self._count = count
        self._tokens: dict[bytes, list[int]] = {}  # token counts of fragments, by the digest of their body
        for entry in state.fragments:
            self._tokens.setdefault(entry.row.digest, []).append(entry.row.tokens)
        self.counted = 0
        self.differing = 0

    def examine(self, bodies: Sequence[StoredBody], report: Callable[[str], None]) -> None:
        """Report everything that is wrong with the bodies, each problem with one of the rows that refer to the body.

        The checks go from cheap to expensive: references without a body, wrong sizes, duplicates and shared parts come
        from the rows alone; then each body is read. A body has one problem at most, because the first one usually
        explains the others.
        """
        wrong: dict[bytes, str] = {}
        counts = self._state.bodies.counts
        stored = {body.digest: body for body in bodies}
        for digest, referred in counts.items():
            body = stored.get(digest)
            if body is None:
                wrong[digest] = f"of {plural(referred.size, 'byte')} is not there"
            elif body.size != referred.size:
                wrong[digest] = (
                    f"has {plural(body.size, 'byte')} by its row, and {referred.size} by the rows that refer to it"
                )
        for body in bodies:
            if stored[body.digest] is not body:
                report(f"body {body.digest.hex()} is there twice: as number {body.number}, too")
        for upload in _repeated(body.upload for body in bodies):
            report(f"the parts of upload {upload} belong to more than one body")
        for body in bodies:
            try:
                self._check_body(body)
            except StoreDamaged as error:
                wrong.setdefault(body.digest, error.message)
        owners = self._owners(wrong)
        for digest, problem in wrong.items():
            report(f"body {digest.hex()} {problem} ({owners.get(digest, 'nothing refers to it')})")

    def orphans(self, bodies: Iterable[StoredBody]) -> Iterator[str]:
        """Yield notes about bodies and parts without a reference. They are no damage.

        An upload that no request has used, or a manager that died during one, leaves them. The manager deletes them, a
        little at a time, or the next manager does when it starts.
        """
        if count := sum(1 for body in bodies if body.digest not in self._state.bodies):
            bodies_left = plural(count, "body", "bodies")
            yield f"{bodies_left} that nothing refers to: the manager removes such bodies, or the next one does"
        parts, taken = self._db.execute(
            "SELECT count(*), ifnull(sum(length(data)), 0) FROM body_parts WHERE upload NOT IN "
            "(SELECT upload FROM bodies WHERE upload IS NOT NULL)"
        ).fetchone()
        if parts:
            yield (
                f"{plural(parts, 'part of an upload', 'parts of uploads')}, {plural(taken, 'byte')}, without a body: "
                "under way, or to be removed by the manager or the next one"
            )

    def _check_body(self, body: StoredBody) -> None:
        """Read and hash a body. Raise `StoreDamaged` if it cannot be read or is not the one that its digest names.

        The size is checked while the body is read, so that a damaged frame that expands without end is noticed early.
        The text is kept in memory only if its tokens have to be counted.
        """
        tokens = self._tokens.get(body.digest, []) if self._count else []
        digest, size, pieces = hashlib.sha256(), 0, list[bytes]()
        for piece in self._unpacked(body):
            digest.update(piece)
            size += len(piece)
            if size > body.size:
                raise StoreDamaged(f"has more than its {plural(body.size, 'byte')}")
            if tokens:
                pieces.append(piece)
        if size != body.size:
            raise StoreDamaged(f"has {size:,} of its {plural(body.size, 'byte')}")
        if digest.digest() != body.digest:
            raise StoreDamaged(f"is another one: its bytes have the digest {digest.hexdigest()}")
        if tokens:
            self._compare(b"".join(pieces), tokens)

    def _unpacked(self, body: StoredBody) -> Iterator[bytes]:
        """Yield the body's bytes, expanded if they are compressed.

        Raise `StoreDamaged` for everything that goes wrong.
        """
        slices = self._slices(body)
        try:
            yield from unpack_slices(slices) if body.packed else slices
        except StoreDamaged:
            raise
        except UNREADABLE as error:
            raise StoreDamaged(f"cannot be read: {error}") from error
        except Exception as error:  # a decompressor may raise anything for damaged bytes
            raise StoreDamaged(f"cannot be uncompressed: {error}") from error

    def _slices(self, body: StoredBody) -> Iterator[bytes]:
        """Yield the stored bytes of a body in order. Raise `StoreDamaged` at a gap between its parts."""
        if body.upload is None:
            found = self._db.execute("SELECT 0, data FROM bodies WHERE number = ?", (body.number,))
        else:
            query = "SELECT part, data FROM body_parts WHERE upload = ? ORDER BY part"
            found = self._db.execute(query, (body.upload,))
        for expected, (part, data) in enumerate(found):
            if part != expected:
                raise StoreDamaged(f"has no part {expected}")
            if not isinstance(data, bytes):
                raise StoreDamaged(f"has text, or a number, in place of bytes in part {part}")
            yield data

    def _compare(self, text: bytes, tokens: list[int]) -> None:
        """Count the tokens of a body of text, and compare the count with that of each fragment that refers to it.

        A body that is not UTF-8 has no token count by the encoding, and is skipped.
        """
        assert self._count is not None
        try:
            str(text, "utf-8")
        except UnicodeDecodeError:
            return
        count = self._count(text)
        self.counted += len(tokens)
        self.differing += sum(1 for each in tokens if each != count)

    def _owners(self, wrong: Iterable[bytes]) -> dict[bytes, str]:
        """Return one row that refers to each of the bodies, as text."""
        digests, found = set(wrong), dict[bytes, str]()
        if digests:
            for entry in self._state.fragments:
                if entry.row.digest in digests:
                    found.setdefault(entry.row.digest, f"fragment {entry.row.key}")
            for entries in self._state.entries.by_changeset.values():
                for change in entries:
                    for digest, _ in change.held:
                        if digest in digests:
                            found.setdefault(digest, f"entry {change.seq} of changeset {change.changeset_id}")
            for receipt in self._state.receipts:
                if receipt.digest in digests:
                    found.setdefault(receipt.digest, f"receipt {receipt.receipt_id}")
            for serial, run in self._state.logs.entries.by_log.items():
                for appended in run:
                    if appended.digest in digests:
                        found.setdefault(appended.digest, f"entry {appended.position} of log {self._log_name(serial)}")
        return found

    def _log_name(self, serial: int) -> str:
        """Return the project and the name of a log, or its serial if it is gone."""
        log = self._state.logs.by_serial.get(serial)
        return str(serial) if log is None else f"{log.key}"


def _repeated(uploads: Iterable[int | None]) -> list[int]:
    """Return the uploads that more than one body claims."""
    seen, twice = set[int](), list[int]()
    for upload in uploads:
        if upload is not None and upload in seen:
            twice.append(upload)
        elif upload is not None:
            seen.add(upload)
    return twice

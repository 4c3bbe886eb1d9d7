"""The edges of reads without a request: order, refusals, ends of sessions and hostile peers."""

from __future__ import annotations

import itertools
import os
import socket

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session import indexed_reads
from stepwell.client.session.connection_pool import ConnectionPool, PooledConnection
from stepwell.client.session.environment import SYSTEM
from stepwell.client.session.indexed_reads import IndexedReads
from stepwell.client.session.session_rules import SessionRules
from stepwell.domain.tiers.model import FragmentRow
from stepwell.memory.reader import index_reader
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.memory.reader.mappings import Mappings
from stepwell.memory.writer.index_cells import IndexCells
from stepwell.memory.writer.index_slots import IndexSlots
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.fragment_index import (
    CELL_BYTES,
    CELLS,
    VALID_UNTIL,
    IndexRecord,
    decode_record,
    encode_record,
    hash_of,
)
from stepwell.protocol.handles import Handle
from stepwell.protocol.messages import AskStatus, ClientMessage, ReadsReported, Rejected
from stepwell.testing import LocalRuntime

PROJECT = "p"


def fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project=PROJECT, source=fragment_id, body=fragment_id, tokens=1)


def open_index(client: sw.Client, *fragment_ids: str) -> None:
    """Read fragments until the client has the index, so that a further read of them needs no request."""
    for _ in range(3):
        for fragment_id in fragment_ids:
            client.tiers.peek(fragment_id, project=PROJECT)


def test_the_latest_read_decides_about_the_order_of_eviction() -> None:
    """Reads in one report make fragments recent in the order in which each was read last, as requests would."""
    with LocalRuntime(workers=0) as runtime, runtime.client() as client:
        for fragment_id in ("a", "b"):
            client.tiers.store(fragment(fragment_id))
        open_index(client, "a", "b")
        for fragment_id in ("a", "b", "a"):
            client.tiers.get(fragment_id, project=PROJECT)
        (moved,) = client.tiers.evict_lru().moves
        assert moved.fragment_id == "b"


@pytest.mark.parametrize("name", ["\ud800", ["a"]], ids=["surrogate", "unhashable"])
@pytest.mark.parametrize("is_project", [False, True])
@pytest.mark.parametrize("scope", [None, [PROJECT]])
def test_a_name_that_is_no_name_is_refused_as_by_a_request(
    name: str, scope: list[str] | None, *, is_project: bool
) -> None:
    """A name that cannot be looked up gets the refusal that the caller knows, and no error from inside."""
    with LocalRuntime(workers=0) as runtime, sw.connect(runtime.address, projects=scope) as client:
        client.tiers.store(fragment("a"))
        open_index(client, "a")
        for read in (client.tiers.get, client.tiers.peek, client.tiers.contains):
            with pytest.raises(sw.errors.InvalidArgument if scope is None or not is_project else sw.StepwellError):
                read("a" if is_project else name, project=name if is_project else PROJECT)


def test_a_lookup_during_a_restart_leaves_no_record_for_the_next_index() -> None:
    """A thread that looks up in the old index, while another opens the new one, adds nothing to what the new one knows.

    The slots and the stamps of the two are the same, and the fragments in them are not.
    """
    mappings, numbers = Mappings(), itertools.count(1)

    def published(body_revision: int) -> tuple[int, int]:
        """Write an index with one fragment, as a manager does, and map it."""
        slots = IndexSlots(MemorySegment(next(numbers), 64 * 256))
        cells = IndexCells(MemorySegment(next(numbers), 8 * CELL_BYTES))
        slots.prepare()
        cells.prepare()
        slots.words[CELLS], slots.words[VALID_UNTIL] = cells.segment.number, 2**62
        slot = slots.allocate()
        assert slot is not None
        row = FragmentRow(PROJECT, "a", "", "text", 0, 1, 1, bytes(32), sw.Tier.HOT, 0, 0, body_revision, 1, {})
        slots.write(slot, encode_record(IndexRecord(row, Handle(99, 0, 1))))
        cells.add(hash_of(b"k", PROJECT, "a"), slot)
        for each in (slots, cells):
            segment = each.segment
            mappings.map_segment(segment.number, segment.size, os.dup(segment.descriptor))
            each.close()
        return slots.segment.number, cells.segment.number

    reader = IndexReader(mappings)
    first, second = published(1), published(2)
    reader.open(*first, b"k")

    def open_second(encoded: bytes) -> IndexRecord:
        """Decode the record of the old index just after another thread has opened the new one."""
        reader.open(*second, b"k")
        return decode_record(encoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_reader, "decode_record", open_second)
        reader.find((PROJECT, "a"), 2**62)
    found = reader.find((PROJECT, "a"), 2**62)
    assert found is not None
    assert found.row.revision == 2


def test_no_report_breaks_the_status() -> None:
    """A peer cannot report so many misses that their sum is no number that the status can carry."""
    with LocalRuntime(workers=0) as runtime, runtime.client() as client:
        connections = client.tiers.session.channel.connections
        connection = connections.acquire()
        connection.send(ReadsReported((), 2**64 - 1))
        assert isinstance(connection.exchange(AskStatus(1)), Rejected)
        connections.discard(connection)
        assert client.tiers.session.status().index.misses < 2**63


def test_reads_of_other_threads_do_not_keep_a_thread_reporting() -> None:
    """A thread reports what was read before it began, even while others read more than it reports."""
    with LocalRuntime(workers=0) as runtime, runtime.client([PROJECT]) as client:
        client.tiers.store(fragment("a"))
        open_index(client, "a")
        channel = client.tiers.session.channel
        found = channel.reads.index.find((PROJECT, "a"), 2**62)
        assert found is not None
        read = found
        channel.reads.reads.append(read)
        sent: list[ClientMessage] = []

        class Busy:
            """A connection during whose sends other threads read."""

            def send(self, message: ClientMessage) -> None:
                raise AssertionError(message)

            def send_with_next(self, message: ClientMessage) -> None:
                sent.append(message)
                if len(sent) < 10:
                    channel.reads.reads.append(read)

        channel.report(Busy())
        assert len(sent) == 1


def test_closing_does_not_wait_for_a_manager_that_reads_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is larger than what the socket takes is given up after the time that a goodbye has."""
    monkeypatch.setattr(limits, "GOODBYE_SECONDS_MAX", 0.001)
    ours, other = socket.socketpair()
    with other:
        connection = PooledConnection(ours, lambda _connection, _message: None)
        rules = SessionRules("/nowhere", None, "session")
        mappings = Mappings()
        pool = ConnectionPool(rules, mappings, IndexedReads(mappings, None), SYSTEM)
        pool.release(connection)
        large = ReadsReported(tuple((PROJECT, f"{number:0500}", 1) for number in range(1_000)))

        def report(idle: PooledConnection) -> None:
            for _ in range(10):
                idle.send(large)

        pool.close(holds_leases=False, report=report)
        assert ours.fileno() < 0


def test_a_client_with_another_clock_has_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client in another time namespace asks for every read: it could not tell when the manager has died."""
    with LocalRuntime(workers=0) as runtime, runtime.client() as client:
        client.tiers.store(fragment("a"))
        monkeypatch.setattr(indexed_reads, "clock_namespace", lambda: "time:[1]")
        open_index(client, "a")
        assert client.tiers.session.reads.find(PROJECT, "a") is None
        assert client.tiers.get("a", project=PROJECT).text == "a"

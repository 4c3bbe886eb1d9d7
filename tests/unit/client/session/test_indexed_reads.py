"""Reads without a request: where they are answered, and how the manager is told of them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.boot import clock_namespace
from stepwell.client.session import indexed_reads
from stepwell.client.session.indexed_reads import IndexedReads
from stepwell.memory.reader import index_reader
from stepwell.memory.writer import fragment_index
from stepwell.protocol.messages import ClientMessage, IndexOpened, ReadsReported, SegmentInfo
from stepwell.testing import LocalRuntime
from stepwell.transport.connection import Connection
from tests.support.client.sessions import fragment, in_threads
from tests.support.memory.fragment_index import BootClock, IndexHarness, index_harness
from tests.support.processes import in_forked_child


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    """The clock of readers and writer, which stands still: nothing expires on a busy machine."""
    made = BootClock()
    for module in (fragment_index, index_reader, indexed_reads):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def runtime(clock: BootClock) -> Iterator[LocalRuntime]:
    assert clock.now_ns
    with LocalRuntime(workers=0, log_level=sw.LogLevel.ERROR) as started:
        yield started


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[ClientMessage]:
    """All messages of clients, in order."""
    found: list[ClientMessage] = []
    sending = Connection.send, Connection.send_with_next
    exchange = Connection.exchange

    def watched_send(self: Connection, message: ClientMessage) -> None:
        found.append(message)
        sending[0](self, message)

    def watched_send_with_next(self: Connection, message: ClientMessage) -> None:
        found.append(message)
        sending[1](self, message)

    def watched_exchange(self: Connection, message: ClientMessage) -> object:
        found.append(message)
        return exchange(self, message)

    monkeypatch.setattr(Connection, "send", watched_send)
    monkeypatch.setattr(Connection, "send_with_next", watched_send_with_next)
    monkeypatch.setattr(Connection, "exchange", watched_exchange)
    return found


def ready(client: sw.Client, *names: str) -> None:
    """Store fragments and read them: the first read opens the index, and the answer to a later one announces it."""
    for name in names:
        client.tiers.store(fragment(name, name))
    for name in (*names, *names):
        client.tiers.get(name)
    client.status()
    assert all(client.tiers._peek_indexed(name, None) for name in names)


def reports(sent: list[ClientMessage]) -> Counter[str]:
    """All reads that were reported: how many of each fragment."""
    found: Counter[str] = Counter()
    for message in sent:
        if isinstance(message, ReadsReported):
            for _, name, count in message.reads:
                found[name] += count
    return found


def counted(client: sw.Client, name: str) -> int:
    """The accesses that the manager has counted."""
    with client.batch() as batch:
        asked = batch.tiers.peek(name)
    return asked.result().access_count


class TestReading:
    def test_no_request(self, client: sw.Client, sent: list[ClientMessage]) -> None:
        """`get`, `peek`, `contains` and `get_many` of hot fragments send nothing, and return what a request would."""
        ready(client, "a", "b")
        asked = client.tiers.get("a")
        sent.clear()
        found = client.tiers.get("a")
        assert (found.row, found.text, found.access_count) == (asked.row, "a", asked.access_count + 1)
        assert client.tiers.peek("a").access_count == found.access_count
        assert client.tiers.contains("b")
        assert [*client.tiers.get_many(["b", "a"])] == ["b", "a"]
        assert sent == []

    def test_batch_goes_with_the_batch(self, client: sw.Client) -> None:
        """What is inside takes effect there, in order."""
        ready(client, "a")
        with client.batch() as batch:
            batch.tiers.store(fragment("a", "new"))
            read = batch.tiers.get("a")
        assert read.result().text == "new"

    def test_own_write_is_seen(self, client: sw.Client) -> None:
        """After the reply, whatever the client has read before."""
        ready(client, "a")
        for number in range(50):
            client.tiers.store(fragment("a", f"body {number}"))
            assert client.tiers.get("a").text == f"body {number}"
        client.tiers.demote("a")
        assert client.tiers.peek("a").tier == sw.Tier.WARM
        client.tiers.delete("a")
        assert not client.tiers.contains("a")
        with pytest.raises(sw.NotFound):
            client.tiers.get("a")

    def test_scope(self, runtime: LocalRuntime, sent: list[ClientMessage]) -> None:
        """A project outside of it is not even looked up: the manager refuses it."""
        with runtime.client(["p"]) as client, runtime.client(["q"]) as other:
            ready(client, "a")
            ready(other, "a")
            sent.clear()
            assert other.session.reads.find("p", "a") is None
            assert other.session.reads.index.find(("q", "a"), 2**62) is not None
            for call in (other.tiers.get, other.tiers.peek, other.tiers.contains):
                with pytest.raises(sw.OutOfScope):
                    call("a", project="p")

    def test_without_an_index(self, clock: BootClock) -> None:
        """Every read is a request, and is right."""
        assert clock.now_ns
        with LocalRuntime(workers=0, read_index=False) as runtime, runtime.client(["p"]) as client:
            client.tiers.store(fragment("a"))
            for _ in range(3):
                assert client.tiers.get("a").text == "body"
            assert client.tiers._get_indexed("a", None) is None
            assert client.status().index == type(client.status().index)(0, 0, 0, 0)

    def test_body_that_is_not_mapped(self, client: sw.Client, sent: list[ClientMessage]) -> None:
        """Its segment comes with the answer to a request."""
        ready(client, "a")
        found = client.session.reads.find(client.session.project_or_default(None), "a")
        assert found is not None
        client.session.channel.mappings.retire([found.handle.segment])
        assert client.session.reads.index.body_of(found) is None
        assert client.tiers._peek_indexed("a", None) is None
        assert client.tiers.contains("a")
        assert client.session.reads.reads == type(client.session.reads.reads)()
        assert sent

    def test_closed(self, client: sw.Client) -> None:
        """A closed client reads nothing, also not in shared memory."""
        ready(client, "a")
        client.close()
        with pytest.raises(sw.StepwellError):
            client.tiers.get("a")


class TestReports:
    def test_ahead_of_the_next_request(self, client: sw.Client, sent: list[ClientMessage]) -> None:
        """Whatever it is, also if it is refused; once."""
        ready(client, "a", "b")
        client.status()
        sent.clear()
        for name in "aab":
            client.tiers.get(name)
        assert sent == []
        with pytest.raises(sw.NotFound):
            client.tiers.delete("none")
        assert isinstance(sent[0], ReadsReported)
        assert {(name, count) for _, name, count in sent[0].reads} == {("a", 2), ("b", 1)}
        sent.clear()
        client.status()
        assert reports(sent) == Counter()
        assert counted(client, "a") == 4

    def test_after_a_number_of_reads(
        self, client: sw.Client, sent: list[ClientMessage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client that only reads sends a request then."""
        monkeypatch.setattr(indexed_reads, "_READS_MASK", 3)
        ready(client, "a")
        client.status()
        sent.clear()
        for _ in range(4):
            client.tiers.get("a")
        assert sent == []
        client.tiers.get("a")
        assert reports(sent) == {"a": 4}
        assert len(client.session.reads.reads) == 0

    def test_after_a_time(self, client: sw.Client, clock: BootClock, sent: list[ClientMessage]) -> None:
        """And then not again before as much time has passed."""
        ready(client, "a")
        client.tiers.get("a")
        sent.clear()
        clock.forward(limits.INDEX_REPORT_MS)
        assert client.tiers.get("a").text == "a"
        assert reports(sent) == {"a": 1}
        sent.clear()
        clock.forward(limits.INDEX_REPORT_MS - 1)
        client.tiers.get("a")
        assert sent == []

    def test_at_the_end(self, runtime: LocalRuntime) -> None:
        """What is left is reported when the client is closed."""
        with runtime.client(["p"]) as watching:
            with runtime.client(["p"]) as client:
                ready(client, "a")
                before = counted(watching, "a")
                for _ in range(7):
                    client.tiers.get("a")
            assert watching.status().index.hits == 7
            assert counted(watching, "a") == before + 7

    def test_never_sent_twice(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """The accesses of a report whose connection broke are lost, and the request behind it is not."""
        ready(client, "a")
        for _ in range(3):
            client.tiers.get("a")
        attempts: list[ReadsReported] = []
        send = Connection.send_with_next

        def broken(self: Connection, message: ClientMessage) -> None:
            send(self, message)
            if isinstance(message, ReadsReported):
                attempts.append(message)
                self.interrupt()

        monkeypatch.setattr(Connection, "send_with_next", broken)
        client.tiers.store(fragment("b"))
        assert len(attempts) == 1
        assert client.tiers.contains("b")
        assert client.status().index.hits == 0

    def test_request_that_cannot_be_encoded(self, client: sw.Client) -> None:
        """It is refused before a byte is sent. The reads before it go with the next request."""
        ready(client, "a")
        client.status()
        before = counted(client, "a")
        client.tiers.get("a")
        with pytest.raises(sw.InvalidArgument):
            client.tiers.delete("\ud800")
        assert counted(client, "a") == before + 1

    def test_long_reports_are_several(
        self, client: sw.Client, sent: list[ClientMessage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each within the bound of a message."""
        monkeypatch.setattr(limits, "INDEX_READS_PER_REPORT_MAX", 2)
        ready(client, "a", "b", "c")
        client.status()
        sent.clear()
        for name in "abc" * 5:
            client.tiers.get(name)
        client.status()
        assert [len(each.reads) for each in sent if isinstance(each, ReadsReported)] == [2, 1]
        assert reports(sent) == {"a": 5, "b": 5, "c": 5}

    def test_many_reads_of_one(self, client: sw.Client, sent: list[ClientMessage]) -> None:
        """The number of reads of a fragment is not bounded by the number of fragments in a report."""
        ready(client, "a")
        client.status()
        before = counted(client, "a")
        sent.clear()
        for _ in range(limits.INDEX_READS_PER_REPORT_MAX + 1):
            client.tiers.get("a")
        client.status()
        assert reports(sent) == {"a": limits.INDEX_READS_PER_REPORT_MAX + 1}
        assert counted(client, "a") == before + limits.INDEX_READS_PER_REPORT_MAX + 1

    def test_misses(self, client: sw.Client) -> None:
        """Reads that became requests are counted too, and travel with the next report."""
        ready(client, "a")
        client.tiers.get("a")
        before = client.status().index
        client.tiers.contains("none")
        client.tiers.get("a")
        after = client.status().index
        assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)

    def test_threads_lose_no_count(
        self, runtime: LocalRuntime, client: sw.Client, sent: list[ClientMessage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each read of each thread is reported once, or was a request."""
        monkeypatch.setattr(indexed_reads, "_READS_MASK", 15)
        ready(client, "a")
        before = counted(client, "a")
        threads, reads = 8, 200

        def read(_: int) -> None:
            for _ in range(reads):
                assert client.tiers.get("a").text == "a"

        in_threads(threads, read)
        project = client.session.project_or_default(None)
        client.close()
        with runtime.client([project]) as watching:
            assert counted(watching, "a") == before + threads * reads
        assert sum(reports(sent).values()) <= threads * reads


class TestFork:
    def test_child_reads_as_its_own_session(self, client: sw.Client) -> None:
        """It has no index of its parent and none of its parent's reads to report; the parent has both still."""
        ready(client, "a")
        client.tiers.get("a")

        def read() -> None:
            assert len(client.session.reads.reads) == 0
            assert client.session.reads.index._index is None

        in_forked_child(read)
        assert len(client.session.reads.reads) == 1
        assert client.tiers._peek_indexed("a", None) is not None

    def test_what_it_begins_with(self, client: sw.Client) -> None:
        """Nothing: neither an index, nor reads, nor misses."""
        ready(client, "a")
        client.tiers.get("a")
        reads = client.session.reads
        reads.misses = 3
        reads.in_forked_child()
        assert (len(reads.reads), reads.misses, reads.index._index) == (0, 0, None)


class TestOpening:
    @pytest.fixture
    def harness(self) -> Iterator[IndexHarness]:
        with index_harness() as made:
            made.store("a")
            made.open("a")
            yield made

    @staticmethod
    def announced(harness: IndexHarness) -> tuple[IndexOpened, list[int]]:
        slots, cells = (SegmentInfo(each.number, each.size) for each in harness.index.segments)
        return IndexOpened(slots, cells, harness.index.key, clock_namespace()), [
            os.dup(s.descriptor) for s in harness.index.segments
        ]

    def test_opened(self, harness: IndexHarness) -> None:
        """Both segments are mapped, and the descriptors closed."""
        reads = IndexedReads(harness.mappings, None)
        message, descriptors = self.announced(harness)
        reads.open(message, descriptors)
        assert reads.index.find(("p", "a"), 2**62) is not None
        reads.close()
        for descriptor in descriptors:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(descriptor)

    def test_no_room_for_a_mapping(self, harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that may not map so much goes on without the index, and keeps no descriptor."""
        mappings = type(harness.mappings)()
        reads = IndexedReads(mappings, None)
        message, descriptors = self.announced(harness)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        with monkeypatch.context() as patch:
            patch.setattr("mmap.mmap", refuse)
            reads.open(message, descriptors)
        assert reads.find("p", "a") is None
        for descriptor in descriptors:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(descriptor)

    def test_reports_of_many_threads(self, harness: IndexHarness) -> None:
        """Threads that count and threads that report: each read is in one report."""
        reads = IndexedReads(harness.mappings, None)
        message, descriptors = self.announced(harness)
        reads.open(message, descriptors)
        found = reads.index.find(("p", "a"), 2**62)
        assert found is not None
        popped: list[int] = []
        is_over = threading.Event()

        def report() -> None:
            while not is_over.is_set() or reads.reads:
                popped.extend(count for made in reads.pop_reports() for _, _, count in made.reads)

        def count(_: int) -> None:
            for _ in range(500):
                reads.count(found)

        reporter = threading.Thread(target=report)
        reporter.start()
        try:
            in_threads(4, count)
        finally:
            is_over.set()
            reporter.join()
        assert sum(popped) == 2_000
        assert reads.pop_reports() == []
        reads.close()

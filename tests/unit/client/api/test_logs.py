"""Logs by way of the client: what is appended comes back, in order, alone, in batches and transactions, and watched."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.api.log_entries import StoredLogEntry
from stepwell.protocol.handles import Handle
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import refused
from tests.support.data_directories import serving
from tests.support.memory.bodies import noise
from tests.support.wait import eventually
from tests.unit.client.api.test_arguments import loose


@pytest.fixture
def log(client: sw.Client) -> sw.Log:
    return client.log("a log")


def texts(entries: object) -> list[str]:
    assert isinstance(entries, (sw.types.LogListing, list))
    return [entry.text for entry in entries]


def test_append_and_read(client: sw.Client, log: sw.Log) -> None:
    """Positions and the head come with the append; entries have what they were given, and when."""
    before = client.status().revision
    appended = log.append("one", b"two", sw.LogEntry("three", kind="note", metadata={"by": "alice"}))
    assert isinstance(appended, sw.types.EntriesAppended)
    assert (appended.positions, appended.head) == (range(1, 4), before + 1)
    found = log.since()
    assert (texts(found), found.more, found.head, len(found), found.next_position) == (
        ["one", "two", "three"], False, appended.head, 3, 4,
    )  # fmt: skip
    entry = found[2]
    assert (entry.position, entry.kind, dict(entry.metadata), entry.size, entry.revision) == (
        3, "note", {"by": "alice"}, 5, appended.head,
    )  # fmt: skip
    assert entry.digest == sw.Digest.of(b"three")
    assert entry.appended_at.tzinfo is not None
    assert repr(entry) == f"<stepwell.StoredLogEntry at 3, kind 'note', 5 bytes, revision {appended.head}>"
    assert repr(found) == f"<stepwell.LogListing 3 entries, head {appended.head}>"
    assert texts(log.last(2)) == ["two", "three"]
    assert texts(log.last(5, before=3)) == ["one", "two"]
    assert texts(log.since(1, limit=1)) == ["two"]
    assert log.since(1, limit=1).more
    assert repr(log).startswith("<stepwell.Log 'a log' of ")


@pytest.mark.parametrize("size", [0, 1, limits.INLINE_BODY_BYTES_MAX, limits.INLINE_BODY_BYTES_MAX + 1, 3 << 20])
def test_bodies_of_any_size(log: sw.Log, size: int) -> None:
    """In a frame or beside it, together with others, from shared memory and from where they are later."""
    bodies = [b"before", noise(size, size), b"between", noise(size, size + 1), b"behind"]
    log.append(*bodies)
    for _ in range(2):
        assert [bytes(entry.body) for entry in log.entries()] == bodies
        popped = log.pop()
        assert popped is not None
        assert bytes(popped.body) == b"behind"
        log.append("behind")
        eventually(lambda: log.session.status().memory.waiting == 0)


def test_many_bodies_that_no_frame_has_room_for(log: sw.Log) -> None:
    """Each is small, and all of them are more than a frame: those past a bound are uploaded."""
    bodies = [noise(limits.INLINE_BODY_BYTES_MAX, number) for number in range(150)]
    assert log.append(*bodies).positions == range(1, 151)
    assert [bytes(entry.body) for entry in log.entries()] == bodies
    assert 1 < len(log.since(limit=150)) < 150
    assert log.last(150)[-1].position == 150


def test_extend(log: sw.Log) -> None:
    """Any number, from a generator too, in order; some at a time."""
    appends = log.extend(f"entry {number}" for number in range(1_000))
    assert [each.positions for each in appends] == [range(1, 257), range(257, 513), range(513, 769), range(769, 1_001)]
    assert [entry.text for entry in log.entries(since=990)] == [f"entry {number}" for number in range(990, 1_000)]
    assert log.extend([]) == []


def test_refused_extend(client: sw.Client, log: sw.Log) -> None:
    """It says which appends took effect."""
    client.log("keeper").retain(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOG_ENTRIES_MAX", 300)
        with pytest.raises(sw.PartlyRefused, match="1 of 2 were refused") as caught:
            log.extend(["x"] * 512)
    first, second = caught.value.outcomes
    assert isinstance(first, sw.types.EntriesAppended)
    assert isinstance(second, sw.TierFull)


BAD: dict[str, tuple[Callable[[sw.Client], object], str]] = {
    "no bodies": (lambda c: c.log("l").append(), "append takes 1 to 256 bodies, not 0: extend"),
    "too many bodies": (lambda c: c.log("l").append(*["x"] * 257), "not 257: extend takes any number"),
    "a number for a body": (lambda c: c.log("l").append(loose(5)), "a body is str, bytes or a memoryview, not a int"),
    "one text to extend by": (lambda c: c.log("l").extend("abc"), r"give \[body\]"),
    "malformed name": (lambda c: c.log("a\nb"), "none of them a control character"),
    "lone surrogate in a name": (lambda c: c.log("\ud800"), "lone surrogate"),
    "malformed project": (lambda c: c.log("l", project="no project!"), "a project is 1 to 128"),
    "too long a page": (lambda c: c.log("l").last(1_001), "1 to 1000 rows"),
    "negative position": (lambda c: c.log("l").since(-1), "a position is a whole number"),
    "no retention": (lambda c: c.log("l").retain(0), "at least 1"),
    "watch from nowhere": (lambda c: c.log("l").watch(since=-1), "0 for the beginning"),
    "watch from a text": (lambda c: c.log("l").watch(since=loose("3")), "since is a position"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument(client: sw.Client, name: str) -> None:
    bad, advice = BAD[name]
    with refused(client, sw.InvalidArgument, advice):
        bad(client)


def test_expected_head(log: sw.Log) -> None:
    """Each of the writes is compare-and-set if the caller wants it."""
    head = log.append("a", expected_head=0).head
    for write in (
        lambda: log.append("b", expected_head=0),
        lambda: log.pop(expected_head=0),
        lambda: log.clear(expected_head=0),
        lambda: log.retain(5, expected_head=0),
        lambda: log.delete(expected_head=0),
    ):
        with pytest.raises(sw.Conflict, match=f"head {head}, not 0") as caught:
            write()
        assert caught.value.details == {"expected": 0, "actual": head}
    head = log.append("b", expected_head=head).head
    assert log.retain(3, expected_head=head).keep_entries == 3
    log.delete(expected_head=log.status().head)
    assert log.status().head == 0


def test_transaction(client: sw.Client, log: sw.Log) -> None:
    """An append stands beside stores, at one revision or not at all; what was popped in it has its body."""
    log.append("old")
    with client.transaction() as transaction:
        appended = transaction.log("a log").append("new", noise(100_000))
        also = transaction.log("another").append(noise(100_000, 1), "x")
        popped = transaction.log("another").pop()
        stored = transaction.tiers.store(sw.Fragment(fragment_id="a", body="b", tokens=1))
    assert appended.result().head == also.result().head == stored.result().revision
    entry = popped.result()
    assert entry is not None
    assert (entry.text, bytes(client.log("another").last()[0].body)) == ("x", noise(100_000, 1))
    with pytest.raises(sw.TransactionAborted), client.transaction() as transaction:
        transaction.log("a log").append("never")
        transaction.log("a log").append("never", expected_head=1)
    assert [entry.size for entry in log.entries()] == [3, 3, 100_000]


def test_batch(client: sw.Client, log: sw.Log) -> None:
    """Reads and writes of logs, each with an outcome of its own."""
    with client.batch() as batch:
        inside = batch.log("a log")
        first, conflict, found = inside.append("a"), inside.append("b", expected_head=0), inside.last(5)
        popped, status = inside.pop(), inside.status()
    assert (first.result().first_position, texts(found.result())) == (1, ["a"])
    with pytest.raises(sw.Conflict):
        conflict.result()
    entry = popped.result()
    assert entry is not None
    assert (entry.text, status.result().entries) == ("a", 0)
    assert log.pop() is None


def test_list(client: sw.Client) -> None:
    """The logs of a project, by name, page by page, each with its status."""
    for name in ("c", "a", "b"):
        client.log(name).append(name)
    page = client.logs.list(limit=2)
    assert [each.name for each in page] == ["a", "b"]
    assert isinstance(page.logs[0], sw.types.LogStatus)
    assert {each.entries for each in page} == {1}
    assert [each.name for each in client.logs.list(cursor=page.cursor)] == ["c"]


def test_scope(runtime: LocalRuntime, client: sw.Client, log: sw.Log) -> None:
    """A session of another project neither reads nor writes it."""
    log.append("secret")
    assert client.projects is not None
    with runtime.client(projects=["elsewhere"]) as other:
        for call in (
            lambda: other.log("a log", project=log.project).last(),
            lambda: other.logs.list(project=log.project),
        ):
            with pytest.raises(sw.OutOfScope):
                call()


def test_entry_outlives_its_log(log: sw.Log) -> None:
    """It holds its body; a copy and a pickle have one of their own."""
    log.append(noise(1_000))
    (entry,) = log.last()
    log.delete()
    for each in (entry, copy.deepcopy(entry), pickle.loads(pickle.dumps(entry))):  # noqa: S301 - our own
        assert (bytes(each.body), each.position, each.row) == (noise(1_000), 1, entry.row)


def test_popped_body_that_was_moved(log: sw.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for when it is used, and the pop is not made again: no other entry goes."""
    log.append("one", "two")
    read = log.session.bodies.read

    def moved(_digest: bytes, _handle: Handle) -> memoryview:
        monkeypatch.setattr(log.session.bodies, "read", read)
        raise sw.BodyGone("it was moved")

    monkeypatch.setattr(log.session.bodies, "read", moved)
    popped = log.pop()
    assert popped is not None
    assert (popped.text, texts(log.since())) == ("two", ["one"])


def test_popped_body_whose_time_is_over(log: sw.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pop has taken effect, so that it is no error; only the body is gone, also in a transaction."""
    log.append("one", "two", "three")
    monkeypatch.setattr(limits, "LOG_POPPED_MAX", 1)
    read = log.session.bodies.read

    def moved(_digest: bytes, _handle: Handle) -> memoryview:
        monkeypatch.setattr(log.session.bodies, "read", read)
        with served_from_elsewhere.batch() as batch:
            batch.log("a log").pop()
        raise sw.BodyGone("it was moved")

    assert log.project
    with sw.connect(log.session.channel.address, projects=[log.project]) as served_from_elsewhere:
        monkeypatch.setattr(log.session.bodies, "read", moved)
        popped = log.pop()
    assert popped is not None
    assert (popped.position, popped.size) == (3, 5)
    with pytest.raises(sw.BodyGone, match="readable for a minute"):
        _ = popped.body
    assert pickle.loads(pickle.dumps(popped)) == popped  # noqa: S301 - our own
    assert texts(log.since()) == ["one"]


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Entries, gaps, retention and heads, of a log and of what was deleted; the next position is the next one."""
    with serving(tmp_path) as address, sw.connect(address, projects=["p"]) as client:
        log = client.log("log")
        log.append("a", noise(200_000), "c")
        log.pop()
        log.append("d")
        log.retain(10, age_ms=10_000_000)
        client.log("gone").append("x")
        client.log("gone").delete()
        before, found = log.status(), [(entry.position, bytes(entry.body)) for entry in log.entries()]
    with serving(tmp_path) as address, sw.connect(address, projects=["p"]) as client:
        log = client.log("log")
        assert log.status() == before
        assert [(entry.position, bytes(entry.body)) for entry in log.entries()] == found
        assert [each.name for each in client.logs.list()] == ["log"]
        assert log.append("e", expected_head=before.head).first_position == before.next_position


def test_watch(client: sw.Client, log: sw.Log) -> None:
    """From a position on, and then each new entry, however many at a time; other logs do not count."""
    log.append("one", "two")
    with log.watch(since=1) as watch:
        first = watch.get(60)
        assert first is not None
        assert (first.text, watch.position) == ("two", 2)
        assert watch.get(0) is None
        client.log("other").append("elsewhere")
        log.append(*[str(number) for number in range(250)])
        log.append("last")
        assert [entry.text for _, entry in zip(range(251), watch, strict=False)][-2:] == ["249", "last"]
        assert repr(watch) == "<stepwell.LogWatch of 'a log' at position 253>"
    assert watch.get() is None
    with log.watch() as now, log.watch(since=0) as everything:
        log.append("now")
        assert [entry.text for _, entry in zip(range(1), now, strict=False)] == ["now"]
        assert [entry.position for _, entry in zip(range(254), everything, strict=False)] == [*range(1, 255)]


def test_watch_of_a_log_that_does_not_exist_yet(log: sw.Log) -> None:
    for since in (None, 0):
        with log.watch(since) as watch:
            assert watch.get(0) is None
            log.append("first")
            entry = watch.get(60)
            assert entry is not None
            assert entry.position == 1
        log.delete()
    with pytest.raises(sw.InvalidArgument, match="since=5 is no position of log 'a log', whose next one is 1"):
        log.watch(since=5)


@pytest.mark.parametrize("remove", ["clear", "retain", "expire"])
def test_watch_that_missed_entries(log: sw.Log, remove: str) -> None:
    """It is told once, with the position, and goes on behind it; entries that were popped are not missed."""
    log.append("one", "two", "three")
    watch = log.watch(since=1)
    match remove:
        case "clear":
            log.clear()
        case "retain":
            log.append("four")
            log.retain(1)
        case _:
            log.retain(age_ms=1)
            eventually(lambda: not len(log.since()))
    first = log.status().first_position
    with pytest.raises(sw.EntriesMissed, match=f"entries 2 to {first - 1} of log 'a log'") as caught:
        watch.get(60)
    assert (caught.value.details["resume"], watch.position) == (first - 1, first - 1)
    log.retain()
    log.append("five", "six")
    log.pop()
    log.append("seven")
    wanted = ["four"] * (remove == "retain") + ["five", "seven"]
    assert [entry.text for _, entry in zip(wanted, watch, strict=False)] == wanted
    watch.close()


def test_watch_of_a_log_that_is_begun_anew(log: sw.Log) -> None:
    """It is told, and goes on with the new one from its beginning."""
    log.append("one")
    with log.watch(since=1) as watch:
        log.delete()
        assert watch.get(0) is None
        log.append("a", "b")
        with pytest.raises(sw.EntriesMissed, match="deleted and begun anew") as caught:
            watch.get(60)
        assert caught.value.details["resume"] == 0
        assert [entry.text for _, entry in zip("ab", watch, strict=False)] == ["a", "b"]


def test_watch_whose_events_were_dropped(log: sw.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are read by position: nothing is missing, and nothing is repeated."""
    with log.watch(since=0) as watch:
        missed = iter([sw.EventsMissed("dropped", resume=0)])
        get = watch._events.get

        def get_or_miss(timeout_s: float | None = None) -> sw.events.AnyEvent | None:
            for error in missed:
                raise error
            return get(timeout_s)

        monkeypatch.setattr(watch._events, "get", get_or_miss)
        log.append("a", "b")
        assert [entry.text for _, entry in zip("ab", watch, strict=False)] == ["a", "b"]
        assert watch.get(0) is None


def test_closing_wakes_a_thread_that_waits(log: sw.Log) -> None:
    watch = log.watch()
    got: list[StoredLogEntry | None] = []
    thread = threading.Thread(target=lambda: got.append(watch.get()))
    thread.start()
    watch.close()
    thread.join(60)
    assert got == [None]

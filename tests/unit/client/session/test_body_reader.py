"""Bodies of every size and kind: uploaded beside the frames, read where they lie, readable while they are held."""

import errno
import gc
import mmap
import os
import random
import signal
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.model import TierBudget
from stepwell.limits import KIB, MIB
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.handles import Handle
from stepwell.protocol.messages import ManagerMessage, Refusal, Rejected, Response, UploadGranted
from stepwell.transport.connection import Connection
from tests.support.client.fake_manager import WELCOME, Reply, fake_manager
from tests.support.client.sessions import executing, fragment, in_threads, unchanged
from tests.support.managers import served
from tests.support.peers import kernel_socket
from tests.support.processes import in_forked_child, kill
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

SMALL = TierBudget(arena_bytes=16 * MIB)
"""An arena in which the largest body has no room."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    """A manager in a process of its own, because shared memory is shared with another one."""
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


def noise(size: int, seed: int = 0) -> bytes:
    """A body that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


LARGE = noise(MIB)
ZEROS = bytes(MIB)
"""To whoever expects frames: very many empty ones."""


@contextmanager
def small_runtime() -> Iterator[sw.Client]:
    with (
        sw.Runtime.start(workers=0, budget=SMALL, log_level="error") as runtime,
        runtime.client(projects=["p"]) as client,
    ):
        yield client


def mapped() -> list[str]:
    """Segments that this process has mapped, or has a descriptor of."""
    maps = [line.split()[-2] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:stepwell-" in line]
    names = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return maps + [name for name in names if "memfd:stepwell-" in name]


def is_packed(client: sw.Client, fragment_id: str) -> bool:
    """Whether a body is compressed by now. Looking at it in a view is no access, and moves nothing."""
    found = client.view().get(fragment_id)
    assert found is not None
    return found.handle.is_packed


@pytest.mark.parametrize(
    "size",
    [0, 1, limits.INLINE_BODY_BYTES_MAX, limits.INLINE_BODY_BYTES_MAX + 1, MIB, 20 * MIB, limits.BODY_BYTES_MAX],
)
def test_body_of_any_size_comes_back(client: sw.Client, size: int) -> None:
    """In the frame or beside it, what is read is what was stored, and cannot be written to."""
    body = noise(size)
    placed = client.tiers.store(fragment("a", body))
    found = client.tiers.get("a")
    assert placed.digest == found.digest.value == sha256(body).digest()
    assert found.body == body
    assert found.body.readonly
    client.tiers.delete("a")


def test_body_larger_than_any_is_refused_before_it_is_sent(client: sw.Client) -> None:
    """One byte more than the bound, and the error says what to do."""
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="split it"):
        client.tiers.store(fragment("a", bytes(limits.BODY_BYTES_MAX + 1)))


VIEWS = {
    "plain": memoryview(LARGE),
    "writable": memoryview(bytearray(LARGE)),
    "strided": memoryview(LARGE)[::3],
    "backwards": memoryview(LARGE)[::-1],
    "of numbers": memoryview(array("I", range(100_000))),
    "every other number": memoryview(array("I", range(100_000)))[::2],
    "of two dimensions": memoryview(LARGE).cast("B", (1024, 1024)),
    "small and strided": memoryview(b"abcdef")[::2],
    "small, of numbers": memoryview(array("H", [1, 2, 3])),
    "empty": memoryview(b""),
    "empty, of numbers": memoryview(array("Q")),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_any_shape_is_stored_as_its_bytes(client: sw.Client, name: str) -> None:
    """In the order of its elements, whatever their size and however they lie."""
    view = VIEWS[name]
    client.tiers.store(fragment("a", view))
    assert client.tiers.get("a").body == view.tobytes()


def test_view_of_a_body_is_a_body(client: sw.Client) -> None:
    """What was read from shared memory can be stored again as it lies there."""
    client.tiers.store(fragment("a", LARGE))
    client.tiers.store(fragment("b", client.tiers.get("a").body))
    assert client.tiers.get("b").digest == client.tiers.get("a").digest


def test_long_text_is_text_again(client: sw.Client) -> None:
    """More bytes than characters: what counts is the bytes."""
    text = "gr\u00fc\u00df dich \U0001f600\n" * 10_000
    client.tiers.store(fragment("a", text))
    found = client.tiers.get("a")
    assert found.text == text
    assert found.body == text.encode()


def test_tokens_of_a_large_body_are_counted(client: sw.Client) -> None:
    """As exactly as of a small one."""
    line = "one two three\n"
    (one,) = client.tiers.store_many([sw.Fragment(fragment_id="a", body=line)])
    (many,) = client.tiers.store_many([sw.Fragment(fragment_id="b", body=line * 10_000)])
    assert many.tokens == one.tokens * 10_000


@pytest.mark.parametrize("tier", sw.Tier)
def test_large_body_in_every_tier(client: sw.Client, tier: sw.Tier) -> None:
    """Stored there, and read from there, whether or not its form has followed yet."""
    body = f"a line of {tier} that says the same again\n".encode() * 100_000
    client.tiers.store(fragment("a", body), tier=tier)
    assert client.tiers.get("a").tier is tier
    eventually(lambda: is_packed(client, "a") == (tier is not sw.Tier.HOT))
    found = client.tiers.get("a")
    assert found.handle.is_packed == (tier is not sw.Tier.HOT)
    assert found.body == body


# Many at a time.


def test_small_and_large_among_many(client: sw.Client) -> None:
    """Over several frames, in order, whichever of them need an upload."""
    bodies = {str(number): noise(100 * KIB if number % 7 == 0 else 10, number) for number in range(450)}
    placed = client.tiers.store_many(fragment(name, body) for name, body in bodies.items())
    assert [each.fragment_id for each in placed] == [*bodies]
    found = client.tiers.get_many(bodies)
    assert {name: bytes(each.body) for name, each in found.items()} == bodies
    assert len(client._channel.connections._open) == 1


def test_large_bodies_in_a_batch(client: sw.Client) -> None:
    """Each finds its own upload, also two of one command, and those in between that have none."""
    plan = executing(client, "uploading", (client.projects or ("",))[0])
    context = client.execution(plan.plan_id)
    with client.batch() as batch:
        changes = batch.execution(context)
        changeset = changes.start_changeset()
        stored = [batch.tiers.store(fragment(str(number), noise(100 * KIB, number))) for number in range(3)]
        batch.tiers.store(fragment("small", "small"))
        changes.record_change(sw.Change(path="a", before=noise(100 * KIB, 10), after=noise(100 * KIB, 11)))
        changes.record_change(sw.Change(path="b", before=b"small", after=noise(100 * KIB, 12)))
        read = [batch.tiers.get(str(number)) for number in range(3)]
    assert [each.result().fragment_id for each in stored] == ["0", "1", "2"]
    assert [each.result().body == noise(100 * KIB, number) for number, each in enumerate(read)] == [True] * 3
    first, second = context.entries(changeset.result())
    for content, seed in ((first.before, 10), (first.after, 11), (second.after, 12)):
        assert content is not None
        assert content.digest == sha256(noise(100 * KIB, seed)).digest()


def test_too_many_large_bodies_in_a_batch(client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before any of them is sent."""
    monkeypatch.setattr(limits, "UPLOADS_PER_REQUEST_MAX", 2)
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="3 large bodies are too many at once"):
        with client.batch() as batch:
            for number in range(3):
                batch.tiers.store(fragment(str(number), LARGE))


def test_large_bodies_in_a_transaction(client: sw.Client) -> None:
    """All at one revision."""
    with client.transaction() as transaction:
        stored = [transaction.tiers.store(fragment(str(number), noise(MIB, number))) for number in range(3)]
    assert len({each.revision for each in stored}) == 1
    assert [client.tiers.get(str(number)).body == noise(MIB, number) for number in range(3)] == [True] * 3


def test_diff_of_large_contents(client: sw.Client) -> None:
    """Both sides come from shared memory."""
    plan = executing(client, "diffing", (client.projects or ("",))[0])
    context = client.execution(plan.plan_id)
    changeset_id = context.start_changeset()
    lines = [f"line {number}\n" for number in range(50_000)]
    before, after = "".join(lines), "".join([*lines[:25_000], "another line\n", *lines[25_001:]])
    assert len(before) > limits.INLINE_BODY_BYTES_MAX
    context.record_change(sw.Change(path="a.txt", before=before.encode(), after=after.encode()))
    changed = [line for line in context.diff(changeset_id).splitlines() if line[:1] in "+-"]
    assert changed == ["--- a/a.txt", "+++ b/a.txt", "-line 25000", "+another line"]


def test_threads_upload_at_once(client: sw.Client) -> None:
    """Each on a connection of its own, and none gets another's bytes."""

    def deed(number: int) -> None:
        for count in range(5):
            body = noise(300 * KIB, 100 * number + count)
            client.tiers.store(fragment(str(number), body))
            assert client.tiers.get(str(number)).body == body

    in_threads(8, deed)


# Refused.


def test_upload_without_room_is_the_refusal_of_its_call() -> None:
    """One call, one of a batch, one of many, and the whole of a transaction; the small ones happen."""
    hopeless = bytes(20 * MIB)
    with small_runtime() as client:
        with unchanged(client), pytest.raises(sw.TierFull, match="arena_bytes"):
            client.tiers.store(fragment("large", hopeless))
        with client.batch() as batch:
            refused, stored = batch.tiers.store(fragment("large", hopeless)), batch.tiers.store(fragment("a"))
        with pytest.raises(sw.TierFull):
            refused.result()
        assert stored.result().fragment_id == "a"
        with pytest.raises(sw.PartlyRefused, match="1 of 2") as caught:
            client.tiers.store_many([fragment("large", hopeless), fragment("b")])
        assert [type(each) for each in caught.value.outcomes] == [sw.TierFull, sw.types.FragmentPlaced]
        with unchanged(client), pytest.raises(sw.TransactionAborted) as aborted, client.transaction() as transaction:
            transaction.tiers.store(fragment("c"))
            transaction.tiers.store(fragment("large", hopeless))
        assert aborted.value.details == {"index": 1, "cause": "TierFull"}
        assert client.tiers.get_many(["a", "b", "c", "large"]).keys() == {"a", "b"}
        assert len(client._channel.connections._open) == 1


def test_upload_whose_request_cannot_be_encoded_is_given_up(client: sw.Client) -> None:
    """The body went, the request did not: its room comes back, and the next call works."""
    before = client.status().memory.live_bytes
    batch = client.batch()
    batch.tiers.store(fragment("a", LARGE))
    batch.tiers.get("\ud800")
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="lone surrogate"), batch:
        pass
    eventually(lambda: client.status().memory.live_bytes == before)
    client.tiers.store(fragment("a", LARGE))
    assert client.tiers.get("a").body == LARGE


# The manager goes away.


def store_one(client: sw.Client) -> None:
    client.tiers.store(fragment("a", ZEROS))


def store_many(client: sw.Client) -> None:
    client.tiers.store_many([fragment("a", ZEROS)])


def store_more_than_a_frame(client: sw.Client) -> None:
    client.tiers.store_many(
        [*(fragment(str(number)) for number in range(limits.STREAM_COMMANDS + 100)), fragment("a", ZEROS)]
    )


def store_in_a_batch(client: sw.Client) -> None:
    with client.batch() as batch:
        batch.tiers.store(fragment("a", ZEROS))


def store_in_a_transaction(client: sw.Client) -> None:
    with client.transaction() as transaction:
        transaction.tiers.store(fragment("a", ZEROS))


STORES = {
    each.__name__: each
    for each in (store_one, store_many, store_more_than_a_frame, store_in_a_batch, store_in_a_transaction)
}


@pytest.mark.parametrize("name", STORES)
def test_manager_killed_in_the_middle_of_an_upload(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hangs: the runtime is lost, or, where earlier frames of many went, it may be said that nobody knows."""
    send = Connection.send_body
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:

        def send_half_and_kill(connection: Connection, body: memoryview | bytes) -> None:
            send(connection, body[: len(body) // 2])
            kill(runtime.pid)
            eventually(lambda: not runtime.is_alive())
            send(connection, body[len(body) // 2 :])

        monkeypatch.setattr(Connection, "send_body", send_half_and_kill)
        allowed = sw.OutcomeUnknown if name == "store_more_than_a_frame" else sw.RuntimeLost
        with pytest.raises(allowed):
            STORES[name](client)


def test_manager_killed_between_upload_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Body and request were sent and nothing came back: it may have happened, and is not called failed."""
    send, receive = Connection.send_body, Connection.receive
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        stopped = False

        def send_and_stop(connection: Connection, body: memoryview | bytes) -> None:
            nonlocal stopped
            send(connection, body)
            os.kill(runtime.pid, signal.SIGSTOP)
            stopped = True

        def kill_and_receive(connection: Connection) -> ManagerMessage:
            if stopped:
                kill(runtime.pid)
            return receive(connection)

        monkeypatch.setattr(Connection, "send_body", send_and_stop)
        monkeypatch.setattr(Connection, "receive", kill_and_receive)
        with pytest.raises(sw.OutcomeUnknown):
            client.tiers.store(fragment("a", noise(100 * KIB)))
        eventually(lambda: not runtime.is_alive())


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(
    "conversation, kind",
    [
        ([WELCOME, None], sw.RuntimeLost),
        ([WELCOME, UploadGranted(0, accepted=True), None], sw.RuntimeLost),
        ([WELCOME, Response(1, ())], sw.ProtocolError),
        ([WELCOME, Rejected(Refusal.of(sw.Busy("no"), 0))], sw.Busy),
        ([WELCOME, UploadGranted(0, accepted=True), Rejected(Refusal.of(sw.Busy("no"), 0))], sw.Busy),
        ([WELCOME, UploadGranted(0, accepted=True), Response(1, ()), None], sw.RuntimeLost),
    ],
    ids=[
        "hung up on the offer",
        "hung up on the body",
        "no answer to an offer",
        "turned away",
        "turned away in the middle",
        "spoke out of turn and hung up",
    ],
)
def test_offer_that_is_not_answered_well(name: str, conversation: list[Reply], kind: type[sw.StepwellError]) -> None:
    """A typed error: an upload whose request never went cannot have taken effect, unlike the frames before it."""
    if name == "store_more_than_a_frame":
        conversation = [
            WELCOME,
            Response(1, (Refusal.of(sw.Busy("full"), 0),) * limits.STREAM_COMMANDS),
            *conversation[1:],
        ]
        kind = sw.OutcomeUnknown if kind is sw.RuntimeLost else kind
    is_tried_again = kind is sw.RuntimeLost and name not in {"store_many", "store_more_than_a_frame"}
    with fake_manager(*[conversation] * (1 + is_tried_again)) as address, sw.connect(address, projects=["p"]) as client:
        with pytest.raises(kind):
            STORES[name](client)


# Held.


def test_what_is_held_stays_readable(client: sw.Client, runtime: sw.Runtime) -> None:
    """Deleted, demoted, replaced, or the client closed: it is what it was."""
    with runtime.client(projects=client.projects) as reader:
        held = []
        for name, seed in (("deleted", 1), ("demoted", 2), ("replaced", 3), ("kept", 4)):
            client.tiers.store(fragment(name, noise(MIB, seed)))
            held.append((reader.tiers.get(name), noise(MIB, seed)))
        client.tiers.delete("deleted")
        client.tiers.demote("demoted")
        client.tiers.demote("demoted")
        client.tiers.store(fragment("replaced", noise(MIB, 9)))
        eventually(lambda: reader.status().memory.file_bytes)
        assert [each.body == body for each, body in held] == [True] * 4
    assert [each.body == body for each, body in held] == [True] * 4
    unread = held[0][0]
    with pytest.raises(sw.RuntimeLost, match="closed"):
        reader.tiers.get("kept")
    assert unread.digest.value == sha256(unread.body).digest()


def test_first_look_may_come_after_everything_is_gone() -> None:
    """What `get` gave is mapped already: not even the manager is needed to read it."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(fragment("raw", LARGE))
        client.tiers.store(fragment("packed", b"again and again\n" * 100_000), tier=sw.Tier.WARM)
        eventually(lambda: is_packed(client, "packed"))
        raw, packed = client.tiers.get("raw"), client.tiers.get("packed")
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
    assert raw.body == LARGE
    assert packed.text == "again and again\n" * 100_000


def test_memory_that_cannot_be_mapped(runtime: sw.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to do; no descriptor stays, also not of the segments behind, and the next try can succeed."""
    with runtime.client(projects=["unmappable"]) as client:
        for number in range(3):  # larger than what shares a segment: each has its own
            client.tiers.store(sw.Fragment(fragment_id=str(number), body=noise(3 * MIB, number), tokens=1))
        before = len([*Path("/proc/self/fd").iterdir()])
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", _no_memory)
            with pytest.raises(sw.RuntimeFault, match="cannot be mapped"):
                client.view()
        assert len([*Path("/proc/self/fd").iterdir()]) <= before
        assert [bytes(each.body) for each in client.view()] == [noise(3 * MIB, number) for number in range(3)]


def _no_memory(*_arguments: object, **_keywords: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_closing_lets_go_of_the_memory(runtime: sw.Runtime, client: sw.Client) -> None:
    """No mapping and no descriptor stays, but those of what is still held, and these go with it."""
    client.tiers.store(fragment("a", LARGE))
    client.tiers.store(fragment("b", noise(MIB, 1)))
    before = sorted(mapped())
    reader = runtime.client(projects=client.projects)
    held, other = reader.tiers.get("a"), reader.tiers.get("b")
    during = len(mapped())
    assert during > len(before)
    del other
    reader.close()
    gc.collect()
    assert len(before) < len(mapped()) <= during
    assert held.body == LARGE
    del held
    gc.collect()
    assert sorted(mapped()) == before


def test_client_lets_go_of_what_is_retired() -> None:
    """A long-lived reader of a churning store maps what is there, not what ever was."""
    with small_runtime() as client:
        for number in range(40):
            client.tiers.store(fragment("a", noise(2 * MIB, number)))
            assert client.tiers.get("a").body == noise(2 * MIB, number)
        client.status()
        assert len(client._channel.mappings) <= 10

        def is_released() -> bool:
            """Nothing is gone for the manager and still mapped by us, but the last."""
            client.tiers.metrics()
            return client.status().memory.retired_segments <= 1

        eventually(is_released)


def test_forked_child_maps_by_itself(client: sw.Client) -> None:
    """It reads what it inherited, asks for itself, and the parent's mappings and its count of them are untouched."""
    client.tiers.store(fragment("a", LARGE))
    client.tiers.store(fragment("b", noise(MIB, 1)))
    held = client.tiers.get("a")
    count = len(client._channel.mappings)

    def child() -> None:
        assert len(client._channel.mappings) == 0
        assert held.body == LARGE
        assert client.tiers.get("b").body == noise(MIB, 1)
        assert client.tiers.get("a").body == LARGE
        client.tiers.store(fragment("c", noise(MIB, 2)))
        client.close()
        assert held.body == LARGE

    in_forked_child(child)
    assert len(client._channel.mappings) == count
    assert client.tiers.get("c").body == noise(MIB, 2)
    assert held.body == LARGE


def test_forked_child_counts_tokens_by_itself(client: sw.Client) -> None:
    """In which encoding, it is told by its own first connection."""
    client.tiers.store(sw.Fragment(fragment_id="a", body="one two three"))
    tokens = client.tiers.get("a").tokens

    def child() -> None:
        assert client.tiers.store(sw.Fragment(fragment_id="b", body="one two three")).tokens == tokens
        client.close()

    in_forked_child(child)


# What moves between the answer and the look.


class Elusive:
    """A segment that is gone the first time that somebody looks."""

    def __init__(self, mappings: Mappings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._find = mappings.find
        self.looks = 0
        monkeypatch.setattr(mappings, "find", self.find)

    def find(self, handle: Handle) -> memoryview:
        self.looks += 1
        if self.looks == 1:
            raise sw.BodyGone("moved")
        return self._find(handle)


def get(client: sw.Client) -> sw.StoredFragment:
    return client.tiers.get("a")


def get_many(client: sw.Client) -> sw.StoredFragment:
    return client.tiers.get_many(["a"])["a"]


def get_in_a_batch(client: sw.Client) -> sw.StoredFragment:
    with client.batch() as batch:
        pending = batch.tiers.get("a")
    return pending.result()


@pytest.mark.parametrize("read", [get, get_many, get_in_a_batch])
def test_body_that_moved_meanwhile_is_asked_for_again(
    client: sw.Client, monkeypatch: pytest.MonkeyPatch, read: Callable[[sw.Client], sw.StoredFragment]
) -> None:
    """The caller does not notice."""
    client.tiers.store(fragment("a", LARGE))
    elusive = Elusive(client._channel.mappings, monkeypatch)
    assert read(client).body == LARGE
    assert elusive.looks == 2


def test_client_that_was_cut_off_reads_on() -> None:
    """Another connection brings the descriptors again, and what was mapped before is not mapped twice."""
    with served() as stage, sw.connect(stage.address, projects=["p"]) as client:
        client.tiers.store(fragment("a", LARGE))
        held = client.tiers.get("a")
        for connection in [*stage.loop._connections.values()]:
            kernel_socket(connection.peer).shutdown(2)
        eventually(lambda: stage.peers == 0)
        count = len(client._channel.mappings)
        assert client.tiers.get("a").body == held.body == LARGE
        assert len(client._channel.mappings) == count

"""What a caller says of itself, its label and its work, is in what it stores, in every form of call."""

import asyncio
import pickle
import threading
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.client.session.current_work import current_work, working_on
from stepwell.domain.tiers.model import Work, Writer
from stepwell.errors import InvalidArgument

ADDRESS = "/somewhere"


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


@pytest.fixture
def client(runtime: sw.Runtime) -> Iterator[sw.Client]:
    with runtime.client(["p"], label="planner") as made:
        yield made


def writer_of(client: sw.Client, name: str) -> Writer:
    writer = client.tiers.peek(name).writer
    assert writer is not None
    return writer


def fragment(name: str, body: str = "") -> sw.Fragment:
    return sw.Fragment(fragment_id=name, body=body or name, tokens=1)


class TestWorkingOn:
    """The innermost block counts; behind it, the one around it does."""

    def test_nested(self) -> None:
        """Each block restores what was there before, however it ends."""
        assert current_work(ADDRESS) is None
        with working_on(ADDRESS, "plan"):
            with pytest.raises(ZeroDivisionError), working_on(ADDRESS, "child", "changeset"):
                assert current_work(ADDRESS) == Work("child", "changeset")
                raise ZeroDivisionError
            assert current_work(ADDRESS) == Work("plan")
        assert current_work(ADDRESS) is None

    def test_other_managers_hear_nothing(self) -> None:
        """A plan belongs to one manager."""
        with working_on(ADDRESS, "plan"):
            assert current_work("/elsewhere") is None

    def test_threads_have_their_own(self) -> None:
        """What one works on says nothing of another."""
        found: list[Work | None] = []
        with working_on(ADDRESS, "plan"):
            thread = threading.Thread(target=lambda: found.append(current_work(ADDRESS)))
            thread.start()
            thread.join()
        assert found == [None]

    @pytest.mark.parametrize("plan_id, changeset_id", [("", None), ("a\n", None), ("x" * 1_000, None), ("plan", "")])
    def test_ids_are_checked(self, plan_id: str, changeset_id: str | None) -> None:
        """Before the block begins."""
        with pytest.raises(InvalidArgument), working_on(ADDRESS, plan_id, changeset_id):
            raise AssertionError("the block has begun")


class TestStores:
    """The fragment names the session, its process, its label and its work."""

    def test_every_form(self, client: sw.Client) -> None:
        """Alone, in a batch, in a transaction, with a large body, and on the fast path."""
        with client.working_on("plan", "changeset"):
            client.tiers.store(fragment("alone"))
            client.tiers.store(fragment("fast"))
            client.tiers.store(fragment("large", "x" * 100_000))
            with client.batch() as batch:
                batch.tiers.store(fragment("batch"))
            with client.transaction() as transaction:
                transaction.tiers.store(fragment("transaction"))
            client.tiers.store_many([fragment("many")])
        writers = {writer_of(client, name) for name in ("alone", "fast", "large", "batch", "transaction", "many")}
        (writer,) = writers
        assert (writer.label, writer.work) == ("planner", Work("plan", "changeset"))
        client.tiers.store(fragment("alone", "again"))
        assert writer_of(client, "alone").work is None

    def test_tasks_have_their_own(self, runtime: sw.Runtime, client: sw.Client) -> None:
        """Tasks of one loop, interleaved, over one client."""

        async def work(async_client: aio.Client, number: int, turn: asyncio.Barrier) -> None:
            with async_client.working_on(f"plan-{number}"):
                await turn.wait()
                await async_client.tiers.store(fragment(f"task-{number}"))
                await turn.wait()
                async with async_client.batch() as batch:
                    batch.tiers.store(fragment(f"batch-{number}"))

        async def both() -> None:
            async with aio.connect(runtime.address, ["p"], label="async") as async_client:
                turn = asyncio.Barrier(2)
                await asyncio.gather(*(work(async_client, number, turn) for number in range(2)))

        asyncio.run(both())
        for number in range(2):
            for kind in ("task", "batch"):
                writer = writer_of(client, f"{kind}-{number}")
                assert (writer.label, writer.work) == ("async", Work(f"plan-{number}"))

    def test_label_goes_along(self, client: sw.Client) -> None:
        """A client that is sent to another process has the same there."""
        with pickle.loads(pickle.dumps(client)) as other:  # noqa: S301 - ours
            assert other.label == "planner"
            other.tiers.store(fragment("pickled"))
        assert writer_of(client, "pickled").label == "planner"


class TestOptions:
    """What the client adds to the options of a fragment."""

    def test_tokens_of_what_is_kept_are_estimated(self, client: sw.Client) -> None:
        """No budget counts them: a third of the bytes, unless they are given."""
        kept = sw.Fragment(fragment_id="kept", body="x" * 10, keep=True)
        assert client.tiers.store(kept).tokens == 4
        assert client.tiers.store(sw.Fragment(fragment_id="kept", body="x", keep=True, tokens=9)).tokens == 9

    def test_shown(self, client: sw.Client) -> None:
        """On the fragment that is read, as the caller gave it."""
        client.tiers.store(sw.Fragment(fragment_id="shown", body="", keep=True, expires_at_ms=4_000_000_000_000))
        found = client.tiers.get("shown")
        assert (found.is_kept, found.expires_at and found.expires_at.year) == (True, 2096)
        client.tiers.store(fragment("plain"))
        assert (client.tiers.get("plain").is_kept, client.tiers.get("plain").expires_at) == (False, None)

    def test_unique_of_a_large_body(self, client: sw.Client) -> None:
        """The upload of a body that is there already is let go of."""
        client.tiers.store(fragment("one", "y" * 200_000))
        before = client.tiers.metrics().body_bytes
        placed = client.tiers.store(fragment("two", "y" * 200_000), unique=True)
        assert (placed.fragment_id, placed.note) == ("one", sw.types.Note.EQUAL_BODY)
        assert client.tiers.metrics().body_bytes == before
        client.tiers.delete("one")
        assert client.tiers.store(fragment("two", "y" * 200_000), unique=True).fragment_id == "two"
        assert client.tiers.get("two").text == "y" * 200_000

    def test_expired_one_is_in_no_view(self, client: sw.Client) -> None:
        """Nor in a list, and not when it is read by its id."""
        client.tiers.store(sw.Fragment(fragment_id="over", body="", expires_at_ms=1))
        assert "over" not in {row.fragment_id for row in client.view(["p"])}
        assert "over" not in {row.fragment_id for row in client.tiers.list(limit=1_000).rows}
        assert not client.tiers.contains("over")
        client.tiers.store(fragment("stays"))
        assert client.tiers.get_many(["stays", "over"]).keys() == {"stays"}

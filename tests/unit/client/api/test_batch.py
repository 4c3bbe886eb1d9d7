"""Batches and transactions: many commands in one frame, with one outcome each, or one for all."""

import contextlib

import pytest

import stepwell as sw
from stepwell import limits
from tests.support.client.sessions import executing, fragment, unchanged


def enter(bundle: sw.types.Batch | sw.types.Transaction) -> None:
    """Send what was added; nothing more is."""
    with bundle:
        pass


def test_batch_has_one_outcome_each(client: sw.Client) -> None:
    """The refused ones are refused, the others took effect, each at its own revision, in order."""
    with client.batch() as batch:
        first = batch.tiers.store(fragment("a"))
        missing = batch.tiers.get("absent")
        second = batch.tiers.store(fragment("b"))
        read = batch.tiers.get("b")
    assert len(batch) == 4
    assert second.revision == first.revision + 1 == read.revision
    with pytest.raises(sw.NotFound):
        missing.result()
    with pytest.raises(sw.NotFound):
        _ = missing.revision
    assert bytes(read.result().body) == b"body"


def test_batch_of_every_service(client: sw.Client) -> None:
    """Tiers, plans and an execution context go into one frame, and the context is the same as outside."""
    plan = executing(client, "batching", (client.projects or ("",))[0])
    context = client.execution(plan.plan_id)
    with client.batch() as batch:
        inside = batch.execution(context)
        started = inside.start_changeset()
        recorded = inside.record_change(sw.Change(path="a", after=b"1"))
        found = batch.plans.get_plan(plan.plan_id)
    assert recorded.result().changeset_id == started.result()
    assert found.result().plan_id == plan.plan_id
    assert context.record_change(sw.Change(path="b", after=b"2")).changeset_id == started.result()


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_exception_in_the_block_sends_nothing(client: sw.Client, kind: str) -> None:
    """An exception inside the block passes, and nothing was sent."""
    bundle = client.batch() if kind == "batch" else client.transaction()
    pending: list[sw.types.Pending[sw.types.FragmentPlaced]] = []

    def block() -> None:
        with bundle:
            pending.append(bundle.tiers.store(fragment()))
            raise ZeroDivisionError

    with unchanged(client), pytest.raises(ZeroDivisionError):
        block()
    with pytest.raises(sw.InvalidArgument, match="never sent"):
        pending[0].result()


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_result_is_there_after_the_block(client: sw.Client, kind: str) -> None:
    """Too early is an error that says so, and so is a second use."""
    bundle = client.batch() if kind == "batch" else client.transaction()
    with bundle:
        pending = bundle.tiers.store(fragment())
        with pytest.raises(sw.InvalidArgument, match="leave the `with` block first"):
            pending.result()
    assert pending.result().fragment_id == "a"
    with pytest.raises(sw.InvalidArgument, match="begin another one"):
        bundle.tiers.store(fragment())


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_too_many_commands_are_refused_when_added(client: sw.Client, kind: str) -> None:
    """The bound of a frame is said at the command that passes it; those before it go."""
    bundle = client.batch() if kind == "batch" else client.transaction()
    with bundle:
        pending = [bundle.tiers.store(fragment(str(number))) for number in range(limits.BATCH_COMMANDS_MAX)]
        with pytest.raises(sw.InvalidArgument, match="send them in parts"):
            bundle.tiers.store(fragment("one more"))
    assert pending[-1].result().fragment_id == str(limits.BATCH_COMMANDS_MAX - 1)


def test_empty_bundles_send_nothing(client: sw.Client) -> None:
    """A block without calls costs nothing."""
    before = client.status().requests
    with client.batch(), client.transaction():
        pass
    assert client.status().requests == before


def test_transaction_is_one_revision(client: sw.Client) -> None:
    """All of it happens at one revision."""
    before = client.status().revision
    with client.transaction() as transaction:
        pending = [transaction.tiers.store(fragment(str(number))) for number in range(10)]
    assert {each.revision for each in pending} == {before + 1}
    assert client.tiers.metrics().hot.entries == 10


def test_transaction_is_all_or_nothing(client: sw.Client) -> None:
    """One refused command: none happened, which one it was is said, and every result is that refusal."""
    client.tiers.store(fragment("kept", "old"))
    transaction = client.transaction()
    first = transaction.tiers.store(fragment("kept", "new"))
    transaction.tiers.delete("absent")
    with unchanged(client), pytest.raises(sw.TransactionAborted, match="none of the transaction") as caught:
        enter(transaction)
    assert (caught.value.details["index"], caught.value.details["cause"]) == (1, "NotFound")
    with pytest.raises(sw.TransactionAborted):
        first.result()
    assert client.tiers.get("kept").text == "old"


def test_malformed_command_refuses_the_transaction(client: sw.Client) -> None:
    """A command that is not even well-formed is as good a reason."""
    transaction = client.transaction()
    transaction.tiers.store(fragment("a"))
    transaction.tiers.evict_lru(count=0)
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="evict 1 to 4096"):
        enter(transaction)


def test_transaction_has_no_reads(client: sw.Client) -> None:
    """A read inside would promise what only the end of the block can give."""
    with pytest.raises(sw.InvalidArgument, match="no reads"), client.transaction() as transaction:
        transaction.tiers.get("a")


def test_frame_too_large_is_said_before_anything_is_sent(client: sw.Client) -> None:
    """A batch larger than a frame is refused as a whole, and nothing of it happened."""
    batch = client.batch()
    body = bytes(limits.INLINE_BODY_BYTES_MAX)
    pending = [batch.tiers.store(fragment(str(number), body)) for number in range(300)]
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="send less at a time"):
        enter(batch)
    with pytest.raises(sw.InvalidArgument):
        pending[0].result()


def test_reply_too_large_does_not_lie(client: sw.Client) -> None:
    """Writes whose results do not fit in one frame have an unknown outcome, not a refusal; the client goes on."""
    plan = executing(client, "lying", (client.projects or ("",))[0])
    text = "x" * 2_000
    for _ in range(60):
        client.plans.record_decision(plan.plan_id, question=text, choice=text, rationale=text)
    with client.batch() as batch:
        pages = [batch.plans.list_decisions(plan.plan_id) for _ in range(200)]
    answered = 0
    for page in pages:
        with contextlib.suppress(sw.Busy):
            answered += len(page.result().decisions) == 60
    assert 0 < answered < 200
    assert client.tiers.metrics().hot.entries == 0


def test_interrupted_sending_has_an_unknown_outcome(client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the answer is awaited: it may have taken effect, and nobody says that it did not."""

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(client._session, "perform_each", interrupted)
    with pytest.raises(KeyboardInterrupt), client.batch() as batch:
        pending = batch.tiers.metrics()
    with pytest.raises(sw.OutcomeUnknown, match="interrupted"):
        pending.result()

"""Bad arguments: each gets a typed error that says what to do, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import act, executing, fragment, refused

Bad = Callable[[sw.Client], object]


def loose(value: object) -> Any:  # noqa: ANN401 - for what no type checker would let pass
    return value


BAD: dict[str, tuple[Bad, str]] = {
    "empty id to get": (lambda c: c.tiers.get(""), "fragment_id .*give 1 to 512 characters"),
    "empty id to store": (lambda c: c.tiers.store(fragment("")), "fragment_id .*give 1 to 512 characters"),
    "control character in an id": (lambda c: c.tiers.get("a\nb"), "none of them a control character"),
    "long id": (lambda c: c.tiers.get("a" * 513), "give 1 to 512"),
    "lone surrogate in an id": (lambda c: c.tiers.get("a\ud800"), "lone surrogate"),
    "lone surrogate in a body": (lambda c: c.tiers.store(fragment(body="\ud800")), "lone surrogate"),
    "lone surrogate in metadata": (
        lambda _: sw.Fragment(fragment_id="a", body="", metadata={"k": "\ud800"}),
        "lone surrogate",
    ),
    "zero tokens": (lambda _: fragment(tokens=0), "tokens .*at least 1"),
    "negative tokens": (lambda _: fragment(tokens=-5), "tokens .*at least 1"),
    "zero budget": (lambda _: sw.TierBudget(hot_tokens=0), "hot_tokens .*at least 1"),
    "negative budget": (lambda _: sw.TierBudget(warm_entries=-1), "warm_entries .*at least 1"),
    "body too large": (
        lambda _: fragment(body=bytes(limits.BODY_BYTES_MAX + 1)),
        "split it into fragments",
    ),
    "body too large as UTF-8": (
        lambda c: c.tiers.store(fragment(body="\u20ac" * (limits.BODY_BYTES_MAX // 2))),
        "body .*split it into",
    ),
    "body that is no body": (lambda _: sw.Fragment(fragment_id="a", body=loose(7)), "a body is str, bytes"),
    "10 MiB of metadata": (
        lambda _: sw.Fragment(fragment_id="a", body="", metadata={"k": "v" * (10 << 20)}),
        "16 KiB in all",
    ),
    "10 MiB of metadata in many entries": (
        lambda _: sw.Fragment(fragment_id="a", body="", metadata={str(n): "v" * 160_000 for n in range(64)}),
        "16 KiB in all",
    ),
    "too many entries of metadata": (
        lambda _: sw.Fragment(fragment_id="a", body="", metadata={str(n): "" for n in range(65)}),
        "at most 64 metadata entries",
    ),
    "no fragment": (lambda c: c.tiers.store(loose("a")), "store takes a stepwell.Fragment"),
    "project with spaces": (lambda c: c.tiers.get("a", project="a b"), "a project is 1 to 128"),
    "project that climbs": (lambda c: c.tiers.get("a", project="../etc"), "a project is 1 to 128"),
    "unknown tier": (lambda c: c.tiers.evict_lru(loose("lukewarm")), "tier .*one of hot, warm, cold"),
    "zero evictions": (lambda c: c.tiers.evict_lru(count=0), "evict 1 to 4096"),
    "too long a page": (lambda c: c.tiers.list(limit=10**6), "follow its cursor"),
    "foreign cursor": (lambda c: c.tiers.list(cursor="nonsense"), "as the page before returned it"),
    "globs that are one string": (lambda c: c.tiers.list(globs="*.py"), r"give \['\*.py'\]"),
    "path with '..'": (lambda _: sw.Change(path="../a", after=b""), "leaves its root by '..'"),
    "absolute path": (lambda _: sw.Change(path="/etc/passwd", after=b""), "is absolute"),
    "empty path": (lambda _: sw.Change(path="", after=b""), "1 to 4,096"),
    "text where bytes belong": (lambda _: sw.Change(path="a", after=loose("text")), r"text.encode\(\)"),
    "no change at all": (lambda _: sw.Change(path="a", before=b"x", after=b"x"), "nothing changed"),
    "half a digest": (lambda _: sw.Digest(b"123"), "32 bytes"),
    "name with spaces": (lambda c: create(c, "Fix Bug"), "did you mean 'fix-bug'"),
    "empty name": (lambda c: create(c, ""), "name .*1 to 200 characters"),
    "plan without projects": (lambda c: c.plans.use_action("x", projects=[]), "name 1 to 64 projects"),
    "malformed plan id": (lambda c: c.plans.get_plan("no such id"), "as stepwell returned it"),
    "projects of a receipt that are one string": (lambda c: c.receipts.store("r", "p", "", b""), r"give \['p'\]"),
    "receipt without projects": (lambda c: c.receipts.store("r", [], "", b""), "name 1 to 64 projects"),
    "malformed receipt id": (lambda c: c.receipts.get("no such id"), "as stepwell returned it"),
    "receipt that is a text": (lambda c: c.receipts.store("r", ["p"], "", loose("text")), "a receipt is bytes"),
    "title that is none": (lambda c: c.receipts.store("r", ["p"], loose(None), b""), "a title is a str"),
    "lone surrogate in a title": (lambda c: c.receipts.store("r", ["p"], "\ud800", b""), "lone surrogate"),
    "foreign cursor of receipts": (lambda c: c.receipts.list(cursor="nonsense"), "as the page before returned it"),
    "zero lease": (lambda c: c.plans.start_strategize("x", lease_ms=0), "a lease lasts 10 ms to 24 h"),
    "number past 64 bits": (lambda c: c.plans.start_strategize("x", lease_ms=2**70), "cannot be sent"),
    "what cannot be sent at all": (
        lambda c: c.plans.use_action("x", projects=["p"], arguments={"x": loose(object())}),
        "cannot be sent",
    ),
}


def create(client: sw.Client, name: str) -> object:
    return client.plans.create_action(
        name, description="", definition_of_done="", strategy_actor="a", execution_actor="b"
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_argument_says_what_to_do(client: sw.Client, name: str) -> None:
    """InvalidArgument, with advice, and the revision stays; the client works on, on the same connection."""
    bad, advice = BAD[name]
    with refused(client, sw.InvalidArgument, advice):
        bad(client)
    assert client.status().peers >= 1


def test_bad_argument_in_a_batch_spares_the_others(client: sw.Client) -> None:
    """One mistake among many costs its own command only."""
    with client.batch() as batch:
        good = [batch.tiers.store(fragment("before")), batch.tiers.store(fragment("after"))]
        bad = batch.tiers.evict_lru(count=0)
    with pytest.raises(sw.InvalidArgument, match="evict 1 to 4096"):
        bad.result()
    assert [each.result().fragment_id for each in good] == ["before", "after"]


def test_project_outside_the_scope_is_refused(client: sw.Client) -> None:
    """A session touches the projects that it was opened for; the error says how to get another."""
    for trespass in (
        lambda: client.tiers.get("a", project="elsewhere"),
        lambda: client.tiers.store(sw.Fragment(fragment_id="a", project="elsewhere", body="")),
        lambda: client.tiers.set_budget(sw.TierBudget()),
    ):
        with refused(client, sw.OutOfScope, "connect(ed)? with"):
            trespass()


def test_refusals_of_the_state_are_typed_and_change_nothing(client: sw.Client) -> None:
    """What the arguments cannot show, the state refuses: each with its own error."""
    plan = executing(client, "arguments", (client.projects or ("",))[0])
    client.tiers.store(fragment("there"))
    context = client.execution(plan.plan_id)
    cases: list[tuple[type[sw.StepwellError], Callable[[], object]]] = [
        (sw.NotFound, lambda: client.tiers.get("absent")),
        (sw.NotFound, lambda: client.plans.get_action("absent")),
        (sw.AlreadyExists, lambda: act(client, "arguments")),
        (sw.Conflict, lambda: client.tiers.store(fragment("there"), expected_revision=0)),
        (sw.NoActiveChangeset, lambda: context.record_change(sw.Change(path="a", after=b""))),
        (sw.PlanNotReady, lambda: client.plans.start_execute(plan.plan_id)),
        (sw.LeaseLost, lambda: client.plans.complete_execute(plan.plan_id, lease=1)),
    ]
    for kind, deed in cases:
        with refused(client, kind, "."):
            deed()


@pytest.mark.parametrize(
    "projects, advice",
    [("p", r"give \['p'\]"), ([], "name at least one"), (["a b"], "a project is 1 to 128"), ([""], "a project is")],
)
def test_bad_scope_is_refused_before_connecting(projects: str | list[str], advice: str) -> None:
    """A scope that cannot be is said at once, whether or not there is a manager."""
    with pytest.raises(sw.InvalidArgument, match=advice):
        sw.connect("/nowhere", projects=projects)


def test_default_project_needs_exactly_one(runtime: LocalRuntime, everything: sw.Client) -> None:
    """`project=` may be left out only in a session that has exactly one."""
    with runtime.client(projects=["one", "two"]) as two:
        for several in (two, everything):
            with refused(several, sw.InvalidArgument, "name a project"):
                several.tiers.get("a")
    with runtime.client(projects=["one", "one"]) as one:
        assert one.projects == ("one",)
        assert one.tiers.store(fragment()).project == "one"

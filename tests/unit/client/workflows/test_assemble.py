"""`client.assemble`: one answer from what several workers find; with a receipt, and for the sake of a plan."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import NotFound
from stepwell.strategies.protocol import StrategyView
from stepwell.testing import LocalRuntime
from tests.support import strategies

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

SAYINGS = {
    "budget": "The hot budget is enforced by the manager, in the same step that stores.",
    "order": "Every request has its place in one order, by the serial loop of the manager.",
    "death": "A worker that dies is seen by its pidfd, and its task goes to another one.",
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=1, strategies=strategies.ALL, log_level="error") as started:
        yield started


@pytest.fixture
def client(runtime: sw.Runtime, request: pytest.FixtureRequest) -> Iterator[sw.Client]:
    """With a project of the test's own."""
    project = digest_of(request.node.name.encode()).hex()[:12]
    with runtime.client(projects=[project]) as client:
        client.tiers.store_many(sw.Fragment(fragment_id=name, body=body) for name, body in SAYINGS.items())
        yield client


def asked(client: sw.Client, query: str = "who enforces the budget?", budget_tokens: int = 200) -> sw.ContextRequest:
    assert client.projects is not None
    return sw.ContextRequest(query=query, projects=client.projects, budget_tokens=budget_tokens)


BUILT_IN = ["keyword", "recency"]


def test_answer(client: sw.Client) -> None:
    """What answers the question is shown first, within the budget, with what it was found by."""
    answer = client.assemble(asked(client), strategies=BUILT_IN)
    first = answer.fragments[0]
    assert first.fragment_id == "budget"
    assert "keyword" in first.strategies
    assert SAYINGS["budget"] in answer.render()
    assert 0 < answer.total_tokens <= answer.budget_tokens == 200
    assert {each.strategy for each in answer.strategies} == {*BUILT_IN}
    assert (answer.epoch, answer.revision) == (client.epoch, client.view().revision - 1)  # then the receipt was kept


def test_it_is_no_access(client: sw.Client) -> None:
    """Nothing has moved, and nobody has used anything."""
    before = [(each.row.tier, each.row.placed_at_ms) for each in client.view()]
    client.assemble(asked(client), strategies=BUILT_IN)
    assert [(each.row.tier, each.row.placed_at_ms) for each in client.view()] == before


def test_same_bytes_again(client: sw.Client) -> None:
    """The same question on the same view; and from the receipt, as long as the bodies are there."""
    view = client.view()
    first = client.assemble(asked(client), strategies=BUILT_IN, view=view)
    client.tiers.store(sw.Fragment(fragment_id="new", body="the budget, the budget"))
    again = client.assemble(asked(client), strategies=BUILT_IN, view=view)
    assert (again.text, again.receipt) == (first.text, first.receipt)
    assert again.receipt_id != first.receipt_id
    for receipt in (first.receipt, first.receipt_id):
        assert client.replay(receipt).text == first.text
    client.tiers.delete("budget")
    with pytest.raises(sw.BodyGone, match="budget"):
        client.replay(first.receipt_id)


def test_receipt_that_is_not_kept(client: sw.Client) -> None:
    """Because nobody wants it, or because there is no room for it: the answer is the same."""
    wanted = client.assemble(asked(client), strategies=BUILT_IN)
    answer = client.assemble(asked(client), strategies=BUILT_IN, keep_receipt=False)
    assert (answer.receipt_id, answer.text) == ("", wanted.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RECEIPT_BYTES_MAX", 100)
        assert client.assemble(asked(client), strategies=BUILT_IN).receipt_id == ""


def test_receipt_without_room() -> None:
    """Fragments are what the room is for."""
    budget = sw.TierBudget(bodies_bytes=5_000)
    with sw.Runtime.start(workers=1, budget=budget) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="budget", body=SAYINGS["budget"]))
        answer = client.assemble(asked(client), strategies=BUILT_IN)
    assert ([each.fragment_id for each in answer.fragments], answer.receipt_id) == (["budget"], "")


def test_receipt_of_another_version(client: sw.Client) -> None:
    client.receipts.store("OLD", client.projects or (), "old", b"\x81\xa1x\x01")
    with pytest.raises(sw.InvalidArgument, match="another version"):
        client.receipt("OLD")
    with pytest.raises(NotFound):
        client.replay("NEVER")


@pytest.mark.parametrize(
    "name, kind",
    [
        ("raising", "TaskFailed"),
        ("leaving", "TaskFailed"),
        ("inventing", "TaskFailed"),
        ("not-a-number", "TaskFailed"),
        ("nobody-has-this", "NotFound"),
    ],
)
def test_failure_costs_only_itself(client: sw.Client, name: str, kind: str) -> None:
    """The answer is that of the others, and names who failed."""
    check_failure(client, name, kind)


@pytest.mark.parametrize("name, kind", [("hanging", "DeadlineExceeded"), ("exiting", "TaskQuarantined")])
def test_death_costs_only_itself(name: str, kind: str) -> None:
    """Also one that takes its worker with it."""
    with sw.Runtime.start(workers=1, strategies=strategies.ALL, log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store_many(sw.Fragment(fragment_id=each, body=body) for each, body in SAYINGS.items())
            check_failure(client, name, kind)


def check_failure(client: sw.Client, name: str, kind: str) -> None:
    silent = {"preamble": "silent"}
    alone = client.assemble(asked(client), strategies=["keyword"], components=silent)
    both = ["keyword", name]
    answers = (
        client.assemble(asked(client), strategies=both, components=silent, deadline_s=deadline_s)
        for deadline_s in strategies.DEADLINES_S
    )
    late = ("keyword", "DeadlineExceeded")
    answer = next(each for each in answers if late not in [(one.strategy, one.kind) for one in each.failures])
    assert answer.text == alone.text
    assert [(failure.strategy, failure.kind) for failure in answer.failures] == [(name, kind)]


def test_prefers(client: sw.Client) -> None:
    """What a request prefers is what is asked."""
    request = sw.ContextRequest(query="budget", projects=client.projects or (), strategies=["keyword"])
    assert [each.strategy for each in client.assemble(request).strategies] == ["keyword"]


def test_components(client: sw.Client) -> None:
    with pytest.raises(sw.InvalidArgument, match="there is no stage 'knit'"):
        client.assemble(asked(client), components={"knit": "purl"})
    with pytest.raises(sw.InvalidArgument, match="there is no fuse 'cold'"):
        client.assemble(asked(client), components={"fuse": "cold"})


def test_nothing_asked(client: sw.Client) -> None:
    with pytest.raises(sw.InvalidArgument, match="ask something"):
        client.assemble()
    with pytest.raises(sw.InvalidArgument, match="ask something"):
        client.assemble(focus=[])


def test_text_is_a_question(client: sw.Client) -> None:
    """To the session's own projects, with the options of a request as keywords; the answer is the same."""
    view = client.view()
    whole = client.assemble(asked(client), strategies=BUILT_IN, view=view)
    text = client.assemble("who enforces the budget?", budget_tokens=200, strategies=BUILT_IN, view=view)
    assert (text.receipt, text.text) == (whole.receipt, whole.text)
    assert client.assemble("budget", strategies=BUILT_IN).receipt.request.projects == client.projects


def test_all_options_of_a_request(client: sw.Client) -> None:
    """Each of them reaches the request. A plan is named by its id, and strategies as for a request."""
    options: dict[str, Any] = {
        "projects": client.projects,
        "focus": ("budget",),
        "kinds": ("text",),
        "breadth": 2,
        "depth": 3,
        "budget_tokens": 100,
        "as_of_ms": 1_000,
        "stop_score": 0.25,
    }
    assert {*options} | {"query", "plan", "strategies"} == {*sw.ContextRequest.__struct_fields__}
    request = client.assemble("why?", strategies=BUILT_IN, **options).receipt.request
    assert request == sw.ContextRequest(query="why?", **options)
    for name, option in options.items():
        with pytest.raises(sw.InvalidArgument, match=f"set {name} in the ContextRequest, or ask with a text"):
            client.assemble(asked(client), **{name: option})


def test_answer_is_a_value(client: sw.Client) -> None:
    """It can be copied, and pickled for another process, with its fragments, failures and receipt."""
    answer = client.assemble(asked(client), strategies=["keyword", "raising"])
    assert answer.failures
    for copied in (copy.copy(answer), copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):  # noqa: S301 - own
        assert (copied, copied.receipt, copied.render()) == (answer, answer.receipt, answer.render())
        assert client.replay(copied.receipt).text == answer.text


def test_focus_without_a_text(client: sw.Client) -> None:
    request = client.assemble(focus=["budget"], strategies=BUILT_IN).receipt.request
    assert (request.query, request.focus) == ("", ("budget",))


@pytest.mark.parametrize(
    "options, advice",
    [
        ({"budget_tokens": 0}, "a budget is at least one token"),
        ({"projects": "p"}, r"projects is a sequence: give \['p'\]"),
        ({"projects": []}, "give 1 to"),
        ({"breadth": -1}, "a breadth is a whole number"),
        ({"view": "v"}, "view is a stepwell.View, not a str"),
    ],
)
def test_options_are_checked(client: sw.Client, options: dict[str, Any], advice: str) -> None:
    with pytest.raises(sw.InvalidArgument, match=advice):
        client.assemble("what?", **options)


def test_question_of_another_type(client: sw.Client) -> None:
    question: Any = b"what?"
    with pytest.raises(sw.InvalidArgument, match=r"ask with a text or a stepwell\.ContextRequest, not a bytes"):
        client.assemble(question)


def test_session_without_a_limit_names_the_projects(runtime: sw.Runtime, client: sw.Client) -> None:
    """Searching everything would mix what does not belong together."""
    with runtime.client() as unlimited:
        with pytest.raises(sw.InvalidArgument, match="sees all projects: name those to search with projects="):
            unlimited.assemble("who enforces the budget?")
        answer = unlimited.assemble("who enforces the budget?", projects=client.projects, strategies=BUILT_IN)
        assert answer.fragments[0].fragment_id == "budget"
        of_view = unlimited.assemble("who?", view=unlimited.view(client.projects), strategies=BUILT_IN)
        assert of_view.receipt.request.projects == client.projects


def test_empty_project(runtime: sw.Runtime) -> None:
    """No error: there is nothing to see."""
    with runtime.client(projects=["nothing-in-here"]) as client:
        answer = client.assemble(asked(client), strategies=BUILT_IN)
    assert (answer.fragments, answer.text, answer.total_tokens) == ((), "", 0)


# Plans.


def plan_of(client: sw.Client, name: str) -> sw.Plan:
    client.plans.create_action(
        name=name,
        description="Find out who enforces the budget",
        definition_of_done="it is known",
        strategy_actor="local/planner",
        execution_actor="local/coder",
    )
    return client.plans.use_action(f"local/{name}", projects=client.projects or (), arguments={})


def test_for_a_plan(client: sw.Client) -> None:
    """Its description is the question, and what was decided is in the answer; but not what was reverted."""
    plan = plan_of(client, "for-a-plan")
    client.plans.start_strategize(plan.plan_id)
    client.plans.record_decision(plan.plan_id, question="Where?", choice="in the manager", rationale="it writes")
    answer = client.assemble(plan_id=plan.plan_id, strategies=["keyword", "plan-decision"])
    assert answer.receipt.request.query == "Find out who enforces the budget"
    assert "in the manager" in answer.text
    seen = answer.receipt.request.plan
    assert seen is not None
    assert (seen.phase, [each.choice for each in seen.decisions]) == ("strategize", ["in the manager"])


def test_text_for_a_plan(runtime: sw.Runtime, client: sw.Client) -> None:
    """A text is asked of the plan's projects; options without a text go with the plan's description."""
    plan = plan_of(client, "text-for-a-plan")
    with runtime.client() as unlimited:
        request = unlimited.assemble("what?", plan_id=plan.plan_id, strategies=BUILT_IN).receipt.request
        assert (request.query, request.projects) == ("what?", client.projects)
        request = unlimited.assemble(plan_id=plan.plan_id, budget_tokens=77, strategies=BUILT_IN).receipt.request
        assert (request.query, request.budget_tokens) == ("Find out who enforces the budget", 77)
        assert request.plan is not None


def test_plan_sees_its_projects_alone(runtime: sw.Runtime, client: sw.Client) -> None:
    plan = plan_of(client, "its-projects")
    with runtime.client() as anybody:
        with pytest.raises(sw.OutOfScope, match="does not see another"):
            anybody.assemble(sw.ContextRequest(projects=["another"]), plan_id=plan.plan_id)


def test_child_knows_its_parent(client: sw.Client) -> None:
    """What its ancestors are for, and what they decided, comes before what is found."""
    plan = plan_of(client, "its-parent")
    client.plans.start_strategize(plan.plan_id)
    client.plans.record_decision(plan.plan_id, question="Which way?", choice="downwards", rationale="there is water")
    client.plans.complete_strategize(plan.plan_id)
    client.plans.execute_plan(plan.plan_id)
    client.plans.start_execute(plan.plan_id)
    client.plans.declare_subplans(plan.plan_id, [sw.subplan("local/its-parent", alias="child")])
    (child,) = [each for each in client.plans.list_plans().plans if each.parent_plan_id == plan.plan_id]
    answer = client.assemble(asked(client, budget_tokens=1_000), plan_id=child.plan_id, strategies=["keyword"])
    assert "downwards" in answer.text
    assert "Find out who enforces the budget" in answer.text


def longest(request: sw.ContextRequest, view: StrategyView, _budget_tokens: int) -> list[sw.ScoredFragment]:
    """As in the README: whatever is long comes first, whatever is asked."""
    rows = sorted(view.rows(request.projects[0]), key=lambda row: -row.size)
    return [sw.ScoredFragment(row.project, row.fragment_id, row.size, row.tokens, row.revision) for row in rows]


def test_example_of_a_function_does_not_displace_the_best_hit() -> None:
    """Beside all built-in strategies it adds what it likes behind the answer; asked alone, it decides alone."""
    with LocalRuntime(strategies=[longest]) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store_many(sw.Fragment(fragment_id=name, body=body) for name, body in SAYINGS.items())
        client.tiers.store(sw.Fragment(fragment_id="a-tale", body="Once upon a time there was a well. " * 9))
        request = asked(client, "which budget does a dragon of the manager enforce?", 400)
        beside, stopped = client.assemble(replace(request, stop_score=0.0)), client.assemble(request)
        alone = client.assemble(asked(client, budget_tokens=400), strategies=["longest"])
    weights = {each.strategy: each.weight for each in beside.strategies}
    assert 0 < weights["longest"] < weights["keyword"]
    assert max(beside.fragments, key=lambda each: each.score).fragment_id == "budget"
    assert "a-tale" in {each.fragment_id for each in beside.fragments}
    assert "a-tale" not in {each.fragment_id for each in stopped.fragments}
    assert max(alone.fragments, key=lambda each: each.score).fragment_id == "a-tale"

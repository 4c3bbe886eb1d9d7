"""Arguments that are wrong, and what a caller is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from behave import then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features.schedules import attempt
from tests.support.features.work import PROJECT


def _store(client: sw.Client, fragment_id: str = "a", tokens: int = 1, metadata: dict[str, str] | None = None) -> None:
    client.tiers.store(
        sw.Fragment(fragment_id=fragment_id, project=PROJECT, body="x", tokens=tokens, metadata=metadata or {})
    )


def _create(client: sw.Client, name: str) -> None:
    client.plans.create_action(
        name, description="", definition_of_done="", strategy_actor="local/a", execution_actor="local/b"
    )


MISTAKES: dict[str, Callable[[sw.Client], object]] = {
    "an empty fragment id": lambda client: _store(client, fragment_id=""),
    "negative tokens": lambda client: _store(client, tokens=-1),
    "metadata of 10 MiB": lambda client: _store(client, metadata={"log": "x" * 10 * 1024 * 1024}),
    "a hot budget of zero": lambda client: client.tiers.set_budget(sw.TierBudget(hot_tokens=0)),
    "a path with '..'": lambda _: sw.Change(path="../secret", after=b"x"),
    "an absolute path": lambda _: sw.Change(path="/etc/passwd", after=b"x"),
    "an action name with spaces": lambda client: _create(client, "Fix Bug"),
    "no project in an unrestricted session": lambda client: client.tiers.get("a"),
    "an empty list of projects": lambda client: sw.connect(client.address, projects=[]),
    "an address where nobody is": lambda client: sw.connect(f"{client.address}.not"),
    "a question to no project": lambda client: client.assemble("where is it?"),
    "a data directory with other files": lambda _: sw.Runtime.start(workers=0, data_dir=Path(__file__).parent),
    "eviction of nothing": lambda client: client.tiers.evict_lru(count=0),
    "a page of a million rows": lambda client: client.tiers.list(project=PROJECT, limit=1_000_000),
}


@when("somebody gives {mistake}")
def step_mistake(context: Context, mistake: str) -> None:
    context.before = context.services.status().revision
    context.outcome = attempt(lambda: MISTAKES[mistake](context.services))


@then('it is refused with {kind:w} that says "{advice}"')
def step_advised(context: Context, kind: str, advice: str) -> None:
    error = context.outcome
    assert type(error) is getattr(sw, kind), repr(error)
    assert advice in error.message, error.message
    assert len(error.message) < 500, "nobody reads that much"


@then("the runtime goes on, at the same revision")
def step_goes_on(context: Context) -> None:
    assert context.services.status().revision == context.before

"""Defects that are put into a real manager, or its client, are found in what its clients have recorded.

The manager runs in this process, so that it can be changed; the clients and what they record are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from stepwell.client.api.batch import Batch, Transaction
from stepwell.domain import event_builder
from stepwell.domain.events import AnyEvent, FragmentDeleted
from stepwell.domain.logs.commands import PopFromLog
from stepwell.domain.plans import transitions
from stepwell.domain.plans.lifecycle import STEPS, PlanEvent
from stepwell.domain.plans.model import Phase, PlanState
from stepwell.domain.state import State
from stepwell.domain.tiers import rules
from stepwell.domain.verdict import DECIDERS, AnyChange, Origin, Verdict
from stepwell.manager import event_feed
from stepwell.prove.lane import LaneSettings
from stepwell.prove.verdict import HistoryVerdict, judge
from stepwell.testing import LocalRuntime
from tests.support.prove.worker_thread import recorded, settings_of

Plant = Callable[[pytest.MonkeyPatch], None]


def ignored_expectation(patch: pytest.MonkeyPatch) -> None:
    """A compare-and-set stores without comparing."""
    patch.setattr(rules, "_require_revision", lambda *_: None)


def second_start(patch: pytest.MonkeyPatch) -> None:
    """A plan that is being processed can be started again."""
    queued = STEPS[PlanEvent.START_STRATEGIZE, Phase.STRATEGIZE, PlanState.QUEUED]
    patch.setattr(
        transitions,
        "STEPS",
        {**STEPS, (PlanEvent.START_STRATEGIZE, Phase.STRATEGIZE, PlanState.PROCESSING): queued},
    )


def transaction_in_parts(patch: pytest.MonkeyPatch) -> None:
    """The blocking client sends a transaction as a batch, of which some commands may be refused."""
    patch.setattr(Transaction, "_send", Batch._send)


def lost_event(patch: pytest.MonkeyPatch) -> None:
    """Watches are not told of deletions."""

    def some(
        changes: Iterable[AnyChange], revision: int, at_ms: int, projects_of: event_builder.ProjectsOf
    ) -> list[AnyEvent]:
        found = event_builder.events_of(changes, revision, at_ms, projects_of)
        return [each for each in found if not isinstance(each, FragmentDeleted)]

    patch.setattr(event_feed, "events_of", some)


def popped_and_left(patch: pytest.MonkeyPatch) -> None:
    """A pop returns the last entry of a log, and leaves it there."""

    def peek(state: State, command: PopFromLog, origin: Origin) -> Verdict:
        return Verdict(pop(state, command, origin).reply)

    pop = DECIDERS[PopFromLog]
    patch.setitem(cast("dict[object, object]", DECIDERS), PopFromLog, peek)


def verdict_of(tmp_path: Path, seconds: float) -> HistoryVerdict:
    with LocalRuntime() as runtime, runtime.client(["p"]) as client:
        client.plans.create_action(
            "a", description="d", definition_of_done="d", strategy_actor="a/b", execution_actor="a/b"
        )
        plans = tuple(client.plans.use_action("a", projects=["p"]).plan_id for _ in range(10))
        lanes = LaneSettings(1, seconds, plans)
        return judge(recorded(settings_of(runtime.address, tmp_path, threads=4, lanes=lanes), client))


@pytest.mark.parametrize(
    "plant", [ignored_expectation, second_start, transaction_in_parts, lost_event, popped_and_left]
)
def test_found(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads of one process find each of them within a few rounds."""
    plant(monkeypatch)
    # A busy machine may let the threads run one after the other.
    verdicts = (verdict_of(tmp_path, seconds) for seconds in (0.3, 3, 30))
    found = next((each for each in verdicts if each.illegal), None)
    assert found is not None
    assert found.counterexample is not None

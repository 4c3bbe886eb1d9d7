"""Texts about plans that several subcommands print: positions and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from stepwell.domain.plans.model import Phase, PlanState

_STYLES: Final[dict[PlanState, str]] = {
    PlanState.QUEUED: "cyan",
    PlanState.PROCESSING: "yellow",
    PlanState.COMPLETE: "green",
    PlanState.ERRORED: "red",
    PlanState.CANCELLED: "dim",
    PlanState.APPLIED: "bold green",
    PlanState.CONSTRAINED: "bold red",
}
"""The colour of each state: green if all is well, red if a person has to look."""


def position_text(phase: Phase, state: PlanState, *, rolled_back: bool = False) -> Text:
    """Return the phase and the state of a plan, coloured."""
    text = Text(f"{phase}/{state}", _STYLES[state])
    return text.append(", rolled back", "magenta") if rolled_back else text


def local_time(at_ms: int) -> str:
    """Return a time in the user's time zone."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")

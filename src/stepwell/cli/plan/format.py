"""How plans are spoken of: when, how many, how far."""

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


def position_text(phase: Phase, state: PlanState, *, rolled_back: bool = False) -> Text:
    """Where a plan stands, in a colour that says whether to look."""
    text = Text(f"{phase}/{state}", _STYLES[state])
    return text.append(", rolled back", "magenta") if rolled_back else text


def local_time(at_ms: int) -> str:
    """A time, as it is here."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def count_text(number: int, noun: str) -> str:
    """Such as "1 path" and "2 paths"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

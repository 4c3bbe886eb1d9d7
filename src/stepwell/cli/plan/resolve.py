"""Which plan is meant."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Final

from stepwell.client.client import Client
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, NotFound

_PREFIX_CHARS_MIN: Final = 6
_NAMED: Final = 10  # candidates


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help=f"its id, or the beginning of it: at least {_PREFIX_CHARS_MIN} characters, with which no other one begins",
    )


def find_plan(client: Client, given: str) -> Plan:
    """The plan that has the id, or alone begins with it; ids are given out in capitals."""
    for spelling in dict.fromkeys((given, given.upper())):
        with suppress(NotFound):
            return client.plans.get_plan(spelling)
    if len(given) < _PREFIX_CHARS_MIN:
        raise InvalidArgument(
            f"there is no plan {given!r}: give its id, or at least {_PREFIX_CHARS_MIN} characters of its beginning"
        )
    candidates = _ids_with_prefix(client, given) or _ids_with_prefix(client, given.upper())
    if not candidates:
        raise NotFound(f"no plan's id is {given!r}, or begins with it: `stepwell plan list --all` has them")
    if len(candidates) > 1:
        more = ", and more" if len(candidates) > _NAMED else ""
        raise InvalidArgument(
            f"several plans begin with {given!r}, give more of the id: {', '.join(candidates[:_NAMED])}{more}",
            candidates=candidates[:_NAMED],
        )
    return client.plans.get_plan(candidates[0])


def _ids_with_prefix(client: Client, prefix: str) -> list[str]:
    """Pages are in order of id, and begin behind their cursor: those that begin with a text come next behind it."""
    page = client.plans.list_plans(limit=_NAMED + 1, cursor=prefix)
    return [each.plan_id for each in page.plans if each.plan_id.startswith(prefix)]

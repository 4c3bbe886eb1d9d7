"""The plan that a user names: by its id, or by the beginning of its id."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from stepwell import limits
from stepwell.cli.common.completions import complete_plans
from stepwell.cli.common.parameters import argument
from stepwell.client.client import Client
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, NotFound

PlanId = Annotated[
    str,
    argument(
        "PLAN",
        f"its id, or the beginning of it: at least {limits.PLAN_PREFIX_CHARS_MIN} characters, with which no other id "
        "begins",
        complete=complete_plans,
    ),
]


def find_plan(client: Client, given: str) -> Plan:
    """Return the plan with the id, or the only plan whose id begins with the text. Lower case is accepted.

    Raise `NotFound` if there is none, `InvalidArgument` if the text is too short or several plans match; the message
    lists them.
    """
    # Ids are created in upper case. A client may also have chosen an id of its own, so the given spelling comes first.
    for spelling in dict.fromkeys((given, given.upper())):
        with suppress(NotFound):
            return client.plans.get_plan(spelling)
    if len(given) < limits.PLAN_PREFIX_CHARS_MIN:
        raise InvalidArgument(
            f"there is no plan {given!r}: give its id, or at least {limits.PLAN_PREFIX_CHARS_MIN} characters of its "
            "beginning"
        )
    candidates = _ids_with_prefix(client, given) or _ids_with_prefix(client, given.upper())
    if not candidates:
        raise NotFound(f"no plan's id is {given!r}, or begins with it: `stepwell plan list --all` has them")
    if len(candidates) > 1:
        shown = candidates[: limits.PLANS_SHOWN]
        more = ", and more" if len(candidates) > len(shown) else ""
        raise InvalidArgument(
            f"several plans begin with {given!r}, give more of the id: {', '.join(shown)}{more}", candidates=shown
        )
    return client.plans.get_plan(candidates[0])


def _ids_with_prefix(client: Client, prefix: str) -> list[str]:
    """Return the ids that begin with the prefix, a few at most.

    Pages are in order of id and begin after their cursor. With the prefix as cursor, matching ids come first, so one
    request is enough for any number of plans.
    """
    page = client.plans.list_plans(limit=limits.PLANS_SHOWN + 1, cursor=prefix)
    return [each.plan_id for each in page.plans if each.plan_id.startswith(prefix)]

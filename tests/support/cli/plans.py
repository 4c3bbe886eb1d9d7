"""Plans in every position, and what a command said."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import stepwell as sw

ACTION = "local/change"
PROJECT = "shop"


class Told(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> "Facts":
        return Facts(json.loads(self.out))

    @property
    def words(self) -> str:
        """Without what makes a table of it."""
        return " ".join(self.out.split())


class Facts:
    """What a command said as JSON, by a way into it."""

    def __init__(self, found: object) -> None:
        self._found = found

    def __getitem__(self, way: str) -> object:
        found = self._found
        for key in way.split("."):
            found = cast("list[object]", found)[int(key)] if key.isdecimal() else cast("dict[str, object]", found)[key]
        return found

    def keys(self, way: str = "") -> set[str]:
        return set(cast("dict[str, object]", self[way] if way else self._found))


Shell = Callable[..., Told]


def new(client: sw.Client, **arguments: str) -> str:
    """A plan that nobody has begun."""
    return client.plans.use_action(ACTION, projects=[PROJECT], arguments=arguments).plan_id


def executing(client: sw.Client, validations: Sequence[sw.Validation] = ()) -> str:
    """A plan that this client executes."""
    plan_id = client.plans.use_action(ACTION, projects=[PROJECT], validations=validations).plan_id
    client.plans.start_strategize(plan_id)
    client.plans.proceed(plan_id)
    return plan_id


def record(client: sw.Client, plan_id: str, *changes: sw.Change) -> str:
    """A closed changeset."""
    context = client.execution(plan_id)
    changeset_id = context.start_changeset()
    for change in changes:
        context.record_change(change)
    context.close_changeset(changeset_id)
    return changeset_id

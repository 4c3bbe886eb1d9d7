"""Plans at several positions, and the output of a command, for the tests of `stepwell plan`."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import stepwell as sw

ACTION = "local/change"
PROJECT = "shop"


class CommandOutput(NamedTuple):
    """The exit code of a command and the text that it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> "JsonResult":
        return JsonResult(json.loads(self.out))

    @property
    def words(self) -> str:
        """The text of stdout without the spaces and lines that make a table of it."""
        return " ".join(self.out.split())


class JsonResult:
    """The JSON object that a command printed; `result["plan.errors.0.phase"]` follows keys and indexes."""

    def __init__(self, found: object) -> None:
        self._found = found

    def __getitem__(self, way: str) -> object:
        found = self._found
        for key in way.split("."):
            found = cast("list[object]", found)[int(key)] if key.isdecimal() else cast("dict[str, object]", found)[key]
        return found

    def keys(self, way: str = "") -> set[str]:
        return set(cast("dict[str, object]", self[way] if way else self._found))


Shell = Callable[..., CommandOutput]


def new(client: sw.Client, **arguments: str) -> str:
    """Return the id of a new plan that no session has started."""
    return client.plans.use_action(ACTION, projects=[PROJECT], arguments=arguments).plan_id


def executing(client: sw.Client, validations: Sequence[sw.Validation] = ()) -> str:
    """Return the id of a plan that this client executes."""
    plan_id = client.plans.use_action(ACTION, projects=[PROJECT], validations=validations).plan_id
    client.plans.start_strategize(plan_id)
    client.plans.proceed(plan_id)
    return plan_id


def record(client: sw.Client, plan_id: str, *changes: sw.Change) -> str:
    """Record the changes in a changeset, close it and return its id."""
    context = client.execution(plan_id)
    changeset_id = context.start_changeset()
    for change in changes:
        context.record_change(change)
    context.close_changeset(changeset_id)
    return changeset_id

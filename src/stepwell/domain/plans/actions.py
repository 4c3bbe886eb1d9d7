"""The rules of actions: one name, one action; arguments are checked once, when the action is used."""

from __future__ import annotations

import math
from collections.abc import Mapping

import re2
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.bounded_types import canonical
from stepwell.domain.paging import build_page
from stepwell.domain.patterns import matcher
from stepwell.domain.plans.commands import ArchiveAction, CreateAction, GetAction, ListActions
from stepwell.domain.plans.model import Action, ActionState, Argument, ArgumentType, ArgumentValue
from stepwell.domain.plans.validations import joined
from stepwell.domain.replies import ActionFound, ActionPage, ActionSummary
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import ActionUnavailable, AlreadyExists, Busy, InvalidArgument, NotFound

_PYTHON_TYPES: dict[ArgumentType, tuple[type, ...]] = {
    ArgumentType.STRING: (str,),
    ArgumentType.INTEGER: (int,),
    ArgumentType.NUMBER: (int, float),
    ArgumentType.BOOLEAN: (bool,),
}


@decides(CreateAction)
def create_action(state: State, command: CreateAction, origin: Origin) -> Verdict:
    """Create, and never overwrite: of many with one name, the first wins."""
    name = canonical(command.name)
    if state.actions.get(name):
        raise AlreadyExists(f"action {name!r} exists already: choose another name, or use it", name=name)
    if len(state.actions) >= limits.ACTIONS_MAX:
        raise Busy(f"there are {limits.ACTIONS_MAX} actions already")
    _check_arguments(command.arguments)
    action = Action(
        name=name,
        description=command.description,
        definition_of_done=command.definition_of_done,
        strategy_actor=canonical(command.strategy_actor, "strategy_actor"),
        execution_actor=canonical(command.execution_actor, "execution_actor"),
        estimation_actor=_actor(command.estimation_actor, "estimation_actor"),
        review_actor=_actor(command.review_actor, "review_actor"),
        apply_actor=_actor(command.apply_actor, "apply_actor"),
        invariant_actor=_actor(command.invariant_actor, "invariant_actor"),
        arguments=command.arguments,
        invariants=command.invariants,
        automation_profile=command.automation_profile,
        reusable=command.reusable,
        read_only=command.read_only,
        state=ActionState.AVAILABLE,
        uses=0,
        created_at_ms=origin.now_ms,
        revision=state.revision + 1,
        validations=joined((), command.validations),
    )
    return Verdict(ActionFound(action), (RowChanged(None, action),))


@decides(GetAction)
def get_action(state: State, command: GetAction, _origin: Origin) -> Verdict:
    """One action by any spelling of its name."""
    return Verdict(ActionFound(find_action(state, command.name)))


@decides(ListActions)
def list_actions(state: State, command: ListActions, _origin: Origin) -> Verdict:
    """Actions in order of name."""
    page, cursor = build_page(state.actions.after(command.cursor), command.limit, lambda action: action.name)
    summaries = tuple(ActionSummary(each.name, each.state, each.reusable, each.uses) for each in page)
    return Verdict(ActionPage(summaries, cursor))


@decides(ArchiveAction)
def archive_action(state: State, command: ArchiveAction, _origin: Origin) -> Verdict:
    """Make it unusable. Archiving twice is the same as once."""
    action = find_action(state, command.name)
    archived = replace(action, state=ActionState.ARCHIVED)
    return Verdict(ActionFound(archived), (RowChanged(action, archived),))


def find_action(state: State, name: str) -> Action:
    """The action, or a refusal."""
    action = state.actions.get(canonical(name))
    if action is None:
        raise NotFound(f"there is no action {canonical(name)!r}: create it first", name=canonical(name))
    return action


def usable_action(state: State, name: str) -> Action:
    """The action, if it can still be used."""
    action = find_action(state, name)
    if action.state is ActionState.ARCHIVED:
        raise ActionUnavailable(f"action {action.name!r} is archived", name=action.name)
    if action.spent:
        raise ActionUnavailable(f"action {action.name!r} is not reusable and was used already", name=action.name)
    return action


def bind(action: Action, given: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """The arguments that a plan gets: given or default, each within its bounds."""
    known = {argument.name for argument in action.arguments}
    if unknown := sorted(set(given) - known):
        raise InvalidArgument(
            f"action {action.name!r} has no argument {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
        )
    bound: dict[str, ArgumentValue] = {}
    for argument in action.arguments:
        value = given.get(argument.name, argument.default)
        if value is not None:
            _check_value(argument, value)
            bound[argument.name] = value
        elif argument.required:
            raise InvalidArgument(f"action {action.name!r} needs the argument {argument.name!r}")
    if sum(len(value) for value in bound.values() if isinstance(value, str)) > limits.TEXT_CHARS_MAX:
        raise InvalidArgument(f"the arguments have more than {limits.TEXT_CHARS_MAX} characters: store a fragment")
    return bound


_PLACEHOLDER = re2.compile(r"\{[A-Za-z0-9][A-Za-z0-9._/:-]*\}")


def render(template: str, arguments: Mapping[str, ArgumentValue]) -> str:
    """Fill `{name}` placeholders. Unlike `str.format`, it reaches no attributes and leaves other braces alone."""
    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(template):
        placeholder = template[match.start() : match.end()]
        parts += template[end : match.start()], str(arguments.get(placeholder[1:-1], placeholder))
        end = match.end()
    rendered = "".join([*parts, template[end:]])
    if len(rendered) > limits.TEXT_CHARS_MAX:
        raise InvalidArgument(f"the rendered text has {len(rendered)} characters, at most {limits.TEXT_CHARS_MAX}")
    return rendered


def _actor(name: str | None, what: str) -> str | None:
    return canonical(name, what) if name is not None else None


def _check_arguments(arguments: tuple[Argument, ...]) -> None:
    names = [argument.name for argument in arguments]
    positions = [argument.position for argument in arguments if argument.position is not None]
    if len(set(names)) < len(names):
        raise InvalidArgument("two arguments have the same name")
    if len(set(positions)) < len(positions):
        raise InvalidArgument("two arguments have the same position")
    for argument in arguments:
        if argument.pattern is not None:
            matcher(argument.pattern)
        if argument.default is not None:
            _check_value(argument, argument.default)


def _check_value(argument: Argument, value: ArgumentValue) -> None:
    what = f"argument {argument.name!r}"
    if isinstance(value, bool) != (argument.type is ArgumentType.BOOLEAN) or not isinstance(
        value, _PYTHON_TYPES[argument.type]
    ):
        raise InvalidArgument(f"{what} is a {type(value).__name__}: give a {argument.type}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{what} is {value}: give a number that is finite")
    if isinstance(value, str):
        if len(value) > limits.TEXT_CHARS_MAX:
            raise InvalidArgument(f"{what} has {len(value)} characters, at most {limits.TEXT_CHARS_MAX}")
        if argument.pattern is not None and not matcher(argument.pattern)(value):
            raise InvalidArgument(f"{what} is {value[:80]!r}, which does not match {argument.pattern!r}")
        return
    if argument.minimum is not None and not value >= argument.minimum:
        raise InvalidArgument(f"{what} is {value}, less than its minimum {argument.minimum}")
    if argument.maximum is not None and not value <= argument.maximum:
        raise InvalidArgument(f"{what} is {value}, more than its maximum {argument.maximum}")

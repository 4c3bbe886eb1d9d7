"""The rules of actions: create, read, list and archive, and the binding of arguments to an action's parameters.

Names of actions and actors are stored in canonical form, so that every spelling of a name finds the same action. An
action is immutable except for its state and its count of uses. Parameters are checked once, when the action is created,
and values once, when a plan is created; the values in a plan are therefore valid for the plan's whole life.
"""

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
from stepwell.domain.plans.validations import join_validations
from stepwell.domain.replies import ActionFound, ActionPage, ActionSummary
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import ActionUnavailable, AlreadyExists, Busy, InvalidArgument, NotFound
from stepwell.text import plural

_PYTHON_TYPES: dict[ArgumentType, tuple[type, ...]] = {
    ArgumentType.STRING: (str,),
    ArgumentType.INTEGER: (int,),
    ArgumentType.NUMBER: (int, float),
    ArgumentType.BOOLEAN: (bool,),
}
"""The Python types of each argument type. `bool` is an `int` in Python, so `_check_value` treats booleans apart."""


@decides(CreateAction)
def create_action(state: State, command: CreateAction, origin: Origin) -> Verdict:
    """Create an action. An existing name is refused, not overwritten: the first of several concurrent callers wins."""
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
        # The command gets the next revision if it is accepted.
        revision=state.revision + 1,
        validations=join_validations((), command.validations),
    )
    return Verdict(ActionFound(action), (RowChanged(None, action),))


@decides(GetAction)
def get_action(state: State, command: GetAction, _origin: Origin) -> Verdict:
    """Return one action. Any spelling of its name finds it."""
    return Verdict(ActionFound(find_action(state, command.name)))


@decides(ListActions)
def list_actions(state: State, command: ListActions, _origin: Origin) -> Verdict:
    """Return a page of actions in order of name."""
    page, cursor = build_page(state.actions.after(command.cursor), command.limit, lambda action: action.name)
    summaries = tuple(ActionSummary(each.name, each.state, each.reusable, each.uses) for each in page)
    return Verdict(ActionPage(summaries, cursor))


@decides(ArchiveAction)
def archive_action(state: State, command: ArchiveAction, _origin: Origin) -> Verdict:
    """Make an action unusable for new plans. Archiving an archived action changes nothing."""
    action = find_action(state, command.name)
    archived = replace(action, state=ActionState.ARCHIVED)
    return Verdict(ActionFound(archived), (RowChanged(action, archived),))


def find_action(state: State, name: str) -> Action:
    """Return the action with the name, in any spelling. Raise `NotFound` if there is none."""
    action = state.actions.get(canonical(name))
    if action is None:
        raise NotFound(f"there is no action {canonical(name)!r}: create it first", name=canonical(name))
    return action


def usable_action(state: State, name: str) -> Action:
    """Return the action if a plan can be created from it. Raise `ActionUnavailable` if it is archived or spent."""
    action = find_action(state, name)
    if action.state is ActionState.ARCHIVED:
        raise ActionUnavailable(f"action {action.name!r} is archived", name=action.name)
    if action.spent:
        raise ActionUnavailable(f"action {action.name!r} is not reusable and was used already", name=action.name)
    return action


def bind(action: Action, given: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return the arguments of a new plan: the given value or the default of each parameter, checked against its bounds.

    An optional parameter without a value is left out of the result. Raise `InvalidArgument` for an unknown name, a
    value of the wrong type or out of bounds, a required parameter without a value, and for values that are too long
    together, because a plan has to fit into one reply.
    """
    if not given and not action.arguments:
        return {}
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
"""The placeholder `{name}` of an argument; the name has the characters of a `Label`."""


def render(template: str, arguments: Mapping[str, ArgumentValue]) -> str:
    """Return the template with each `{name}` replaced by its argument.

    Unlike `str.format` it reaches no attributes, leaves unknown names and other braces as they are, and does not
    replace placeholders inside the values that it inserts. Raise `InvalidArgument` if the result is too long.
    """
    if "{" not in template and len(template) <= limits.TEXT_CHARS_MAX:
        return template
    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(template):
        placeholder = template[match.start() : match.end()]
        parts += template[end : match.start()], str(arguments.get(placeholder[1:-1], placeholder))
        end = match.end()
    rendered = "".join([*parts, template[end:]])
    if len(rendered) > limits.TEXT_CHARS_MAX:
        raise InvalidArgument(
            f"the rendered text has {plural(len(rendered), 'character')}, at most {limits.TEXT_CHARS_MAX:,}"
        )
    return rendered


def _actor(name: str | None, what: str) -> str | None:
    """Return the canonical form of an optional actor's name."""
    return canonical(name, what) if name is not None else None


def _check_arguments(arguments: tuple[Argument, ...]) -> None:
    """Raise `InvalidArgument` if two parameters clash, a pattern does not compile, or a default is out of bounds."""
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
    """Raise `InvalidArgument` if the value is not of the parameter's type or not within its bounds.

    NaN passes every comparison with a bound as false, so only finite numbers are accepted.
    """
    what = f"argument {argument.name!r}"
    if isinstance(value, bool) != (argument.type is ArgumentType.BOOLEAN) or not isinstance(
        value, _PYTHON_TYPES[argument.type]
    ):
        raise InvalidArgument(f"{what} is of type {type(value).__name__}: give one of type {argument.type}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{what} is {value}: give a number that is finite")
    if isinstance(value, str):
        if len(value) > limits.TEXT_CHARS_MAX:
            raise InvalidArgument(f"{what} has {plural(len(value), 'character')}, at most {limits.TEXT_CHARS_MAX:,}")
        if argument.pattern is not None and not matcher(argument.pattern)(value):
            raise InvalidArgument(f"{what} is {value[:80]!r}, which does not match {argument.pattern!r}")
        return
    if argument.minimum is not None and not value >= argument.minimum:
        raise InvalidArgument(f"{what} is {value}, less than its minimum {argument.minimum}")
    if argument.maximum is not None and not value <= argument.maximum:
        raise InvalidArgument(f"{what} is {value}, more than its maximum {argument.maximum}")

"""One name, one action; arguments are checked once, when the action is used."""

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace

from stepwell import limits
from stepwell.domain.checks import check
from stepwell.domain.plans.actions import render
from stepwell.domain.plans.commands import ArchiveAction, CreateAction, GetAction, ListActions, UseAction
from stepwell.domain.plans.model import ActionState, Argument, ArgumentType, ArgumentValue, ProjectLink
from stepwell.errors import ActionUnavailable, AlreadyExists, Busy, InvalidArgument, NotFound
from tests.support.domain.world import LINKS, NOON_MS, World
from tests.support.measurement import untraced


@pytest.fixture
def world() -> World:
    return World()


def created(name: str = "act", *arguments: Argument) -> CreateAction:
    return CreateAction(name, "", "", "planner", "coder", arguments=arguments)


class TestCreate:
    """Create, and never overwrite."""

    def test_everything_is_kept(self, world: World) -> None:
        """Names get their namespace; the rest is as it was given."""
        command = CreateAction(
            "fix-bug",
            "fix it",
            "it is fixed",
            "planner",
            "team/coder",
            "hub:team/guesser",
            "reviewer",
            "applier",
            "guard",
            (Argument(name="what"),),
            ("tests pass",),
            "careful",
            reusable=False,
            read_only=True,
        )
        action = world.do(command).action
        assert action.name == "local/fix-bug"
        assert (action.strategy_actor, action.execution_actor) == ("local/planner", "team/coder")
        assert (action.estimation_actor, action.review_actor) == ("hub:team/guesser", "local/reviewer")
        assert (action.apply_actor, action.invariant_actor) == ("local/applier", "local/guard")
        assert (action.arguments, action.invariants) == (command.arguments, command.invariants)
        assert (action.automation_profile, action.reusable, action.read_only) == ("careful", False, True)
        assert (action.state, action.uses, action.created_at_ms, action.revision) == (
            ActionState.AVAILABLE,
            0,
            NOON_MS,
            1,
        )

    def test_optional_actors_are_none(self, world: World) -> None:
        """Not some default."""
        action = world.do(created()).action
        assert [action.estimation_actor, action.review_actor, action.apply_actor, action.invariant_actor] == [None] * 4

    @pytest.mark.parametrize("name", ["act", "local/act"])
    def test_existing_name(self, world: World, name: str) -> None:
        """By any spelling, the second is refused and the first is left as it is."""
        world.do(created())
        error = world.refuse(created(name), AlreadyExists, "exists already: choose another name, or use it")
        assert error.details == {"name": "local/act"}

    def test_archived_name_stays_taken(self, world: World) -> None:
        """Archiving does not free a name."""
        world.do(created())
        world.do(ArchiveAction("act"))
        world.refuse(created(), AlreadyExists, "exists already")

    def test_same_name_elsewhere(self, world: World) -> None:
        """Namespaces and servers keep names apart."""
        for name in ("act", "team/act", "hub:team/act"):
            world.do(created(name))
        assert len(world.state.actions) == 3

    @pytest.mark.parametrize("field", ["name", "strategy_actor", "execution_actor", "review_actor"])
    def test_malformed_names(self, world: World, field: str) -> None:
        """The refusal says which of them."""
        command = replace(created(), **{field: "With Spaces"})
        world.refuse(command, InvalidArgument, f"{field} 'With Spaces' is not .*did you mean 'with-spaces'")

    def test_bound(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is room for so many and no more."""
        monkeypatch.setattr(limits, "ACTIONS_MAX", 1)
        world.do(created())
        assert world.refuse(created("more"), Busy, "there are 1 actions already").retry

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ((Argument(name="a"), Argument(name="a")), "two arguments have the same name"),
            ((Argument(name="a", position=1), Argument(name="b", position=1)), "the same position"),
            ((Argument(name="a", pattern="("),), r"pattern '\(' is not an RE2 expression"),
            ((Argument(name="a", pattern=r"(a)\1"),), "is not an RE2 expression"),
            ((Argument(name="a", pattern="x+", default="y"),), "'y', which does not match 'x\\+'"),
            ((Argument(name="a", type=ArgumentType.INTEGER, default="1"),), "is of type str: give one of type integer"),
        ],
    )
    def test_contradictory_arguments(self, world: World, arguments: tuple[Argument, ...], message: str) -> None:
        """An action that nobody could use is refused when it is created."""
        world.refuse(created("act", *arguments), InvalidArgument, message)

    def test_positions_may_be_left_out(self, world: World) -> None:
        """Two arguments without a position do not collide."""
        world.do(created("act", Argument(name="a"), Argument(name="b"), Argument(name="c", position=0)))


@pytest.mark.parametrize(
    "name, position, pattern, message",
    [
        ("", None, None, "name is malformed: give 1 to 64"),
        ("a", -1, None, "position was refused .*from 0 to 64"),
        ("a", None, "x" * 513, "pattern was refused .*at most 512"),
    ],
)
def test_argument_that_exists_is_valid(name: str, position: int | None, pattern: str | None, message: str) -> None:
    """Its bounds are checked where it is made."""
    with pytest.raises(InvalidArgument, match=message):
        Argument(name=name, position=position, pattern=pattern)


@pytest.mark.parametrize("minimum, maximum", [(2, 1), (1, -1), (1.5, 1.25)], ids=str)
def test_argument_with_crossed_bounds(minimum: float, maximum: float) -> None:
    """No value could lie between them; on a single point one does, and one bound alone crosses nothing."""
    with pytest.raises(InvalidArgument, match="argument 'a' has a minimum above its maximum"):
        Argument(name="a", type=ArgumentType.NUMBER, minimum=minimum, maximum=maximum)
    Argument(name="a", type=ArgumentType.NUMBER, minimum=minimum, maximum=minimum)
    Argument(name="a", type=ArgumentType.NUMBER, minimum=minimum)
    Argument(name="a", type=ArgumentType.NUMBER, maximum=maximum)


class TestGetAndList:
    """Reads."""

    @pytest.mark.parametrize("name", ["act", "local/act"])
    def test_any_spelling(self, world: World, name: str) -> None:
        """One action by any spelling of its name."""
        world.do(created())
        assert world.do(GetAction(name)).action.name == "local/act"

    def test_missing(self, world: World) -> None:
        """The refusal says under which name it was looked for."""
        error = world.refuse(GetAction("act"), NotFound, "there is no action 'local/act': create it first")
        assert error.details == {"name": "local/act"}
        world.refuse(GetAction("No Name"), InvalidArgument, "did you mean 'no-name'")

    def test_pages(self, world: World) -> None:
        """In order of name."""
        for name in "cab":
            world.do(created(name))
        page = world.do(ListActions(limit=2))
        assert ([each.name for each in page.actions], page.cursor) == (["local/a", "local/b"], "local/b")
        rest = world.do(ListActions(cursor=page.cursor))
        assert ([each.name for each in rest.actions], rest.cursor) == (["local/c"], None)


class TestArchive:
    """Out of use, not out of sight."""

    def test_archived_cannot_be_used(self, world: World) -> None:
        """Its plans go on; archiving twice is the same as once."""
        world.use()
        world.do(ArchiveAction("act"))
        assert world.do(ArchiveAction("local/act")).action.state is ActionState.ARCHIVED
        error = world.refuse(UseAction("new", "act", LINKS), ActionUnavailable, "action 'local/act' is archived")
        assert error.details == {"name": "local/act"}
        world.start()

    def test_missing(self, world: World) -> None:
        """Nothing is archived in advance."""
        world.refuse(ArchiveAction("act"), NotFound, "create it first")


class TestUse:
    """What using an action checks."""

    def test_spent(self, world: World) -> None:
        """A non-reusable action is used once."""
        world.action(reusable=False)
        world.use()
        world.refuse(UseAction("new", "act", LINKS), ActionUnavailable, "is not reusable and was used already")

    def test_reusable_counts_its_uses(self, world: World) -> None:
        """Each use is counted."""
        world.use("one")
        world.use("two")
        assert world.do(GetAction("act")).action.uses == 2

    @pytest.mark.parametrize(
        "argument, value",
        [
            (Argument(name="a"), "text"),
            (Argument(name="a", pattern="[a-z]+"), "abc"),
            (Argument(name="a", type=ArgumentType.INTEGER, minimum=1, maximum=3), 3),
            (Argument(name="a", type=ArgumentType.NUMBER, minimum=1), 1),
            (Argument(name="a", type=ArgumentType.NUMBER), 1.5),
            (Argument(name="a", type=ArgumentType.BOOLEAN), False),
        ],
    )
    def test_value_within_its_bounds(self, world: World, argument: Argument, value: ArgumentValue) -> None:
        """It arrives in the plan."""
        world.do(created("act", argument))
        assert world.do(UseAction("plan", "act", LINKS, {"a": value})).plan.arguments == {"a": value}

    @pytest.mark.parametrize(
        "argument, value, message",
        [
            (Argument(name="a"), 1, "argument 'a' is of type int: give one of type string"),
            (Argument(name="a", pattern="[a-z]+"), "abc1", "is 'abc1', which does not match"),
            (Argument(name="a"), "x" * 64_001, "has 64,001 characters, at most 64,000"),
            (Argument(name="a", type=ArgumentType.INTEGER), 1.0, "is of type float: give one of type integer"),
            (Argument(name="a", type=ArgumentType.INTEGER), True, "is of type bool: give one of type integer"),
            (Argument(name="a", type=ArgumentType.BOOLEAN), 1, "is of type int: give one of type boolean"),
            (Argument(name="a", type=ArgumentType.INTEGER, minimum=2), 1, "is 1, less than its minimum 2"),
            (Argument(name="a", type=ArgumentType.NUMBER, maximum=2), 2.5, "is 2.5, more than its maximum 2"),
            (Argument(name="a", type=ArgumentType.NUMBER, minimum=2), float("nan"), "finite"),
            (Argument(name="a", type=ArgumentType.NUMBER, maximum=2), float("-inf"), "finite"),
        ],
    )
    def test_value_outside_its_bounds(
        self, world: World, argument: Argument, value: ArgumentValue, message: str
    ) -> None:
        """The refusal says which bound."""
        world.do(created("act", argument))
        world.refuse(UseAction("plan", "act", LINKS, {"a": value}), InvalidArgument, message)

    def test_required_default_and_unknown(self, world: World) -> None:
        """Required or default or absent; what the action does not know is not ignored."""
        world.do(
            created(
                "act",
                Argument(name="must"),
                Argument(name="may", required=False),
                Argument(name="has", default="d"),
            )
        )
        plan = world.do(UseAction("plan", "act", LINKS, {"must": "m"})).plan
        assert plan.arguments == {"must": "m", "has": "d"}
        world.refuse(UseAction("new", "act", LINKS), InvalidArgument, "needs the argument 'must'")
        world.refuse(
            UseAction("new", "act", LINKS, {"must": "m", "b": "x", "a": "x"}),
            InvalidArgument,
            "has no argument 'a'; it has has, may, must",
        )

    def test_texts_are_bounded_together(self, world: World) -> None:
        """The defaults too, and in characters; the bound may be reached. Numbers do not count."""
        world.do(
            created(
                "act",
                Argument(name="one"),
                Argument(name="two", required=False),
                Argument(name="has", default="☃" * 1_000),
                Argument(name="number", type=ArgumentType.INTEGER, required=False),
            )
        )
        half = "☃" * (limits.TEXT_CHARS_MAX // 2)
        fits: dict[str, ArgumentValue] = {"one": half, "two": half[1_000:], "number": 7}
        assert world.do(UseAction("plan", "act", LINKS, fits)).plan.arguments == {**fits, "has": "☃" * 1_000}
        world.refuse(
            UseAction("new", "act", LINKS, {**fits, "two": half[999:]}),
            InvalidArgument,
            f"^the arguments have more than {limits.TEXT_CHARS_MAX} characters: store a fragment$",
        )
        world.do(UseAction("new", "act", LINKS, {**fits, "two": half[999:], "has": ""}))

    def test_unknown_argument_of_an_action_without_any(self, world: World) -> None:
        """The refusal does not end in an empty list."""
        world.do(created())
        world.refuse(UseAction("plan", "act", LINKS, {"a": 1}), InvalidArgument, "has no argument 'a'; it has none$")


class TestRender:
    """Placeholders, and nothing that a template language could do."""

    @pytest.mark.parametrize(
        "template, expected",
        [
            ("fix {what} in {n} steps", "fix it in 3 steps"),
            ("{unknown} {{what}} {}", "{unknown} {it} {}"),
            ("{what.__class__} {0} {what!r}", "{what.__class__} {0} {what!r}"),
            ("☃ {what} ☃", "☃ it ☃"),
            ("", ""),
        ],
    )
    def test_examples(self, template: str, expected: str) -> None:
        """Known names are filled; everything else, other braces included, is left alone."""
        assert render(template, {"what": "it", "n": 3}) == expected

    def test_values_are_not_rendered_again(self) -> None:
        """An argument cannot reach another one."""
        assert render("{a}{b}", {"a": "{b}", "b": "{a}"}) == "{b}{a}"

    def test_result_is_bounded(self) -> None:
        """However small the template is."""
        with pytest.raises(InvalidArgument, match="rendered text has 64,001 characters, at most 64,000"):
            render("{a}", {"a": "x" * 64_001})


PROJECTS = st.one_of(
    st.text(max_size=6),
    st.text(alphabet="ab/.-_ \n", max_size=8),
    st.integers(limits.PROJECT_CHARS_MAX - 1, limits.PROJECT_CHARS_MAX + 1).map("p".__mul__),
    st.sampled_from([None, 1, b"p"]),
)


@untraced()
@given(PROJECTS, st.sampled_from([None, "a", "a b", 1]), st.sampled_from([False, True, 0, None]))
def test_usual_links_are_checked_like_all_others(project: object, alias: object, read_only: object) -> None:
    """A usual link takes a shorter way through its checks. It refuses what they refuse, and nothing else."""
    link = ProjectLink("p")
    for name, value in (("project", project), ("alias", alias), ("read_only", read_only)):
        force_setattr(link, name, value)
    refused = False
    try:
        check(link)
    except InvalidArgument:
        refused = True
    make = cast("Callable[..., ProjectLink]", ProjectLink)
    if not refused:
        assert make(project, alias, read_only) == link
        return
    with pytest.raises(InvalidArgument):
        make(project, alias, read_only)

"""`stepwell plan new`: a plan whose id a script can keep."""

import pytest

import stepwell as sw
from tests.support.cli.plans import ACTION, Shell


def test_the_id_alone(shell: Shell, client: sw.Client) -> None:
    """On stdout there is nothing else: PLAN=$(stepwell plan new ...)."""
    told = shell("plan", "new", "change", "--project", "shop", "--project", "docs", "--argument", "what=a=b")
    assert (told.code, told.err) == (0, "")
    plan = client.plans.get_plan(told.out.strip())
    assert (plan.description, plan.projects) == ("change a=b", ("shop", "docs"))


def test_typed_arguments(shell: Shell, client: sw.Client) -> None:
    """An argument is of the type that its action declares."""
    types = {"n": "integer", "x": "number", "b": "boolean", "s": "string"}
    client.plans.create_action(
        "typed",
        description="",
        definition_of_done="",
        strategy_actor="a",
        execution_actor="a",
        arguments=[sw.Argument(name=name, type=sw.ArgumentType(type_)) for name, type_ in types.items()],
    )
    given = [word for each in ("n=3", "x=0.5", "b=True", "s=3") for word in ("--argument", each)]
    facts = shell("plan", "new", "typed", "--project", "p", "--json", *given).json
    assert facts["plan.arguments"] == {"n": 3, "x": 0.5, "b": True, "s": "3"}
    for wrong in ("n=three", "x=much", "b=maybe"):
        told = shell("plan", "new", "typed", "--project", "p", *given, "--argument", wrong)
        assert (told.code, f"give a {types[wrong[0]]}" in told.err) == (2, True)


def test_labels(shell: Shell) -> None:
    """Each once and in order; `plan show` has them."""
    told = shell(
        "plan", "new", ACTION, "--project", "p", "--json", "--label", "python", "--label", "gpu", "--label", "gpu"
    )
    assert told.json["plan.labels"] == ["gpu", "python"]
    assert "labels gpu, python" in shell("plan", "show", str(told.json["plan.plan_id"])).words


def test_validations(shell: Shell) -> None:
    """A command is split as a shell would."""
    told = shell("plan", "new", ACTION, "--project", "p", "--json", "--validate", "tests=pytest -k 'a b'")
    assert told.json["plan.validations.0.name"] == "tests"
    assert told.json["plan.validations.0.command"] == ["pytest", "-k", "a b"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        (["--argument", "what"], "'what' is not NAME=VALUE"),
        (["--argument", "=x"], "'=x' is not NAME=VALUE"),
        (["--argument", "colour=red"], "has no argument 'colour'"),
        (["--validate", "tests='"], "cannot be split into words: No closing quotation"),
        (["--validate", "tests="], "a command is a tuple of 1 to 64 texts"),
    ],
)
def test_misuse(shell: Shell, wrong: list[str], said: str) -> None:
    """Said, with exit code 2, and there is no plan."""
    told = shell("plan", "new", ACTION, "--project", "p", *wrong)
    assert (told.code, told.out) == (2, "")
    assert said in " ".join(told.err.split())
    assert shell("plan", "list", "--all", "--json").json["plans"] == []


def test_no_such_action(shell: Shell) -> None:
    assert shell("plan", "new", "nothing", "--project", "p").code == 1

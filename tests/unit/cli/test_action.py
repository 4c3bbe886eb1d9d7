"""`stepwell action`: templates from a shell."""

from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.testing import LocalRuntime


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


def test_create(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing but a name, or with all that a plan can be asked for; what to do next is said."""
    address = ["--address", runtime.address]
    assert main(["action", "create", "simple", *address]) == 0
    assert "`stepwell plan new local/simple --project NAME`" in capsys.readouterr().out
    options = ["--description", "fix {bug}", "--argument", "bug", "--argument", "how=well", "--once"]
    validation = ["--validate", "tests=pytest -q"]
    assert main(["action", "create", "team/fix", "--done", "it is", *options, *validation, *address]) == 0
    action = runtime.client().plans.get_action("team/fix")
    assert (action.description, action.definition_of_done, action.reusable) == ("fix {bug}", "it is", False)
    assert [(each.name, each.required, each.default) for each in action.arguments] == [
        ("bug", True, None),
        ("how", False, "well"),
    ]
    assert action.validations == (sw.Validation("tests", ("pytest", "-q")),)
    assert main(["action", "create", "simple", *address]) == 1
    assert "exists already" in capsys.readouterr().err


def test_list(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, page by page, with how often each was used; if there is none, how to make one."""
    monkeypatch.setattr("stepwell.limits.PAGE_ROWS_MAX", 1)
    address = ["--address", runtime.address]
    assert main(["action", "list", *address]) == 0
    assert "stepwell action create NAME" in capsys.readouterr().err
    for name in ("b", "a"):
        assert main(["action", "create", name, "--once", "--json", *address]) == 0
    capsys.readouterr()
    assert main(["action", "list", *address]) == 0
    assert "local/a available, once 0 local/b available, once 0" in " ".join(capsys.readouterr().out.split())
    assert main(["action", "list", "--json", *address]) == 0
    assert '{"name": "local/a", "state": "available", "reusable": false, "uses": 0}' in capsys.readouterr().out

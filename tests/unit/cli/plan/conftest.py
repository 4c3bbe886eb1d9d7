"""A manager in this process for each test, and the command line as it is called from a shell."""

from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import ACTION, CommandOutput, Shell


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


@pytest.fixture
def client(runtime: LocalRuntime) -> Iterator[sw.Client]:
    """Of somebody else than the command. There is an action to use."""
    with runtime.client() as client:
        client.plans.create_action(
            ACTION,
            description="change {what}",
            definition_of_done="it is changed",
            strategy_actor="local/planner",
            execution_actor="local/worker",
            arguments=[sw.Argument(name="what", default="something")],
        )
        yield client


@pytest.fixture
def shell(runtime: LocalRuntime, client: sw.Client, capfd: pytest.CaptureFixture[str]) -> Shell:
    """`stepwell` with the manager of this test."""
    assert client.epoch

    def call(*arguments: str) -> CommandOutput:
        capfd.readouterr()
        command, verb, *rest = arguments
        code = main([command, verb, "--address", runtime.address, *rest])
        told = capfd.readouterr()
        return CommandOutput(code, told.out, told.err)

    return call

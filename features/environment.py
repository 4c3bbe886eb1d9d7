"""What holds for every scenario: it leaves nothing behind, and what is expected to fail fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from unittest import mock

from behave import fixture, use_fixture
from behave.model import Scenario
from behave.runner import Context

from stepwell.testing.leaks import no_leaks, private_runtime_directory
from tests.support.features import expected_failure
from tests.support.signals import restore_keyboard_signals
from tests.support.trees import own_state_directory

restore_keyboard_signals()
expected_failure.install()


@fixture
def own_directory(_context: Context) -> Iterator[None]:
    """A place for sockets in which nobody else makes any, not even where there is no runtime directory; and a key of
    its own for trees.
    """
    with private_runtime_directory() as directory, mock.patch.object(tempfile, "tempdir", str(directory)):
        with own_state_directory():
            yield


@fixture
def nothing_left_behind(context: Context) -> Iterator[None]:
    """What is ending may take long to end on a busy machine; `-D leak_seconds=…` gives it another time."""
    with no_leaks(context.config.userdata.getfloat("leak_seconds", 30.0)):
        yield


def before_all(context: Context) -> None:
    use_fixture(own_directory, context)


def before_scenario(context: Context, _scenario: Scenario) -> None:
    """Cleanups run last in, first out: whatever a step makes is closed before this looks for what is left."""
    use_fixture(nothing_left_behind, context)

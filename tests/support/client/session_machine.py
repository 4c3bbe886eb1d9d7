"""Values for tests of the session's rules: a connection without a socket, and a session that was welcomed."""

from msgspec.structs import replace

from stepwell.client.session.session_rules import Observation, SessionRules
from stepwell.domain.tiers.commands import GetFragment
from stepwell.protocol.messages import Request
from tests.support.client.fake_manager import WELCOME
from tests.support.peers import store

DURABLE = replace(WELCOME, database="/data/stepwell.sqlite")
"""The welcome of a manager that is expected to restart with its state."""

QUIET = Observation(now_s=0.0, jitter=1.0, is_given_up=False, is_restarting=False, cause=None)
"""Nothing is known about the manager."""


class IdleConnection:
    """A connection, as the rules see it."""

    def __init__(self, generation: int = WELCOME.generation, *, is_used: bool = False) -> None:
        self.generation = generation
        self.seen_before = 0
        self.is_used = is_used


def session(*, is_durable: bool = True) -> SessionRules:
    """A session that a manager has welcomed."""
    rules = SessionRules("/run/s", ("p",), "me")
    rules.welcomed(IdleConnection(), DURABLE if is_durable else WELCOME)
    return rules


def write(number: int, answered: int) -> Request:
    return Request(number, (store("a"),), answered)


def read(number: int, answered: int) -> Request:
    return Request(number, (GetFragment("p", "a"),), answered)

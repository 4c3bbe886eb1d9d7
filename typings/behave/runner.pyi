from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec

from behave.model import Feature, Scenario, Table

_P = ParamSpec("_P")

class Context:
    feature: Feature
    scenario: Scenario
    tags: set[str]
    table: Table | None
    text: str | None
    aborted: bool
    failed: bool

    # Steps hand values to each other here.
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...
    def __delattr__(self, name: str) -> None: ...
    def __contains__(self, name: str) -> bool: ...
    def abort(self, reason: str | None = None) -> None: ...
    def add_cleanup(self, cleanup_func: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    def execute_steps(self, steps_text: str) -> bool: ...
    def use_with_user_mode(self) -> AbstractContextManager[None]: ...

class ModelRunner:
    context: Context
    aborted: bool
    hooks: dict[str, Callable[..., object]]

class Runner(ModelRunner): ...

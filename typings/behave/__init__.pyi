from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from behave.runner import Context

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Step = TypeVar("_Step", bound=Callable[Concatenate[Context, ...], object])
_Fixture = TypeVar("_Fixture", bound=Callable[..., Any])

def given(step_text: str) -> Callable[[_Step], _Step]: ...
def when(step_text: str) -> Callable[[_Step], _Step]: ...
def then(step_text: str) -> Callable[[_Step], _Step]: ...
def step(step_text: str) -> Callable[[_Step], _Step]: ...
def register_type(**kwargs: Callable[[str], Any]) -> None: ...
def use_step_matcher(name: str) -> None: ...
@overload
def fixture(func: _Fixture) -> _Fixture: ...
@overload
def fixture(*, name: str | None = None, pattern: str | None = None) -> Callable[[_Fixture], _Fixture]: ...
@overload
def use_fixture(
    fixture_func: Callable[Concatenate[Context, _P], Iterator[_T]],
    context: Context,
    *fixture_args: _P.args,
    **fixture_kwargs: _P.kwargs,
) -> _T: ...
@overload
def use_fixture(
    fixture_func: Callable[Concatenate[Context, _P], _T],
    context: Context,
    *fixture_args: _P.args,
    **fixture_kwargs: _P.kwargs,
) -> _T: ...

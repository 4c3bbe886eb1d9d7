from collections.abc import Iterator
from types import TracebackType

from behave.model_type import Status
from behave.runner import ModelRunner

class Tag(str):
    line: int

class _Statement:
    keyword: str
    name: str
    exception: BaseException | None
    exc_traceback: TracebackType | None
    error_message: str | None

    @property
    def filename(self) -> str: ...
    @property
    def line(self) -> int: ...

class _TaggedStatement(_Statement):
    tags: list[Tag]
    skip_reason: str | None

    @property
    def effective_tags(self) -> set[str]: ...
    @property
    def status(self) -> Status: ...
    @property
    def duration(self) -> float: ...
    def set_status(self, value: Status | str) -> None: ...
    def clear_status(self) -> None: ...
    def mark_skipped(self, reason: str | None = None) -> None: ...
    def skip(self, reason: str | None = None, require_not_executed: bool = False) -> None: ...

class Feature(_TaggedStatement):
    description: list[str]
    scenarios: list[Scenario]

    def walk_scenarios(self, with_outlines: bool = False, with_rules: bool = False) -> list[Scenario]: ...

class Scenario(_TaggedStatement):
    description: list[str]
    steps: list[Step]
    feature: Feature
    hook_failed: bool
    was_dry_run: bool
    continue_after_failed_step: bool

    @property
    def all_steps(self) -> Iterator[Step]: ...
    def run(self, runner: ModelRunner) -> bool: ...

class ScenarioOutline(Scenario):
    @property
    def scenarios(self) -> list[Scenario]: ...

class Step(_Statement):
    step_type: str
    text: str | None
    table: Table | None
    status: Status
    duration: float

    def set_status(self, status: Status) -> None: ...
    def has_failed(self) -> bool: ...

class Row:
    headings: list[str]
    cells: list[str]

    def __getitem__(self, name: str | int) -> str: ...
    def __contains__(self, item: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def get(self, key: str, default: str | None = None) -> str | None: ...
    def as_dict(self) -> dict[str, str]: ...

class Table:
    headings: list[str]
    rows: list[Row]

    def __getitem__(self, index: int) -> Row: ...
    def __iter__(self) -> Iterator[Row]: ...

"""Assemble an answer: choose what should be seen for a question, within a number of tokens, and record why.

Strategies run in the workers, all on one view. The rest of the pipeline runs in the caller's process (`assembly`); the
manager only stores the receipt. Assembling is no access: it changes nothing in the tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from stepwell import limits
from stepwell.assembly import components, pipeline, replay
from stepwell.assembly.answer import Answer
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.receipt import Receipt
from stepwell.assembly.source_parts import SourceParts
from stepwell.assembly.stages import expand
from stepwell.assembly.stages.allocate import candidate_tokens
from stepwell.assembly.stages.expand import Expand
from stepwell.assembly.stages.select import names_to_ask
from stepwell.client.api.plans import PlanApi
from stepwell.client.api.receipts import ReceiptService
from stepwell.client.api.views import View
from stepwell.client.session.session import Session
from stepwell.client.workflows.ancestry import PlanAncestry
from stepwell.client.workflows.strategy_executor import (
    DefaultStrategyExecutor,
    Execution,
    OnStrategyProgress,
    StrategyClient,
)
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.model import Plan
from stepwell.domain.tasks.model import StrategyOffer
from stepwell.errors import Busy, InvalidArgument, OutOfScope, ResourceExhausted, TierFull
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Receipt)


class AssemblyClient(StrategyClient, Protocol):
    """The part of `Client` that an assembly uses; a protocol, because workflows do not import the facades."""

    @property
    def projects(self) -> tuple[str, ...] | None: ...
    @property
    def session(self) -> Session: ...
    @property
    def plans(self) -> PlanApi: ...
    @property
    def receipts(self) -> ReceiptService: ...


class RequestOptions(Struct, frozen=True, kw_only=True):
    """The fields of a `ContextRequest` that a caller gives beside a text; None stands for the field's default."""

    projects: Sequence[str] | None = None
    focus: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    breadth: int | None = None
    depth: int | None = None
    budget_tokens: int | None = None
    as_of_ms: int | None = None
    stop_score: float | None = None

    @property
    def given(self) -> dict[str, object]:
        """The fields that were given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class ContextAssembly:
    """Assembles answers for one client, which owns it. Any number of threads may use it.

    Its only state is the executor with the circuit breakers of the strategies, and the rows of the last views.
    """

    def __init__(self, client: AssemblyClient) -> None:
        self._client = client
        self._session = client.session
        self._executor = DefaultStrategyExecutor(client)
        self._nearby: Final[Expand] = partial(expand.nearby, find_rows=SourceParts().find)

    def assemble(
        self,
        request: ContextRequest | str | None,
        options: RequestOptions,
        plan_id: str | None,
        *,
        strategies: Sequence[str] | None,
        view: View | None,
        deadline_s: float | None,
        stages: Mapping[str, str] | None,
        keep_receipt: bool,
        on_progress: OnStrategyProgress | None,
    ) -> Answer:
        """Return an answer, as `Client.assemble` promises; the receipt is stored if there is room for it."""
        chosen = components.named(stages or {})  # first, so that a wrong name is refused before work is done
        if chosen.expand is expand.nearby:
            chosen = replace(chosen, expand=self._nearby)
        full_request = self._full_request(request, options, plan_id, view)
        offers = tuple(map(info_of, self._client.strategies.list().offers))
        names = names_to_ask(full_request, offers) if strategies is None else tuple(strategies)
        # Each strategy may return more than the answer has room for, so that the pipeline can choose among them.
        budgets = dict.fromkeys(names, candidate_tokens(full_request.budget_tokens))
        execution, seen = self._executor.observe(
            full_request, names, budgets=budgets, deadline_s=deadline_s, view=view, on_progress=on_progress
        )
        # `View` is a `StrategyView`; the cast is for pyright, which does not accept its lazy properties.
        strategy_view = cast("StrategyView", seen)
        results, failures = tuple(execution.results.values()), failures_of(execution)
        inputs = AssemblyInputs(full_request, strategy_view, results, self._count, failures, offers)
        answer = pipeline.assemble(inputs, chosen)
        return self._store_receipt(answer) if keep_receipt else answer

    def replay(self, receipt: Receipt | str) -> Answer:
        """Return the answer of a receipt again, from the bodies that it names; `BodyGone` if one is gone."""
        require_instance(receipt, (Receipt, str), "give a receipt, or the id under which it is kept")
        found = self.receipt(receipt) if isinstance(receipt, str) else receipt
        view = cast("StrategyView", self._client.view(found.request.projects))
        return replay.replay(found, view, self._count)

    def receipt(self, receipt_id: str) -> Receipt:
        """Return a stored receipt; `InvalidArgument` if another version of stepwell wrote it in another form."""
        try:
            found = _decoder.decode(self._client.receipts.get(receipt_id))
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"receipt {receipt_id!r} was made by another version of stepwell: {error}") from error
        # Receipts of the first layout are older than the stop score: their answers filled the budget.
        return found if found.layout > 1 else replace(found, request=replace(found.request, stop_score=0.0))

    def _count(self, text: str) -> int:
        """Count tokens as the manager does; an empty text has none, though an empty body counts as one."""
        return self._session.count_tokens(text.encode()) if text else 0

    def _full_request(
        self, request: ContextRequest | str | None, options: RequestOptions, plan_id: str | None, view: View | None
    ) -> ContextRequest:
        """Return the request, or the one that a text and options make, with the plan's decisions and ancestors.

        Raises `OutOfScope` if the request names projects that the plan may not see.
        """
        require_instance(request, (ContextRequest, str, type(None)), "ask with a text or a stepwell.ContextRequest")
        require_instance(view, (View, type(None)), "view is a stepwell.View")
        ancestry = None if plan_id is None else PlanAncestry(self._client.plans, plan_id)
        if not isinstance(request, ContextRequest):
            request = self._request_of_text(request, options, ancestry.plan if ancestry else None, view)
        elif given := options.given:
            raise InvalidArgument(f"set {', '.join(given)} in the ContextRequest, or ask with a text")
        if ancestry is None:
            return request
        plan = ancestry.plan
        if beyond := [each for each in request.projects if each not in plan.projects]:
            raise OutOfScope(f"plan {plan_id!r} does not see {', '.join(beyond)}: it has {', '.join(plan.projects)}")
        return replace(request, plan=ancestry.as_seen())

    def _request_of_text(
        self, text: str | None, options: RequestOptions, plan: Plan | None, view: View | None
    ) -> ContextRequest:
        """Return the request of a text, or without one that of a focus or of a plan's own description."""
        if text is None:
            if plan is None and not options.focus:
                raise InvalidArgument("ask something: give a question, a focus=, a plan_id=, or several of them")
            text = plan.description[: limits.TEXT_CHARS_MAX] if plan else ""
        projects = options.projects
        if projects is None:
            projects = view.projects if view is not None else plan.projects if plan else self._client.projects
        if projects is None:
            raise InvalidArgument("this session sees all projects: name those to search with projects=[...]")
        return replace(ContextRequest(projects=projects, query=text), **options.given)

    def _store_receipt(self, answer: Answer) -> Answer:
        """Return the answer with the id of its stored receipt; without one if there is no room for the receipt."""
        receipt = answer.receipt
        encoded = _encoder.encode(receipt)
        # The answer is complete without a stored receipt; only `replay` by id is not possible then.
        if len(encoded) > limits.RECEIPT_BYTES_MAX:
            return answer
        try:
            receipt_id = self._client.receipts.store(
                self._client.session.new_id(), receipt.request.projects, receipt.request.query, encoded
            )
        except (TierFull, ResourceExhausted, Busy):
            return answer
        return replace(answer, receipt_id=receipt_id)


def info_of(offered: StrategyOffer) -> StrategyInfo:
    """Return an offer without the workers that make it: stages choose strategies by what they can do."""
    return StrategyInfo(offered.name, offered.capabilities, offered.is_partitioned)


def failures_of(execution: Execution) -> tuple[Failure, ...]:
    """Return the failures as values that a receipt can store."""
    return tuple(Failure(name, error.kind, error.message) for name, error in execution.failures.items())

"""Assembling: what should be seen for a question, in so many tokens, and why.

Strategies run in the workers, all on one view; the rest is done here, by `assembly`, and the manager only keeps the
receipt. Assembling is no access: it moves nothing in the tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

import msgspec
from msgspec.structs import replace
from ulid import ULID

from stepwell import limits
from stepwell.assembly import components, pipeline, replay
from stepwell.assembly.answer import Answer
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.receipt import Receipt
from stepwell.assembly.stages.allocate import candidate_tokens
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
from stepwell.domain.tasks.model import StrategyOffer
from stepwell.errors import Busy, InvalidArgument, OutOfScope, TierFull
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Receipt)


class AssemblyClient(StrategyClient, Protocol):
    """The part of `Client` that an assembly uses."""

    @property
    def session(self) -> Session: ...
    @property
    def plans(self) -> PlanApi: ...
    @property
    def receipts(self) -> ReceiptService: ...


class ContextAssembly:
    """Assembles for one client. Safe from any number of threads."""

    def __init__(self, client: AssemblyClient) -> None:
        self._client = client
        self._session = client.session
        self._executor = DefaultStrategyExecutor(client)

    def assemble(
        self,
        request: ContextRequest | None,
        plan_id: str | None,
        *,
        strategies: Sequence[str] | None,
        view: View | None,
        deadline_s: float | None,
        stages: Mapping[str, str] | None,
        keep_receipt: bool,
        on_progress: OnStrategyProgress | None,
    ) -> Answer:
        """An answer, with its receipt kept if there is room for it."""
        chosen = components.named(stages or {})
        asked = self._asked(request, plan_id)
        offers = tuple(map(_info, self._client.strategies.list().offers))
        names = names_to_ask(asked, offers) if strategies is None else tuple(strategies)
        budgets = dict.fromkeys(names, candidate_tokens(asked.budget_tokens))
        execution, seen = self._executor.observe(
            asked, names, budgets=budgets, deadline_s=deadline_s, view=view, on_progress=on_progress
        )
        looked_at = cast("StrategyView", seen)
        results, failures = tuple(execution.results.values()), _failures(execution)
        question = AssemblyInputs(asked, looked_at, results, self._count, failures, offers)
        answer = pipeline.assemble(question, chosen)
        return self._kept(answer) if keep_receipt else answer

    def replay(self, receipt: Receipt | str) -> Answer:
        """The answer that a receipt is of."""
        require_instance(receipt, (Receipt, str), "give a receipt, or the id under which it is kept")
        found = self.receipt(receipt) if isinstance(receipt, str) else receipt
        view = cast("StrategyView", self._client.view(found.request.projects))
        return replay.replay(found, view, self._count)

    def receipt(self, receipt_id: str) -> Receipt:
        """A receipt that was kept."""
        try:
            return _decoder.decode(self._client.receipts.get(receipt_id))
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"receipt {receipt_id!r} was made by another version of stepwell: {error}") from error

    def _count(self, text: str) -> int:
        """In the vocabulary of the manager. No text is no tokens, though as a body it would count one."""
        return self._session.count_tokens(text.encode()) if text else 0

    def _asked(self, request: ContextRequest | None, plan_id: str | None) -> ContextRequest:
        """With all that a plan brings along; of projects that it may not see, nothing is asked."""
        require_instance(request, (ContextRequest, type(None)), "request is a stepwell.ContextRequest")
        if plan_id is None:
            if request is None:
                raise InvalidArgument("ask something: give a ContextRequest, a plan_id=, or both")
            return request
        lineage = PlanAncestry(self._client.plans, plan_id)
        plan = lineage.plan
        if request is None:
            request = ContextRequest(projects=plan.projects, query=plan.description[: limits.TEXT_CHARS_MAX])
        if beyond := [each for each in request.projects if each not in plan.projects]:
            raise OutOfScope(f"plan {plan_id!r} does not see {', '.join(beyond)}: it has {', '.join(plan.projects)}")
        return replace(request, plan=lineage.seen())

    def _kept(self, answer: Answer) -> Answer:
        """Where there is no room for a receipt, the answer is as good without."""
        receipt = answer.receipt
        encoded = _encoder.encode(receipt)
        if len(encoded) > limits.RECEIPT_BYTES_MAX:
            return answer
        try:
            kept = self._client.receipts.store(str(ULID()), receipt.request.projects, receipt.request.query, encoded)
        except (TierFull, Busy):
            return answer
        return replace(answer, receipt_id=kept)


def _info(offered: StrategyOffer) -> StrategyInfo:
    return StrategyInfo(offered.name, offered.capabilities, offered.is_partitioned)


def _failures(execution: Execution) -> tuple[Failure, ...]:
    return tuple(Failure(name, error.kind, error.message) for name, error in execution.failures.items())

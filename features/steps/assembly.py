"""Answers, and the receipts of them."""

from __future__ import annotations

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from stepwell.client.session.tokens import counter

SILENT = {"preamble": "silent"}


def assemble(context: Context, query: str, budget: int, *strategies: str) -> sw.Answer:
    request = sw.ContextRequest(projects=["p"], query=query, budget_tokens=budget)
    answer: sw.Answer = context.asker.assemble(
        request, strategies=strategies or ("graph", "keyword", "recency"), components=SILENT
    )
    return answer


@when('context is assembled for "{query}" in {budget:d} tokens')
def step_assemble(context: Context, query: str, budget: int) -> None:
    context.answer = assemble(context, query, budget)


@given('an answer to "{query}"')
def step_answer(context: Context, query: str) -> None:
    context.answer = assemble(context, query, 60)


@when('context is assembled by "{first}" and by "{second}"')
def step_assemble_by(context: Context, first: str, second: str) -> None:
    context.answer = assemble(context, "some words", 200, first, second)


@when("the first fragment of the answer is deleted")
def step_delete(context: Context) -> None:
    context.gone = context.answer.fragments[0].fragment_id
    context.asker.tiers.delete(context.gone)


@then("the answer is at most {budget:d} tokens, as they are counted")
def step_within(context: Context, budget: int) -> None:
    text = context.answer.render()
    counted = counter().count(text.encode()) if text else 0
    assert counted == context.answer.total_tokens <= budget, (counted, context.answer.total_tokens)


@then('the answer is the same as by "{name}" alone')
def step_same_as(context: Context, name: str) -> None:
    alone = assemble(context, "some words", 200, name)
    assert alone.text, "nothing was found"
    assert context.answer.text == alone.text, context.answer.text


@then('the answer says that "{name}" has failed')
def step_failed(context: Context, name: str) -> None:
    assert [each.strategy for each in context.answer.failures] == [name], context.answer.failures


@then("the receipt names what is in the answer as kept, and something else as cut")
def step_receipt(context: Context) -> None:
    entries = context.answer.receipt.entries
    kept = {entry.fragment_id for entry in entries if entry.decision in {"kept", "shortened"}}
    assert kept == {each.fragment_id for each in context.answer.fragments}, kept
    assert "cut" in {entry.decision for entry in entries}, entries


@then("the answer replayed from its receipt has the same bytes")
def step_replay(context: Context) -> None:
    assert context.asker.replay(context.answer.receipt_id).text == context.answer.text


@then("replaying the answer is refused, and names that fragment")
def step_refused(context: Context) -> None:
    refused = None
    try:
        context.asker.replay(context.answer.receipt_id)
    except sw.BodyGone as error:
        refused = error
    assert context.gone in str(refused), refused

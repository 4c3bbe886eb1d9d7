"""Texts that people read: plural forms, and representations of values that fit on two lines."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

import stepwell as sw
from stepwell import limits, types
from stepwell.domain.replies import ActionSummary, Page, PlanSummary, ProjectPage
from stepwell.strategies.protocol import DecisionSeen, PlanSeen
from stepwell.testing import LocalRuntime
from stepwell.text import PlainEnum, brief_repr, clip, describe, listed, plural, quoted
from tests.support import assembly
from tests.support.measurement import untraced
from tests.support.message_values import values
from tests.support.strategy_views import Store

DRAWN = (
    sw.Plan,
    PlanSummary,
    types.Action,
    types.Decision,
    types.Applied,
    types.Constrained,
    types.MergeConflict,
    types.Changeset,
    types.EntryRow,
    types.NetChange,
    types.FragmentRow,
    types.FragmentPlaced,
    types.FragmentsMoved,
    types.FragmentPage,
    types.PlanPage,
    types.ActionPage,
    types.DecisionPage,
    types.ChangesetPage,
    types.ReceiptPage,
    types.ReceiptRow,
    types.StrategyReport,
    types.StrategyResult,
    types.AnswerFragment,
    sw.ValidationResult,
    sw.Answer,
    sw.Receipt,
)
"""Plans, answers, fragments and their parts. Their representations are checked for any value that the types allow."""


class Size(PlainEnum):
    SMALL = "small"


class Box(Struct):
    name: str
    size: Size = Size.SMALL
    body: bytes = b""
    parts: tuple[int, ...] = ()
    inner: object = None


@pytest.mark.parametrize(
    "text, expected",
    [
        (plural(0, "fragment"), "0 fragments"),
        (plural(1, "fragment"), "1 fragment"),
        (plural(2, "fragment"), "2 fragments"),
        (plural(1, "entry", "entries"), "1 entry"),
        (plural(3, "entry", "entries"), "3 entries"),
        (plural(1_234_567, "token"), "1,234,567 tokens"),
    ],
)
def test_plural(text: str, expected: str) -> None:
    assert text == expected


@given(st.text(), st.integers(1, 10))
def test_clipped_text_has_its_beginning(text: str, chars_max: int) -> None:
    """It is the text itself where that fits, and says with an ellipsis that something is missing."""
    clipped = clip(text, chars_max)
    assert len(clipped) <= chars_max
    assert clipped == text or (clipped[-1] == "…" and text.startswith(clipped[:-1]))


def test_members_of_enums_are_shown_by_their_value() -> None:
    """In a list, in a value and in a message, as a user would write them."""
    assert repr([sw.Tier.HOT, sw.Phase.APPLY, Size.SMALL]) == "['hot', 'apply', 'small']"
    assert pickle.loads(pickle.dumps(Size.SMALL)) is Size.SMALL  # noqa: S301 - our own
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="b"))
        assert "tier='hot', replaced=None" in repr(client.watch(since=0).get(60))


def test_names() -> None:
    """A name is in quotes, so that its end is seen; of many names only the first is shown."""
    assert quoted("a\x1b[2J") == "'a\\x1b[2J'"
    assert len(quoted("x" * 1_000)) == limits.REPR_NAME_CHARS_MAX + 2
    assert [listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "",
        "'a'",
        "'a' and 1 other",
        "'a' and 2 others",
    ]


def test_description() -> None:
    """Empty facts are left out, and a long description is clipped inside of its brackets."""
    assert describe(Box("b"), "'b'", "", "small") == "<stepwell.Box 'b', small>"
    long = describe(Box("b"), "x" * 1_000)
    assert (len(long), long[-2:]) == (limits.REPR_CHARS_MAX, "…>")


def test_brief_repr() -> None:
    """Fields by name, without what is empty or large; an enum is its value."""
    assert brief_repr(Box("b")) == "Box(name='b', size='small', body=<0 bytes>)"
    box = Box("b", body=bytes(10_000_000), parts=(1,), inner=Box("c"))
    assert brief_repr(box) == (
        "Box(name='b', size='small', body=<10,000,000 bytes>, parts=<1 item>, inner="
        + clip(repr(Box("c")), limits.REPR_NAME_CHARS_MAX)
        + ")"
    )
    assert len(brief_repr(Box("b" * 1_000, inner=frozenset("c" * 1_000)))) <= limits.REPR_CHARS_MAX


@pytest.mark.parametrize("kind", DRAWN, ids=lambda kind: kind.__name__)
@untraced()
@settings(max_examples=20)
@given(data=st.data())
def test_values_fit_on_two_lines(kind: type[Struct], data: st.DataObject) -> None:
    """Whatever they hold, in a terminal of 80 columns, and without a line break of their own."""
    shown = repr(data.draw(values(kind)))
    assert len(shown) <= 2 * 80
    assert shown.isprintable()
    assert kind.__name__ in shown


def test_large_texts_are_not_shown() -> None:
    """What a caller constructs may have a body of megabytes, which is counted, or texts, which are clipped."""
    large = "x" * 5_000_000
    decision = DecisionSeen("d", "p", large[:60_000], "c", "r")
    for value in (
        sw.Fragment(fragment_id="f", body=large),
        sw.Fragment(fragment_id="f" * 500, project="p", body=large.encode(), source="s" * 4_000),
        sw.Change(path="a", before=large.encode(), after=b""),
        sw.ContextRequest(projects=["p"], query=large[:60_000], plan=PlanSeen("p", "execute", [decision])),
        decision,
    ):
        assert len(repr(value)) <= limits.REPR_CHARS_MAX
        assert "x" * 100 not in repr(value)


def test_fragments_show_the_key_facts() -> None:
    cart = sw.Fragment(fragment_id="cart", project="shop", source="cart.py", body="def total(): ...")
    assert repr(cart) == "<stepwell.Fragment 'cart' of 'shop', source 'cart.py', kind 'text', 16 characters>"
    assert (
        repr(sw.Fragment(fragment_id="a", body=b"b", tokens=1))
        == "<stepwell.Fragment 'a', kind 'text', 1 byte, 1 token>"
    )


def test_pages_show_their_length_and_cursor() -> None:
    summary = ActionSummary("local/a", sw.ActionState.AVAILABLE, reusable=True, uses=0)
    assert repr(types.ActionPage((summary,), "local/a")) == "<stepwell.ActionPage 1 row, cursor 'local/a'>"
    page: Page[str] = ProjectPage((), None)
    assert repr(page) == "<stepwell.ProjectPage 0 rows, the last page>"


def test_answers_show_the_key_facts() -> None:
    """The question, and how much of the budget the answer needs."""
    store = Store()
    assembly.stored(store, "a", "what it is")
    answer = assembly.answer(store.view("p"), assembly.result("keyword", {"a": 1.0}), asked=assembly.request("what?"))
    assert repr(answer) == (
        f"<stepwell.Answer to 'what?', 1 fragment in {answer.total_tokens} of 200 tokens, 1 strategy, "
        f"revision {answer.revision}>"
    )
    assert repr(answer.fragments[0]).startswith("<stepwell.AnswerFragment 'a' of 'p', full, ")
    assert repr(answer.receipt).startswith("<stepwell.Receipt of 'what?', 1 candidate, ")

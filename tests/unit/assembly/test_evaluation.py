"""Evaluation: what is read, and what recall is."""

import json

import pytest

import stepwell as sw
from stepwell.assembly.evaluation import Recall, mean, parse, recall
from tests.support.assembly import answer, meeting, request, result

DOCUMENT = {"type": "document", "project": "p", "id": "1", "text": "one", "speaker": "Ada", "order": 1}
EARLIER = {"type": "document", "project": "p", "id": "0", "text": "zero", "order": 0}
QUESTION = {"type": "question", "project": "p", "id": "q", "query": "which?", "evidence": ["1"]}


def lines(*rows: object) -> list[bytes]:
    return [row if isinstance(row, bytes) else f"{json.dumps(row)}\n".encode() for row in rows]


def test_what_is_read() -> None:
    """A project's documents are in their order; blank lines, and fields that we do not know, do not matter."""
    data = parse(lines({**DOCUMENT, "more": 1}, b"\n", QUESTION, EARLIER))
    assert [document.id for document in data.documents["p"]] == ["0", "1"]
    assert data.documents["p"][1].speaker == "Ada"
    assert data.documents["p"][0].kind == "turn"
    assert data.questions[0].evidence == ("1",)


@pytest.mark.parametrize(
    "rows, message",
    [
        ([DOCUMENT, b"{"], "line 2: "),
        ([DOCUMENT, {"type": "answer"}], "line 2: Invalid value 'answer'"),
        ([{**DOCUMENT, "text": 5}], r"line 1: Expected `str`, got `int` - at `\$.text`"),
        ([{**DOCUMENT, "project": "no good"}], "line 1: "),
        ([{**DOCUMENT, "order": -1}], "line 1: "),
        ([b"\xff\n"], "line 1: "),
        ([DOCUMENT, DOCUMENT], "line 2: p has two documents '1'"),
        ([DOCUMENT, QUESTION, {**QUESTION, "evidence": ["9"]}], "line 3: the evidence of 'q' names '9'"),
        ([DOCUMENT, {**QUESTION, "evidence": []}], "line 2: "),
        ([DOCUMENT], "no question"),
        ([], "no question"),
    ],
)
def test_what_is_malformed(rows: list[object], message: str) -> None:
    """It is refused, with the number of the line."""
    with pytest.raises(sw.InvalidArgument, match=message):
        parse(lines(*rows))


def test_recall() -> None:
    """By tokens and by count; what is shortened is not found."""
    found = answer(
        meeting().view(),
        result("mine", {"t1": 1.0, "t2": 0.9}),
        asked=request("number"),
        components={"expand": "alone"},
    )
    tokens = {"t1": 10, "t2": 20, "t9": 70}
    assert recall(found, ["t1", "t2", "t9"], tokens) == Recall(0.3, 2 / 3)
    assert recall(found, ["t9"], tokens) == Recall(0.0, 0.0)
    assert recall(found, ["t1", "t1"], tokens) == Recall(1.0, 1.0)
    assert mean([Recall(0.0, 0.5), Recall(1.0, 1.0)]) == Recall(0.5, 0.75)

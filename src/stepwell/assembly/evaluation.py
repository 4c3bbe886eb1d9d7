"""Evaluation: how much of the evidence for a question is in an answer, without asking any model.

The data is JSONL, an object to a line:
- `{"type": "document", "project", "id", "text"}`, and optionally `speaker`, `order`, `source` and `kind`;
- `{"type": "question", "project", "id", "query", "evidence"}`: the ids of the documents that answer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stepwell.assembly.answer import Answer
from stepwell.domain.bounded_types import FragmentId, Label, ProjectName, Source
from stepwell.errors import InvalidArgument

FORMAT: Final = "see `stepwell eval --help` for what a line has"


class Document(Struct, frozen=True, tag_field="type", tag="document", kw_only=True):
    """What is stored. Where it does not say otherwise, it is a turn of the conversation that is its project."""

    project: ProjectName
    id: FragmentId
    text: str
    speaker: str = ""
    order: Annotated[int, Meta(ge=0)] | None = None
    source: Source = ""
    kind: Label = "turn"


class EvaluationQuestion(Struct, frozen=True, tag_field="type", tag="question", kw_only=True):
    """What is asked, and which documents answer it."""

    project: ProjectName
    id: str
    query: str
    evidence: Annotated[tuple[FragmentId, ...], Meta(min_length=1)]


class Data(Struct, frozen=True):
    """Documents and questions, each project's documents in their order."""

    documents: Mapping[str, Sequence[Document]]
    questions: Sequence[EvaluationQuestion]


class Recall(Struct, frozen=True):
    """The part of the evidence that was found, from 0 to 1, over some questions."""

    by_tokens: float
    by_count: float


_decoder: Final[msgspec.json.Decoder[Document | EvaluationQuestion]] = msgspec.json.Decoder(
    Document | EvaluationQuestion
)


def parse(lines: Iterable[bytes]) -> Data:
    """What a file has. What is malformed is refused, with the number of its line."""
    documents: dict[str, dict[str, Document]] = {}
    questions: list[tuple[int, EvaluationQuestion]] = []
    for number, line in enumerate(lines, 1):
        match _decoded(number, line):
            case Document() as document:
                of_project = documents.setdefault(document.project, {})
                if document.id in of_project:
                    raise InvalidArgument(f"line {number}: {document.project} has two documents {document.id!r}")
                of_project[document.id] = document
            case EvaluationQuestion() as question:
                questions.append((number, question))
            case None:
                pass
    for number, question in questions:
        _check_evidence(number, question, documents.get(question.project, {}))
    if not questions:
        raise InvalidArgument(f"there is no question in it: {FORMAT}")
    ordered = {project: _in_order(found.values()) for project, found in documents.items()}
    return Data(ordered, [question for _, question in questions])


def _decoded(number: int, line: bytes) -> Document | EvaluationQuestion | None:
    if not line.strip():
        return None
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"line {number}: {error}: {FORMAT}") from None


def _check_evidence(number: int, question: EvaluationQuestion, documents: Mapping[str, Document]) -> None:
    missing = [each for each in question.evidence if each not in documents]
    if missing:
        raise InvalidArgument(
            f"line {number}: the evidence of {question.id!r} names {missing[0]!r}, "
            f"which is no document of {question.project}"
        )


def _in_order(documents: Iterable[Document]) -> list[Document]:
    """As they stand in the file, where they have no order."""
    return sorted(documents, key=lambda each: -1 if each.order is None else each.order)


def recall(answer: Answer, evidence: Iterable[str], tokens: Mapping[str, int]) -> Recall:
    """How much of the evidence is in an answer. What is shortened is not."""
    wanted = frozenset(evidence)
    found = {each.fragment_id for each in answer.fragments if each.depth == "full"} & wanted
    all_tokens = sum(tokens[each] for each in wanted)
    return Recall(sum(tokens[each] for each in found) / all_tokens, len(found) / len(wanted))


def mean(recalls: Sequence[Recall]) -> Recall:
    """Over questions, each counting the same."""
    total = len(recalls)
    return Recall(sum(each.by_tokens for each in recalls) / total, sum(each.by_count for each in recalls) / total)

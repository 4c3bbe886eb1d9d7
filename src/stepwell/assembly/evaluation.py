"""Evaluation of answers: how much of the known evidence for a question an answer contains, without asking a model.

The data is JSONL, an object to a line:
- `{"type": "document", "project", "id", "text"}`, and optionally `speaker`, `order`, `source` and `kind`;
- `{"type": "question", "project", "id", "query", "evidence"}`: the ids of the documents that answer it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stepwell.assembly.answer import Answer
from stepwell.domain.bounded_types import FragmentId, Label, ProjectName, Source
from stepwell.errors import InvalidArgument

FORMAT: Final = "see `stepwell eval --help` for what a line has"


class Document(Struct, frozen=True, tag_field="type", tag="document", kw_only=True):
    """A document to store. By default it is a turn of the conversation that its project is.

    `order` is its place in its source; documents without one keep the order of the file.
    """

    project: ProjectName
    id: FragmentId
    text: str
    speaker: str = ""
    order: Annotated[int, Meta(ge=0)] | None = None
    source: Source = ""
    kind: Label = "turn"


class EvaluationQuestion(Struct, frozen=True, tag_field="type", tag="question", kw_only=True):
    """A query, and the ids of the documents that answer it."""

    project: ProjectName
    id: str
    query: str
    evidence: Annotated[tuple[FragmentId, ...], Meta(min_length=1)]


class EvaluationData(Struct, frozen=True):
    """The documents by project, in their order, and all questions."""

    documents: Mapping[str, Sequence[Document]]
    questions: Sequence[EvaluationQuestion]


class Recall(Struct, frozen=True):
    """The share of the evidence that an answer has, from 0 to 1: by tokens, and by number of documents.

    The share by tokens says how much of the text is there; the share by count does not favour long documents.
    """

    by_tokens: float
    by_count: float


_decoder: Final[msgspec.json.Decoder[Document | EvaluationQuestion]] = msgspec.json.Decoder(
    Document | EvaluationQuestion
)


def parse(lines: Iterable[bytes]) -> EvaluationData:
    """Return the data of a file. Raise `InvalidArgument`, with the number of the line, if a line is malformed.

    Evidence is checked after all lines are read, because a question may come before its documents.
    """
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
    return EvaluationData(ordered, [question for _, question in questions])


def _decoded(number: int, line: bytes) -> Document | EvaluationQuestion | None:
    """Return the object of a line; None for a blank line."""
    if not line.strip():
        return None
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"line {number}: {error}: {FORMAT}") from None


def _check_evidence(number: int, question: EvaluationQuestion, documents: Mapping[str, Document]) -> None:
    """Raise `InvalidArgument` if the evidence of a question names a document that the question's
    project does not have.
    """
    missing = [each for each in question.evidence if each not in documents]
    if missing:
        raise InvalidArgument(
            f"line {number}: the evidence of {question.id!r} names {missing[0]!r}, "
            f"which is no document of {question.project}"
        )


def _in_order(documents: Iterable[Document]) -> list[Document]:
    """Return documents in their declared order; documents without an order come first, as in the file."""
    return sorted(documents, key=lambda each: -1 if each.order is None else each.order)


def recall(answer: Answer, evidence: Iterable[str], tokens: Mapping[str, int]) -> Recall:
    """Return how much of the evidence an answer has. A shortened fragment does not count: it may lack the evidence."""
    return recall_of({each.fragment_id for each in answer.fragments if each.depth == "full"}, evidence, tokens)


def recall_of(shown: Collection[str], evidence: Iterable[str], tokens: Mapping[str, int]) -> Recall:
    """Return how much of the evidence is among the documents that are shown."""
    wanted = frozenset(evidence)
    found = wanted.intersection(shown)
    all_tokens = sum(tokens[each] for each in wanted)
    return Recall(sum(tokens[each] for each in found) / all_tokens, len(found) / len(wanted))


def mean(recalls: Sequence[Recall]) -> Recall:
    """Return the mean of several recalls; each question counts the same."""
    total = len(recalls)
    return Recall(sum(each.by_tokens for each in recalls) / total, sum(each.by_count for each in recalls) / total)

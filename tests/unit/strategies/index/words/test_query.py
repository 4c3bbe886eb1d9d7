"""Queries: the zones of a report, and the places that it names."""

from math import log1p

import pytest

from stepwell import limits
from stepwell.strategies.index.words.query import (
    CODE,
    ERROR,
    NAMED,
    PROSE,
    TITLE,
    TRACEBACK,
    Frame,
    ParsedQuery,
    parse_query,
)
from tests.support.measurement import untraced

REPORT = """\
Crash while parsing titles

<!-- hidden advice -->
The `load_title` call fails with blanks.

```python
codeword(1)
```

```
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/app/outer.py", line 7, in run
    outerword()
  File "/usr/lib/python3/site-packages/app/titles.py", line 42, in load_title
    innerword()
ValueError: errorword
```
See src/app/titles.py and app.titles.Title.
"""


def weight_of(query: ParsedQuery, term: str) -> float:
    return query.weights[term]


@pytest.mark.parametrize(
    "term, zones",
    [
        ("crash", TITLE),
        ("fails", PROSE),
        ("load_title", NAMED + TRACEBACK),
        ("codeword", CODE),
        ("outerword", TRACEBACK),
        ("errorword", ERROR),
    ],
)
def test_zones(term: str, zones: float) -> None:
    """The weight of a term is the logarithm of the sum over the zones in which it stands."""
    assert weight_of(parse_query(REPORT), term) == pytest.approx(log1p(zones))


def test_a_report() -> None:
    """Its title alone, what is hidden, the frames from the innermost on, and the names of files and modules."""
    query = parse_query(REPORT)
    assert "crash" in query.title_weights
    assert "errorword" not in query.title_weights
    assert "hidden" not in query.weights
    assert [frame.path.rpartition("/")[2] for frame in query.frames] == ["titles.py", "outer.py"]
    assert query.frames[0].line == 42
    assert query.frames[0].name == "load_title"
    assert "src/app/titles.py" in query.paths
    assert "app.titles.Title" in query.dotted


def test_numbers_of_a_report() -> None:
    """A number counts in the title and in an error, and not where it is a version or a line."""
    query = parse_query("Fails with 404\n\nSince 17 of version 3.\n\nHTTPError: status 501\n\nx.py:29: in run\n")
    assert {term for term in query.weights if term.isdigit()} == {"404", "501"}
    assert query.frames == (Frame("x.py", 29),)


def test_a_question_of_one_line() -> None:
    """It is all title, so that its words weigh the same; stop words weigh little."""
    query = parse_query("Where is the budget?")
    assert query.title_weights == {}
    assert query.weights["budget"] == log1p(TITLE)
    assert query.weights["the"] < 0.2 * query.weights["budget"]
    assert {*query.content_weights} == {"budget"}
    assert {*parse_query("what did they").content_weights} == {"what", "did", "they"}


@pytest.mark.parametrize(
    "line, frame",
    [
        ("    at run (/app/src/server.js:10:5)", Frame("/app/src/server.js", 10)),
        ("\tat com.acme.App.run(App.java:33)", Frame("App.java", 33)),
        ("/src/main.go:12 +0x1d", Frame("/src/main.go", 12)),
        ("lib/a.rb:3:in `call'", Frame("lib/a.rb", 3, "call")),
        ("#0 /var/www/index.php(17): f()", Frame("/var/www/index.php", 17)),
        ("   at App.Run() in C:\\app\\Program.cs:line 9", Frame("/app/Program.cs", 9)),
    ],
)
def test_frames_of_other_languages(line: str, frame: Frame) -> None:
    """They print the innermost frame first."""
    first, *_ = parse_query(f"It fails\n\nError: no\n{line}\n    at x (/app/z.js:1:1)\n").frames
    assert (first.path.removeprefix("C:"), first.line) == (frame.path, frame.line)


@pytest.mark.parametrize(
    "title, tests, documents",
    [
        ("Where are the tests for the parser?", True, False),
        ("test_parser fails with an error", False, False),
        ("Crash when testing a module named test", False, False),
        ("The documentation of the parser is wrong", False, True),
        ("Which examples use the parser?", False, True),
    ],
)
def test_what_a_query_is_about(title: str, tests: bool, documents: bool) -> None:  # noqa: FBT001 - a table
    query = parse_query(title)
    assert (query.asks_for_tests, query.asks_for_documents) == (tests, documents)


def test_bounds() -> None:
    """A query has so many terms and places and no more, and takes no longer for a text that was made to be hard."""
    long = " ".join(f"w{number} p{number}.py a{number}.b" for number in range(2_000))
    query = parse_query(long)
    assert len(query.weights) == limits.QUERY_TERMS_MAX
    assert len(query.paths) == len(query.dotted) == limits.QUERY_PLACES_MAX
    with untraced():
        for hard in ("a." * 20_000, "/" * 40_000, "a/" * 20_000, "`" * 40_000, "<!--" * 10_000, "at " * 20_000):
            parse_query(hard)


def test_some_of_the_terms() -> None:
    """Each counts the same, and still stands for its word."""
    query = parse_query("parsing headers").only(("pars",))
    assert query.weights == {"pars": 1.0}
    assert query.words["pars"] == "parsing"

"""Terms: the words of code and prose."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.strategies.index.words.terms import (
    KEYWORDS,
    STOP_WORD_WEIGHT,
    _humps,
    _parts,
    distinct_terms,
    query_terms,
    query_weight,
    term_counts,
)


@pytest.mark.parametrize(
    "text, terms",
    [
        ("The quick the", ["the", "quick"]),
        ("getUserName", ["getusername", "get", "user", "name"]),
        ("parseHTTPHeader2", ["parsehttpheader2", "pars", "http", "header2"]),
        ("HTTP", ["http"]),
        ("snake_case", ["snake_case", "snake", "case"]),
        ("__init__", ["__init__", "init"]),
        ("os.path", ["os", "path"]),
        ("self.user_name", ["self", "user_name", "user", "name"]),
        ("src/auth/Login.py", ["src", "auth", "login", "py"]),
        ("HTTP2Server 2D _private", ["http2server", "http2", "server", "2d", "2", "d", "_private", "privat"]),
        ("port 8080, pi 3.14", ["port", "8080", "pi", "3", "14"]),
        ("end of a word\u2014and the \u2018next\u2019", ["end", "of", "a", "word", "and", "the", "next"]),
        ("Größe МояПеременная", ["größe", "мояпеременная", "моя", "переменная"]),
        ("हिन्दी।", ["हिन्दी"]),
        ("日本語 語", ["日本語", "日本", "本語", "語"]),
        ("get日本Name", ["get日本name", "get", "日本", "name"]),
        ("___ ... !", []),
        ("", []),
    ],
)
def test_words_and_their_parts(text: str, terms: list[str]) -> None:
    """An identifier is found whole and by its parts, in every script, in lower case."""
    assert list(distinct_terms(text)) == terms
    assert list(term_counts(text)) == terms


def test_what_looks_the_same_is_the_same() -> None:
    assert list(distinct_terms("cafe\u0301")) == list(distinct_terms("caf\u00e9"))
    assert list(distinct_terms("\ufb01le")) == list(distinct_terms("file"))


def test_all_forms_of_a_word() -> None:
    """An English word is found by its stem, and as it is; what is not only letters is a name, and stays as it is."""
    assert [*distinct_terms("parse parses parsing")] == ["parse", "pars", "parses", "parsing"]
    assert [*distinct_terms("user_names sha256s naïves")] == ["user_names", "user", "name", "sha256s", "naïves"]


def test_code() -> None:
    """The keywords of programming languages are no terms of code, in the case in which they are keywords."""
    assert [piece in KEYWORDS for piece in (b"return", b"self", b"Return", b"total")] == [True, True, False, False]


def test_what_was_asked() -> None:
    """A term is half a word: whoever wants to read it gets the word that was asked for."""
    assert query_terms("Parsing the getUsers()") == {
        "parsing": "parsing",
        "pars": "parsing",
        "the": "the",
        "getusers": "getusers",
        "get": "get",
        "user": "users",
    }


def test_stop_words() -> None:
    """In a question they count little, in any form of theirs."""
    assert {query_weight(term) for term in distinct_terms("What did they say about having the others'?")} == {
        STOP_WORD_WEIGHT,
        1,
    }
    assert [
        term for term in distinct_terms("What's been said about the Group's budget") if query_weight(term) == 1
    ] == [
        "said",
        "group",
        "budget",
    ]


def test_counts() -> None:
    """A part counts wherever it occurs, alone or in a name; a name of one part counts once."""
    assert term_counts("user getUser user_id User") == {
        "user": 4,
        "getuser": 1,
        "get": 1,
        "user_id": 1,
        "id": 1,
    }


def test_a_long_run_is_several_words() -> None:
    """No term is longer than 64 characters, and nothing is lost."""
    assert term_counts("1" * 1_000) == {"1" * 64: 15, "1" * 40: 1}


@given(st.text(st.sampled_from("aAbB12_"), max_size=12))
def test_one_rule_for_all_scripts(name: str) -> None:
    """The quick way for ASCII finds the same parts as the one that knows every script."""
    assert _parts(name) == [hump.lower() for part in name.split("_") for hump in _humps(part) if hump]


@given(st.text(), st.text())
def test_a_text_is_the_sum_of_its_pieces(one: str, other: str) -> None:
    """So that pieces can be remembered."""
    together = Counter(term_counts(f"{one} {other}"))
    assert together == Counter(term_counts(one)) + Counter(term_counts(other))

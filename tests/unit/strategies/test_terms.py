"""Terms: the words of code and prose."""

import pytest

from stepwell.strategies.terms import counted, distinct


@pytest.mark.parametrize(
    "text, terms",
    [
        ("The quick the", ["the", "quick"]),
        ("getUserName", ["getusername", "get", "user", "name"]),
        ("parseHTTPHeader2", ["parsehttpheader2", "parse", "http", "header2"]),
        ("HTTP", ["http"]),
        ("snake_case", ["snake_case", "snake", "case"]),
        ("__init__", ["__init__", "init"]),
        ("os.path", ["os.path", "os", "path"]),
        ("self.user_name", ["self.user_name", "self", "user_name", "user", "name"]),
        ("src/auth/Login.py", ["src", "auth", "login.py", "login", "py"]),
        ("port 8080, pi 3.14", ["port", "8080", "pi", "3.14", "3", "14"]),
        ("end of a sentence. Next", ["end", "of", "a", "sentence", "next"]),
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
    assert list(distinct(text)) == terms
    assert list(counted(text)) == terms


def test_what_looks_the_same_is_the_same() -> None:
    assert list(distinct("cafe\u0301")) == list(distinct("caf\u00e9"))
    assert list(distinct("\ufb01le")) == list(distinct("file"))


def test_counts() -> None:
    """A part counts wherever it occurs, alone or in a name; a name of one part counts once."""
    assert counted("user getUser user_id User") == {
        "user": 4,
        "getuser": 1,
        "get": 1,
        "user_id": 1,
        "id": 1,
    }


def test_a_long_run_is_several_words() -> None:
    """No term is longer than 64 characters to a part, and nothing is lost."""
    key = "x" * 1_000
    assert counted(key) == {"x" * 64: 15, "x" * 40: 1}
    chain = ".".join(["part"] * 100)
    assert counted(chain)["part"] == 13  # once for each word of eight parts
    assert max(map(len, counted(chain))) == 39

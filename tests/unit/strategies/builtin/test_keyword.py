"""Keyword: BM25 over what a worker keeps of a project, however it got there."""

import bm25s
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.errors import BodyGone
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.words.fields import Weights
from stepwell.strategies.index.words.file_ranking import FILE, K1, B
from stepwell.strategies.index.words.terms import term_counts
from stepwell.strategies.protocol import Partitioned, Strategy
from tests.support.seeds import seeded
from tests.support.strategy_views import MemoryView, Store, ask, found, ids

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

EQUAL = Weights(path=10, fragment_id=10, name=10, speaker=10)
BODIES = Weights(path=0, fragment_id=0, name=0, speaker=0)


@pytest.fixture
def keyword() -> KeywordStrategy:
    return KeywordStrategy()


def library() -> Store:
    store = Store()
    store.store("login", "def check_password(user): return user.hash", source="src/auth/login.py", kind="code")
    store.store("mail", "def send_mail(user): pass", source="src/mail.py", kind="code")
    store.store("readme", "How users log in: a password is asked for.", source="README.md", kind="prose")
    return store


def test_best_first(keyword: KeywordStrategy) -> None:
    """What has more of the words, and rarer ones, comes first; what has none of them does not come."""
    results = found(keyword, ask("password of a user"), library().view())
    assert ids(results) == ["login", "readme", "mail"]
    assert results[0].score > results[1].score > results[2].score > 0
    assert ids(found(keyword, ask("password"), library().view())) == ["login", "readme"]
    assert found(keyword, ask("unheard"), library().view()) == ()


def test_what_a_result_says(keyword: KeywordStrategy) -> None:
    """Tokens and revision are the row's; the reason is the words that it has."""
    store = Store()
    row = store.store("a", "red and green", tokens=7)
    (result,) = found(keyword, ask("blue green red"), store.view())
    assert (result.project, result.fragment_id, result.tokens, result.revision) == ("p", "a", 7, row.revision)
    assert result.reason == "green, red"
    store.store("a", " ".join(f"w{number}" for number in range(20)))
    (result,) = found(keyword, ask(" ".join(f"w{number}" for number in range(10))), store.view())
    assert result.reason == "w0, w1, w2, w3, w4, w5, w6, w7 and 2 more"


def test_names_count_more_than_bodies(keyword: KeywordStrategy) -> None:
    store = Store()
    store.store("a", "session " * 2 + "filler " * 5, source="x.py")
    store.store("b", "filler " * 7, source="session.py")
    store.store("session", "filler " * 7, source="y.py")
    assert ids(found(keyword, ask("session"), store.view())) == ["b", "session", "a"]
    assert ids(found(KeywordStrategy(Bm25IndexCache(EQUAL)), ask("session"), store.view()))[0] == "a"


def test_names_and_speakers(keyword: KeywordStrategy) -> None:
    """What a definition or a section is called, and who has said something, is looked at as well."""
    store = Store()
    store.store("a", "filler " * 9, metadata={"name": "Session.close"})
    store.store("b", "filler " * 9, metadata={"speaker": "Professor E"})
    store.store("c", "session professor" + " filler" * 9)
    assert ids(found(keyword, ask("session"), store.view())) == ["a", "c"]
    assert ids(found(keyword, ask("What did the professor say?"), store.view())) == ["b", "c"]


def test_the_id_of_a_part(keyword: KeywordStrategy) -> None:
    """It is made of its source and name: those do not count twice."""
    store = Store()
    store.store("src/session.py#3", "filler", source="src/session.py")
    store.store("else", "filler", source="src/session.py")
    first, second = found(keyword, ask("session"), store.view())
    assert first.score == second.score
    assert found(keyword, ask("3"), store.view()) == ()


def test_what_all_have_in_common(keyword: KeywordStrategy) -> None:
    """A long path makes no fragment longer: a short turn of a conversation stays a short one."""
    scores: list[list[float]] = []
    for epoch, source in enumerate(("talk", "the/same/long/path/for/every/turn/of/it.jsonl")):
        store = Store(str(epoch))
        store.store("long", "budget " + "filler " * 40, source=source, kind="turn")
        store.store("short", "budget filler", source=source, kind="turn")
        scores.append([each.score for each in found(keyword, ask("budget"), store.view())])
    assert scores[0] == scores[1]
    assert scores[0][0] > 1.5 * scores[0][1]


def test_stop_words_decide_last(keyword: KeywordStrategy) -> None:
    """One word that the question is about is worth more than all the others; of nothing else, they are all there is."""
    store = Store()
    store.store("a", "the budget")
    store.store("b", "what did they say about the")
    for number in range(9):
        store.store(f"filler{number}", "nothing of the kind")
    view = store.view()
    assert ids(found(keyword, ask("What did they say about the budget?"), view))[:2] == ["a", "b"]
    assert ids(found(keyword, ask("what did they"), view)) == ["b"]
    for kind in ("turn", "text"):
        store.store("a", "the budget", kind=kind, source="x")
        view = store.view()
        assert keyword.can_handle(ask("What about the elephant?"), view) == 0
        assert found(keyword, ask("What about the elephant?"), view) == ()


def test_listings_of_files(keyword: KeywordStrategy) -> None:
    """They come only for whoever asks for them, and change no score of anything else."""
    store = library()
    without = found(keyword, ask("password login"), store.view())
    store.store("file:login.py", "1-3 check_password\n", source="src/auth/login.py", kind="file")
    view = store.view()
    assert found(keyword, ask("password login"), view) == without
    assert ids(found(keyword, ask("password login", kinds=["file"]), view)) == ["file:login.py"]
    assert {*ids(found(keyword, ask("password login", kinds=["file", "code"]), view))} == {"file:login.py", "login"}
    assert keyword.can_handle(ask("check_password", kinds=["file"]), view) == 1
    store.store("file:login.py", "1-3 check_password\n", source="src/auth/login.py", kind="text")
    assert "file:login.py" in ids(found(keyword, ask("password login"), store.view()))
    store.store("file:login.py", "1-3 check_password\n", source="src/auth/login.py", kind="file")
    assert found(keyword, ask("password login"), store.view()) == without


def test_other_forms_of_a_word(keyword: KeywordStrategy) -> None:
    """The reason has the word that was asked for."""
    store = Store()
    store.store("it", "parses headers")
    (result,) = found(keyword, ask("parsing a Header"), store.view())
    assert result.reason == "parsing, header"


def test_identifiers_are_found_by_their_parts(keyword: KeywordStrategy) -> None:
    store = Store()
    store.store("a", "raise http.BadRequestError")
    store.store("b", "a bad day")
    assert ids(found(keyword, ask("badRequestError"), store.view())) == ["a", "b"]
    assert ids(found(keyword, ask("request"), store.view())) == ["a"]


def test_ties(keyword: KeywordStrategy) -> None:
    """What is equally good comes by project and id, whatever the order of storing."""
    store = Store()
    for project in ("q", "p"):
        for fragment_id in ("c", "a", "b"):
            store.store(fragment_id, "same", project=project)
    results = found(keyword, ask("same", "q", "p"), store.view("q", "p"))
    assert [(each.project, each.fragment_id) for each in results] == [(p, f) for p in "pq" for f in "abc"]
    assert len({each.score for each in results}) == 1


def test_more_ties_than_results(keyword: KeywordStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of many equals come is told by their ids as well."""
    monkeypatch.setattr("stepwell.strategies.builtin.keyword.RESULTS_MAX", 3)
    store = Store()
    for fragment_id in "hgfedcba":
        store.store(fragment_id, "same")
    store.store("z", "same same")
    assert ids(found(keyword, ask("same"), store.view())) == ["z", "a", "b"]


def test_kinds(keyword: KeywordStrategy) -> None:
    """Others are not shown, but the score is the same: what a word is worth is told by all."""
    view = library().view()
    everything = found(keyword, ask("password"), view)
    assert found(keyword, ask("password", kinds=["prose", "unknown"]), view) == everything[1:]
    assert found(keyword, ask("password", kinds=["unknown"]), view) == ()


def test_a_changed_kind(keyword: KeywordStrategy) -> None:
    """A fragment that is stored again as it is, only of another kind, is of that kind."""
    store = Store()
    store.store("a", "word", kind="one")
    assert ids(found(keyword, ask("word", kinds=["one"]), store.view())) == ["a"]
    store.store("a", "word", kind="two")
    assert found(keyword, ask("word", kinds=["one"]), store.view()) == ()
    assert ids(found(keyword, ask("word", kinds=["two"]), store.view())) == ["a"]


def test_not_text(keyword: KeywordStrategy) -> None:
    """A body that is not UTF-8 is found by its source and id."""
    store = Store()
    store.store("logo", b"\xff\xfe word", source="images/logo.png")
    assert ids(found(keyword, ask("images"), store.view())) == ["logo"]
    assert found(keyword, ask("word"), store.view()) == ()


def test_the_beginning_of_a_long_body(keyword: KeywordStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the beginning counts, also if it ends in the middle of a character."""
    monkeypatch.setattr(limits, "INDEXED_BODY_BYTES_MAX", 8)
    store = Store()
    store.store("a", "begin 日end")
    assert ids(found(keyword, ask("begin"), store.view())) == ["a"]
    assert found(keyword, ask("end"), store.view()) == ()


def test_another_project_changes_nothing(keyword: KeywordStrategy) -> None:
    """All statistics are the project's own: scores are the same whatever another one holds."""
    store = library()
    alone = found(keyword, ask("password of a user"), store.view())
    for number in range(50):
        store.store(f"noise{number}", "password of a user", project="q")
    assert found(keyword, ask("password of a user"), store.view("p", "q")) == alone
    assert found(KeywordStrategy(), ask("password of a user"), store.view("q", "p")) == alone


def test_confidence(keyword: KeywordStrategy) -> None:
    """The share of the words that occur, in the project that has most of them; rare words count more."""
    store = library()
    store.store("other", "penguin", project="q")
    view = store.view("p", "q")
    assert keyword.can_handle(ask("password mail"), view) == 1
    assert keyword.can_handle(ask("zebra"), view) == 0
    assert keyword.can_handle(ask(""), view) == 0
    assert keyword.can_handle(ask(" .,;"), view) == 0
    assert 0 < keyword.can_handle(ask("zebra user"), view) < keyword.can_handle(ask("zebra mail"), view) < 1
    assert keyword.can_handle(ask("penguin"), view) == 0
    assert keyword.can_handle(ask("penguin", "p", "q"), view) == 1
    assert keyword.can_handle(ask("anything"), Store().view()) == 0
    assert keyword.can_handle(ask("anything", "z"), view) == 0


def test_nothing_asked_and_nothing_there(keyword: KeywordStrategy) -> None:
    assert found(keyword, ask(""), library().view()) == ()
    assert found(keyword, ask("word"), Store().view()) == ()
    empty = Store()
    empty.store("-", "")  # not a single term
    assert found(keyword, ask("word"), empty.view()) == ()


def test_a_long_query(keyword: KeywordStrategy) -> None:
    """Its first words count."""
    store = Store()
    store.store("a", "last")
    words = [f"w{number}" for number in range(limits.QUERY_TERMS_MAX)]
    assert found(keyword, ask(" ".join([*words, "last"])), store.view()) == ()
    assert ids(found(keyword, ask(" ".join([*words[1:], "last"])), store.view())) == ["a"]


def test_its_interface(keyword: KeywordStrategy) -> None:
    assert isinstance(keyword, Strategy)
    assert isinstance(keyword, Partitioned)
    assert "words of the query" in keyword.explain()


def test_following_changes(keyword: KeywordStrategy) -> None:
    """Stored, replaced, moved and deleted: each time it is as if it had been made for the view."""
    store = library()
    request = ask("password of a user")
    assert found(keyword, request, store.view())
    store.store("new", "a new password")
    store.store("login", "nothing of the kind")
    store.demote("readme")
    store.delete("mail")
    store.store("elsewhere", "password", project="q")
    view = store.view()
    assert found(keyword, request, view) == found(KeywordStrategy(), request, view)


class Unread(MemoryView, frozen=True):
    """A view that must not be looked through."""

    def rows(self, project: str) -> list[sw.types.FragmentRow]:
        raise AssertionError(f"looked through {project}")


def test_only_changes_are_looked_at(keyword: KeywordStrategy) -> None:
    """What can be told by its changes is not compared row by row, and nothing is done twice."""
    store = library()
    found(keyword, ask("password"), store.view())
    store.store("new", "password")
    later = store.view()
    unread = Unread(later.epoch, later.revision, later.projects, later.history)
    assert "new" in ids(found(keyword, ask("password"), unread))
    forgetful = Unread(later.epoch, later.revision, later.projects, later.history, later.revision)
    assert "new" in ids(found(keyword, ask("password"), forgetful))


def test_another_name_of_the_same_body(keyword: KeywordStrategy) -> None:
    """A definition that was renamed is found by its new name."""
    store = Store()
    for name in ("old", "new"):
        store.store("a", "word", metadata={"name": name, "lines": "1-2"})
        assert ids(found(keyword, ask(name), store.view())) == ["a"]
    store.store("a", "word", metadata={"name": "new", "lines": "3-4"})
    store.lose_body("a")
    assert ids(found(keyword, ask("new"), store.view())) == ["a"]
    assert found(keyword, ask("old"), store.view()) == ()


def test_a_moved_body_is_not_read_again(keyword: KeywordStrategy) -> None:
    """A demotion is another row of the same body, which may lie compressed on a disk by now."""
    store = library()
    before = found(keyword, ask("password"), store.view())
    store.demote("login")
    store.lose_body("login")
    assert found(keyword, ask("password"), store.view()) == before


@pytest.mark.parametrize("base", [0, 99])
def test_older_views_and_gaps(keyword: KeywordStrategy, base: int) -> None:
    """A view of any revision, in any order, gives what an index of that view gives."""
    store = library()
    store.delete("login")
    store.store("login", "password password")
    store.store("mail", "the password was sent")
    request = ask("password user mail")
    for revision in (6, 2, 3, 0, 6, 5, 1, 4):
        view = store.view(revision=revision, base=base)
        assert found(keyword, request, view) == found(KeywordStrategy(), request, view)


def test_another_epoch(keyword: KeywordStrategy) -> None:
    """A revision of another epoch says nothing about this one."""
    found(keyword, ask("word"), library().view())
    other = Store("another")
    for number in range(5):
        other.store(f"f{number}", "word")
    results = found(keyword, ask("word"), other.view())
    assert results == found(KeywordStrategy(), ask("word"), other.view())
    assert len(results) == 5


def test_a_body_that_is_gone(keyword: KeywordStrategy) -> None:
    """It is told to whoever asked; the next view that is complete is answered as if nothing had happened."""
    store = library()
    request = ask("password user")
    before = found(keyword, request, store.view())
    store.store("mail", "another password")
    store.store("lost", "password")
    store.lose_body("lost")
    store.store("later", "password")
    with pytest.raises(BodyGone):
        found(keyword, request, store.view())
    assert found(keyword, request, store.view(revision=3)) == before
    store.delete("lost")
    assert found(keyword, request, store.view()) == found(KeywordStrategy(), request, store.view())


def test_dead_slots_are_given_back(keyword: KeywordStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a fragment is replaced, what is kept is bounded by what is there, and scores the same."""
    monkeypatch.setattr(limits, "INDEX_DEAD_SLOTS_MAX", 2)
    store = library()
    request = ask("password user")
    for number in range(20):
        store.store("mail", f"unique{number} password", kind=f"kind{number}")
        view = store.view()
        assert found(keyword, request, view) == found(KeywordStrategy(), request, view)
    kept = keyword._indexes.content(store.view(), "p")
    assert len(kept._rows) <= 2 * len(kept) + 2
    unique = kept._postings.find(f"unique{number}" for number in range(20))
    assert sum(len(each.slots) > 0 for each in unique) < 8
    assert len(kept._kinds) < 8


def test_only_so_many_projects_are_kept() -> None:
    """The one that was not asked for the longest goes."""
    indexes = Bm25IndexCache(projects_max=2)
    keyword = KeywordStrategy(indexes)
    store = Store()
    for project in "abc":
        store.store("x", "word", project=project)
    view = store.view("a", "b", "c")
    for project in "abac":
        assert found(keyword, ask("word", project), view)
    assert [indexes.all_content.known(project) is not None for project in "abc"] == [True, False, True]
    assert len(found(keyword, ask("word", "a", "b", "c"), view)) == 3
    assert len(indexes) == 2


@pytest.mark.parametrize("parts", [1, 2, 3, 10])
def test_parts_do_not_show(keyword: KeywordStrategy, parts: int) -> None:
    """The shares of any number of workers come to what one gives: statistics are the whole view's."""
    random = seeded(5)
    store = Store()
    for number in range(60):
        words = random.choices("abcdefgh", k=random.randint(1, 9))
        store.store(f"f{number}", " ".join(words), project=random.choice("pq"), tokens=random.randint(1, 9))
    view, request = store.view("p", "q"), ask("a b c", "p", "q")
    for budget in (1, 20, 10_000):
        shares = [
            found(KeywordStrategy(), request, keyword.partition(view, part, parts), budget) for part in range(parts)
        ]
        assert keyword.merge(request, shares, budget) == found(keyword, request, view, budget)
        assert keyword.can_handle(request, keyword.partition(view, 0, parts)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_same_as_bm25s(seed: int) -> None:
    """Of the bodies of turns alone, ranking and scores are those of another implementation, but for the scale."""
    random = seeded(seed)
    vocabulary = [f"w{number}" for number in range(40)]
    store = Store()
    for number in range(200):
        words = random.choices(vocabulary, weights=range(1, 41), k=random.randint(1, 60))
        store.store(f"id{number}", " ".join(words), source=f"talk{number}", kind="turn")
    view = store.view()
    query = random.sample(vocabulary, 6)
    documents = [_terms(seen.text) for seen in view]
    oracle = bm25s.BM25(method="lucene", k1=K1, b=B, dtype="float64")
    oracle.index(documents, show_progress=False)
    expected = {seen.row.fragment_id: score for seen, score in zip(view, oracle.get_scores(query), strict=True)}
    results = found(KeywordStrategy(Bm25IndexCache(BODIES)), ask(" ".join(query)), view, 1_000)
    scale = (1 + FILE) / max(expected.values())  # a turn that is all of its conversation is a file of its own
    assert {each.fragment_id: each.score for each in results} == pytest.approx(
        {fragment_id: scale * score for fragment_id, score in expected.items() if score > 0}, abs=1e-9
    )
    assert ids(results) == sorted(ids(results), key=lambda each: (-round(expected[each], 9), each))


def _terms(text: str) -> list[str]:
    return [term for term, count in term_counts(text).items() for _ in range(count)]


def test_weights_are_repetitions() -> None:
    """A field that counts three times is as good as one that is written three times."""
    weighted, written = Store(), Store()
    for store, times in ((weighted, 1), (written, 3)):
        store.store("a", "red green", source="red " * times, kind="turn")
        store.store("b", "green blue", source="green " * times, kind="turn")
    request = ask("red green")
    single = Weights(path=30, fragment_id=10)
    tripled = found(KeywordStrategy(Bm25IndexCache(single)), request, weighted.view())
    assert tripled == found(KeywordStrategy(Bm25IndexCache(EQUAL)), request, written.view())


def test_a_real_view(keyword: KeywordStrategy) -> None:
    """What a runtime's own views tell is followed from one to the next, and backwards."""
    request = ask("password user")
    with sw.Runtime.start() as runtime, runtime.client(projects=["p"]) as client:
        views = [client.view()]
        client.tiers.store_many(
            [
                sw.Fragment(fragment_id="login", body="check the password of a user", source="src/login.py"),
                sw.Fragment(fragment_id="mail", body="send mail to a user"),
                sw.Fragment(fragment_id="logo", body=b"\xff\xfe"),
            ]
        )
        views.append(client.view())
        client.tiers.store(sw.Fragment(fragment_id="mail", body="mail the password"))
        client.tiers.demote("login")
        views.append(client.view())
        client.tiers.delete("logo")
        client.tiers.store(sw.Fragment(fragment_id="faq", body="I forgot my password"))
        views.append(client.view())
        results = [found(keyword, request, view) for view in views]
        assert results == [found(KeywordStrategy(), request, view) for view in views]
        assert list(map(len, results)) == [0, 2, 2, 3]
        assert [found(keyword, request, view) for view in views[::-1]] == results[::-1]
        rows = {row.fragment_id: row for row in views[-1].rows("p")}
        assert [each.tokens for each in results[-1]] == [rows[each].tokens for each in ids(results[-1])]

"""Views: everything in some projects at one revision, and bodies that are read without a request."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.api import views
from stepwell.limits import MIB
from stepwell.memory.reader.catalogue_reader import CatalogueState, Find, replay
from stepwell.protocol.handles import CatalogueEnd
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import fragment, refused
from tests.support.processes import in_forked_child
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

TEXT = (b"a body that has a segment of its own, as it is larger than those that are shared\n" * 20_000)[: 3 * MIB // 2]
NOISE = random.Random(1).randbytes(3 * MIB // 2)


@pytest.fixture
def small() -> Iterator[sw.Runtime]:
    """A runtime whose segments are small, and whose projects no other test fills."""
    with sw.Runtime.start(workers=0, budget=sw.TierBudget(arena_bytes=32 * MIB), log_level="error") as started:
        yield started


def store(client: sw.Client, project: str, **bodies: str | bytes) -> None:
    for fragment_id, body in bodies.items():
        client.tiers.store(sw.Fragment(fragment_id=fragment_id, project=project, body=body, tokens=1))


def texts(view: sw.View) -> dict[tuple[str, str], str]:
    return {(each.project, each.fragment_id): each.text for each in view}


def found(view: sw.View, fragment_id: str = "a") -> sw.types.ViewedFragment:
    fragment = view.get(fragment_id)
    assert fragment is not None
    return fragment


def is_mapped(client: sw.Client, fragment: sw.types.ViewedFragment) -> bool:
    return fragment.handle.segment in client._channel.mappings.mapped


def until_retired(client: sw.Client, fragment: sw.types.ViewedFragment) -> None:
    """Wait until the place that a fragment's handle names is gone, and this client knows."""

    def is_retired() -> bool:
        client.tiers.metrics()
        return not is_mapped(client, fragment)

    eventually(is_retired)


class TestOpening:
    def test_several_projects_at_one_revision(self, everything: sw.Client) -> None:
        """All their fragments, project by project as they were named, in order of creation."""
        store(everything, "v-one", b="1", a="2")
        store(everything, "v-two", c="3")
        store(everything, "v-one", d="4", b="5")
        view = everything.view(["v-two", "v-one", "v-two"])
        assert [*texts(view).items()] == [
            (("v-two", "c"), "3"),
            (("v-one", "b"), "5"),
            (("v-one", "a"), "2"),
            (("v-one", "d"), "4"),
        ]
        assert (len(view), view.projects) == (4, ("v-two", "v-one"))
        assert (view.epoch, view.revision) == (everything.epoch, everything.status().revision)
        assert (view.is_difference, view.removed) == (False, frozenset())
        assert repr(view) == f"<stepwell.View of 'v-two' and 1 other, revision {view.revision}, 4 rows>"

    def test_what_is_known_of_a_fragment(self, client: sw.Client) -> None:
        """The same as `get` would tell, but for what reading changes; tiers are those of the view's revision."""
        client.tiers.store(
            sw.Fragment(fragment_id="a", body="ä", source="a.py", tokens=7, kind="code", metadata={"k": "v"})
        )
        client.tiers.demote("a")
        viewed, got = found(client.view()), client.tiers.get("a")
        for name in ("project", "fragment_id", "source", "kind", "tokens", "tier", "digest", "revision", "metadata"):
            assert getattr(viewed, name) == getattr(got, name)
        assert (viewed.text, viewed.tier, bytes(viewed.body)) == ("ä", sw.Tier.WARM, "ä".encode())
        assert viewed.body.readonly
        assert "a" in repr(viewed)

    def test_rows_are_the_same_as_long_as_nothing_changes(self, client: sw.Client) -> None:
        """They are put in order once, however many views and callers there are."""
        client.tiers.store_many(fragment(name) for name in "cab")
        view = client.view()
        (project,) = view.projects
        rows = view.rows(project)
        assert [row.fragment_id for row in rows] == ["c", "a", "b"]
        assert client.view().rows(project) is rows
        client.tiers.delete("a")
        client.tiers.store_many(fragment(name) for name in "bad")
        later = client.view()
        assert [row.fragment_id for row in later.rows(project)] == ["c", "b", "a", "d"]
        assert [each.fragment_id for each in later] == ["c", "b", "a", "d"]
        assert view.rows(project) is rows

    def test_one_fragment(self, everything: sw.Client) -> None:
        """By id, and by project where there are several; what is not there is None."""
        store(everything, "one-a", x="1")
        store(everything, "one-b", x="2")
        one, both = everything.view(["one-a"]), everything.view(["one-a", "one-b"])
        assert found(one, "x").text == "1"
        assert [one.get("y"), one.get("x", project="one-b"), one.get("x", project="")] == [None] * 3
        second = both.get("x", project="one-b")
        assert second is not None
        assert second.text == "2"
        assert (("one-a", "x") in both, ("one-a", "y") in both, ("other", "x") in both) == (True, False, False)
        with pytest.raises(sw.InvalidArgument, match="name a project"):
            both.get("x")

    def test_project_without_fragments(self, client: sw.Client) -> None:
        """Is an empty view."""
        view = client.view()
        assert (len(view), [*view], view.get("a")) == (0, [], None)

    def test_out_of_scope(self, client: sw.Client) -> None:
        """A session sees its own projects, also together with others."""
        for projects in (["theirs"], [*(client.projects or ()), "theirs"]):
            with refused(client, sw.OutOfScope, "connect with it in projects="):
                client.view(projects)

    def test_unrestricted_without_projects(self, small: sw.Runtime) -> None:
        """Every project that there is, as long as they are not too many."""
        with small.client() as everything:
            with refused(everything, sw.InvalidArgument, "0 projects: a view has 1 to 64, name them with projects="):
                everything.view()
            for number in range(limits.PROJECTS_PER_SESSION_MAX):
                store(everything, f"p{number:02}", a=str(number))
            assert [each.text for each in everything.view()] == [
                str(number) for number in range(limits.PROJECTS_PER_SESSION_MAX)
            ]
            store(everything, "one-more", a="")
            with refused(everything, sw.InvalidArgument, "65 projects"):
                everything.view()
            assert len(everything.view(["one-more"])) == 1

    @pytest.mark.parametrize(
        "projects,advice",
        [
            ([f"p{number}" for number in range(limits.PROJECTS_PER_SESSION_MAX + 1)], "65 projects"),
            ([], "0 projects"),
            ("p", r"give \['p'\]"),
        ],
        ids=["too many", "none", "a string"],
    )
    def test_what_no_view_can_be_of(self, projects: list[str], advice: str, everything: sw.Client) -> None:
        """It is said what to give instead."""
        with refused(everything, sw.InvalidArgument, advice):
            everything.view(projects)

    def test_twenty_thousand_fragments(self, client: sw.Client) -> None:
        """Every one of them, in order, and reading all of their bodies is not a single request."""
        count = 20_000
        client.tiers.store_many(fragment(str(number), f"body {number}") for number in range(count))
        view = client.view()
        served = client.status().requests
        assert [(each.fragment_id, each.text) for each in view] == [
            (str(number), f"body {number}") for number in range(count)
        ]
        assert client.status().requests == served
        client.tiers.delete("7")
        later = client.view(since=view.revision)
        assert (later.is_difference, [*later], len(later.removed)) == (True, [], 1)

    def test_looking_is_no_access(self, client: sw.Client) -> None:
        """However often: nothing moves up, no revision is taken, and no read is counted."""
        client.tiers.store(fragment("a"))
        client.tiers.demote("a")
        revision = client.status().revision
        for _ in range(limits.PROMOTION_THRESHOLD + 1):
            assert found(client.view()).text == "body"
        assert client.status().revision == revision
        got = client.tiers.get("a")
        assert (got.access_count, got.tier) == (1, sw.Tier.WARM)

    def test_in_a_forked_child(self, client: sw.Client) -> None:
        """It has a session of its own, and replays anew what its parent had replayed."""
        client.tiers.store(fragment("a"))
        view = client.view()

        def child() -> None:
            assert not client._views._replayed
            assert texts(client.view()) == texts(view)

        in_forked_child(child)
        assert texts(client.view()) == texts(view)

    def test_what_was_replayed_is_not_replayed_again(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """A view begins where the last one ended, also if nobody has that any more."""
        given: list[CatalogueState | None] = []

        def watched(end: CatalogueEnd, find: Find, before: CatalogueState | None = None) -> CatalogueState:
            given.append(before)
            return replay(end, find, before)

        monkeypatch.setattr(views, "replay", watched)
        client.tiers.store(fragment("a"))
        client.view()
        client.tiers.store(fragment("b"))
        assert [each.fragment_id for each in client.view()] == ["a", "b"]
        known = client.view().replayed[0]
        assert given[0] is None
        assert given[1] is not None
        assert given[1].end == known.before.end if known.before else False
        assert given[2] is known

    def test_older_views(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever is a little behind is not replayed from the beginning either, and sees what there was."""
        seen: list[sw.View] = []
        for name in "abcd":
            client.tiers.store(fragment(name))
            seen.append(client.view())

        def refused(*_: object) -> None:
            raise AssertionError("read again")

        first = seen[0]
        monkeypatch.setattr(client._views._session.bodies, "segment", refused)
        for view in (*seen[1:], *seen[:0:-1]):
            again = client._views.open_at(view.epoch, view.revision, view.ends)
            assert again is not None
            assert [*again.rows(view.projects[0])] == [*view.rows(view.projects[0])]
        monkeypatch.undo()
        again = client._views.open_at(first.epoch, first.revision, first.ends)
        assert again is not None
        assert [each.fragment_id for each in again] == ["a"]

    def test_only_so_many_projects_are_kept(self, everything: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that were looked at last."""
        for project in ("kept-a", "kept-b", "kept-c"):
            store(everything, project, x="1")
        monkeypatch.setattr(limits, "PROJECTS_PER_SESSION_MAX", 2)
        for project in ("kept-a", "kept-b", "kept-a", "kept-c"):
            everything.view([project])
        assert [*everything._views._replayed] == ["kept-a", "kept-c"]

    def test_catalogue_that_is_gone_already(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """It was listed anew between the answer and our looking: the view is asked for again."""
        client.tiers.store(fragment("a"))
        mappings = client._channel.mappings
        segment, failures = mappings.segment, [sw.BodyGone("gone")]

        def gone_at_first(number: int) -> memoryview:
            if failures:
                raise failures.pop()
            return segment(number)

        monkeypatch.setattr(mappings, "segment", gone_at_first)
        assert found(client.view()).text == "body"
        assert not failures


class TestDifferences:
    def test_since_a_revision(self, everything: sw.Client) -> None:
        """What was stored, replaced or moved since, and what was removed, and nothing else."""
        store(everything, "d-one", a="1", b="2", c="3", d="4")
        store(everything, "d-two", e="5")
        first = everything.view(["d-one", "d-two"])
        store(everything, "d-one", b="changed", new="6")
        everything.tiers.demote("c", project="d-one")
        everything.tiers.delete("d", project="d-one")
        everything.tiers.delete("e", project="d-two")
        difference = everything.view(["d-one", "d-two"], since=first.revision)
        assert difference.is_difference
        assert {key: each.tier for key, each in ((each.fragment_id, each) for each in difference)} == {
            "b": sw.Tier.HOT,
            "c": sw.Tier.WARM,
            "new": sw.Tier.HOT,
        }
        assert difference.removed == {("d-one", "d"), ("d-two", "e")}
        whole = {key: text for key, text in texts(first).items() if key not in difference.removed} | texts(difference)
        assert whole == texts(everything.view(["d-one", "d-two"]))

    def test_nothing_since(self, client: sw.Client) -> None:
        """A difference of nothing is one, too."""
        client.tiers.store(fragment("a"))
        view = client.view()
        again = client.view(since=view.revision)
        assert (again.is_difference, len(again), again.removed) == (True, 0, frozenset())

    def test_before_anybody_looked(self, client: sw.Client) -> None:
        """It cannot be told what changed: the view has everything, and says so."""
        client.tiers.store(fragment("a"))
        before = client.status().revision
        client.tiers.store(fragment("b"))
        view = client.view(since=before)
        assert (view.is_difference, len(view)) == (False, 2)

    def test_listed_anew(self, client: sw.Client) -> None:
        """After very many changes the catalogue is made anew, and what came before is not told apart any more."""
        client.tiers.store(fragment("a"))
        first = client.view()
        client.tiers.store_many(fragment("a", str(number)) for number in range(limits.CATALOGUE_RECORDS_MIN + 100))
        assert client.view(since=first.revision).is_difference
        eventually(lambda: not client.view(since=first.revision).is_difference)
        whole = client.view(since=first.revision)
        assert [each.text for each in whole] == [str(limits.CATALOGUE_RECORDS_MIN + 99)]
        client.tiers.store(fragment("b"))
        difference = client.view(since=whole.revision)
        assert (difference.is_difference, [each.fragment_id for each in difference]) == (True, ["b"])

    @pytest.mark.parametrize("ahead", [1, 1_000_000])
    def test_revision_that_has_not_been(self, ahead: int, client: sw.Client) -> None:
        """Is of another epoch, or a mistake."""
        with refused(client, sw.InvalidArgument, "is no revision of this epoch, which is at"):
            client.view(since=client.status().revision + ahead)
        with refused(client, sw.InvalidArgument, "since=-1 is no revision"):
            client.view(since=-1)


class TestMeanwhile:
    def test_view_does_not_change(self, client: sw.Client) -> None:
        """Whatever others write: who is in it, and where, and what their bodies are."""
        for name in "abc":
            client.tiers.store(fragment(name, f"old {name}"))
        view = client.view()
        before = [(each.fragment_id, each.tier, each.text) for each in view]
        client.tiers.store(fragment("a", "new"))
        client.tiers.demote("b")
        client.tiers.delete("c")
        client.tiers.store(fragment("d"))
        assert [(each.fragment_id, each.tier, each.text) for each in view] == before
        assert len(view) == 3

    def test_view_is_of_one_revision(self, runtime: LocalRuntime) -> None:
        """Two projects that are written together are never seen apart, and time does not go back."""
        projects = ["both-p", "both-q"]
        finished = threading.Event()

        def write() -> None:
            with runtime.client(projects=projects) as writer:
                number = 0
                while not finished.is_set():
                    number += 1
                    with writer.transaction() as transaction:
                        for project in projects:
                            body = str(number)
                            transaction.tiers.store(sw.Fragment(fragment_id="a", project=project, body=body, tokens=1))

        def look() -> None:
            seen = [0]
            with runtime.client(projects=projects) as reader:
                for _ in range(100):
                    values = [int(each.text) for each in reader.view()]
                    if len({*values}) > 1 or len(values) == 1 or (values and values[0] < seen[-1]):
                        wrong.append(values)
                    seen.extend(values[:1])

        wrong: list[list[int]] = []
        writer = threading.Thread(target=write)
        writer.start()
        readers = [threading.Thread(target=look) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        finished.set()
        writer.join()
        assert wrong == []

    def test_threads_of_one_client(self, client: sw.Client, everything: sw.Client) -> None:
        """What one thread has replayed helps the others, and shows none of them the future."""
        (project,) = client.projects or ()
        wrong: list[tuple[int, int]] = []
        finished = threading.Event()

        def look() -> None:
            while not finished.is_set():
                view = client.view()
                if latest := [each.revision for each in view if each.revision > view.revision]:
                    wrong.append((view.revision, max(latest)))

        readers = [threading.Thread(target=look) for _ in range(4)]
        for reader in readers:
            reader.start()
        for number in range(500):
            store(everything, project, **{str(number % 50): str(number)})
        finished.set()
        for reader in readers:
            reader.join()
        assert wrong == []

    def test_deleted_but_still_mapped(self, client: sw.Client) -> None:
        """A body whose segment is there is readable, without a request."""
        client.tiers.store(fragment("a"))
        viewed = found(client.view())
        client.tiers.delete("a")
        served = client.status().requests
        assert viewed.text == "body"
        assert client.status().requests == served

    def test_deleted_and_gone(self, small: sw.Runtime) -> None:
        """Its segment went with it: `BodyGone`, which says what to do, and again for whoever asks again."""
        with small.client(projects=["p"]) as client:
            client.tiers.store(fragment("a", NOISE))
            viewed = found(client.view())
            client.tiers.delete("a")
            until_retired(client, viewed)
            for _ in range(2):
                with pytest.raises(sw.BodyGone, match="deleted since the view was opened: open another one") as caught:
                    _ = viewed.body
                assert caught.value.details == {"digest": hashlib.sha256(NOISE).hexdigest()}
            assert len(client.view()) == 0

    def test_deleted_while_somebody_looks(self, small: sw.Runtime) -> None:
        """What was read once stays readable; what the manager counts as held by us is let go of with it."""
        with small.client(projects=["p"]) as client:
            client.tiers.store(fragment("a", NOISE))
            viewed = found(client.view())
            held = viewed.body[1_000:2_000]
            client.tiers.delete("a")
            until_retired(client, viewed)
            assert (bytes(held), bytes(viewed.body)) == (NOISE[1_000:2_000], NOISE)
            assert client.status().memory.retired_segments == 1
            del held, viewed

            def is_released() -> bool:
                client.tiers.metrics()
                return client.status().memory.retired_segments == 0

            eventually(is_released)

    def test_only_moved(self, small: sw.Runtime) -> None:
        """Its segment is gone, and the body is elsewhere, in another form: found by asking, unnoticed."""
        with small.client(projects=["p"]) as client:
            client.tiers.store_many([fragment("a", TEXT), fragment("b", NOISE)])
            view = client.view()
            for name in "ab":
                client.tiers.demote(name)
                client.tiers.demote(name)
            for name, body in (("a", TEXT), ("b", NOISE)):
                viewed = found(view, name)
                until_retired(client, viewed)
                assert viewed.body == body
            client.tiers.delete("a")
            assert found(view, "b").body == NOISE

    def test_another_session_does_not_know_yet(self, small: sw.Runtime) -> None:
        """Whoever has not been told that a segment is gone has it, and reads what they saw."""
        with small.client(projects=["p"]) as writer, small.client(projects=["p"]) as reader:
            writer.tiers.store(fragment("a", NOISE))
            viewed = found(reader.view())
            writer.tiers.delete("a")
            eventually(lambda: writer.status().memory.retired_segments == 1)
            assert is_mapped(reader, viewed)
            assert viewed.body == NOISE

    def test_closed_client(self, runtime: LocalRuntime) -> None:
        """What was read stays; what was not is lost with the client."""
        with runtime.client(projects=["closed"]) as client:
            client.tiers.store_many([fragment("a"), fragment("b")])
            view = client.view()
            read = found(view, "a")
            assert read.text == "body"
        assert bytes(read.body) == b"body"
        with pytest.raises(sw.RuntimeLost, match="closed"):
            _ = found(view, "b").body

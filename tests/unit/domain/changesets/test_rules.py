"""Which changeset a change goes to is resolved in the step that records it."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.changesets.commands import (
    EndChangeset,
    GetChangeset,
    ListChangesets,
    ListEntries,
    RecordChange,
    StartChangeset,
)
from stepwell.domain.changesets.model import ChangesetState, Content, ContextRow, Operation
from stepwell.domain.plans.commands import DeclareSubplans, EndSession, RetryPlan, SubplanSpec, UseAction
from stepwell.domain.plans.model import ProjectLink
from stepwell.domain.tiers.body_refs import Digest, digest_of
from stepwell.domain.tiers.commands import DeleteFragment
from stepwell.domain.tiers.model import COLD, TierBudget
from stepwell.errors import (
    AlreadyExists,
    Busy,
    ChangesetClosed,
    InvalidArgument,
    LeaseLost,
    NoActiveChangeset,
    NotFound,
    PlanError,
    PlanNotReady,
    TierFull,
)
from tests.support.domain.world import NOON_MS, World, image


@pytest.fixture
def world() -> World:
    """A plan that executes."""
    world = World()
    world.use()
    world.execute()
    return world


def change(world: World, path: str = "a.py", before: bytes | None = None, after: bytes | None = None) -> RecordChange:
    """A change in the usual context."""
    return RecordChange("plan", "ctx", world.lease(), path, before, after)


class TestStart:
    """Opening a changeset pushes it on its context's stack."""

    def test_started(self, world: World) -> None:
        """It belongs to a plan, an attempt and a context."""
        changeset = world.open()
        assert (changeset.changeset_id, changeset.plan_id, changeset.context_id) == ("cs", "plan", "ctx")
        assert (changeset.attempt, changeset.state, changeset.entry_count) == (1, ChangesetState.OPEN, 0)
        assert (changeset.started_at_ms, changeset.ended_at_ms) == (NOON_MS, None)
        assert world.plan().changeset_ids == ("cs",)
        assert world.state.contexts.get("ctx") == ContextRow("ctx", "plan", ("cs",))

    def test_id_is_taken(self, world: World) -> None:
        """Also by another plan."""
        world.open()
        world.use("other")
        token = world.execute("other")
        world.refuse(StartChangeset("other", "x", "cs", token), AlreadyExists, "changeset 'cs' exists already")

    def test_context_of_another_plan(self, world: World) -> None:
        """A context works for one plan while it has anything open."""
        world.open()
        world.use("other")
        token = world.execute("other")
        world.refuse(
            StartChangeset("other", "ctx", "new", token), InvalidArgument, "^context 'ctx' belongs to another plan$"
        )
        world.end()
        world.do(StartChangeset("other", "ctx", "new", token))

    def test_bounds(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """So many in a plan, and so many open in a context."""
        monkeypatch.setattr(limits, "CHANGESETS_PER_PLAN_MAX", 2)
        monkeypatch.setattr(limits, "ACTIVE_PER_CONTEXT_MAX", 1)
        world.open("one")
        world.refuse(
            StartChangeset("plan", "ctx", "two", world.lease()), Busy, "has 1 open changeset already: close some"
        )
        world.open("two", "elsewhere")
        world.refuse(StartChangeset("plan", "x", "three", world.lease()), Busy, "has 2 changesets already")


class TestRecord:
    """An entry, by content."""

    def test_entry(self, world: World) -> None:
        """Numbered, dated, with both sides by digest; the bytes travel beside it."""
        world.open()
        command = RecordChange("plan", "ctx", world.lease(), "a.py", before=b"old", after=b"newer", tool="editor")
        outcome = machine.apply(world.state, command, world.origin())
        assert outcome.bodies == {digest_of(b"old"): b"old", digest_of(b"newer"): b"newer"}
        (entry,) = world.do(ListEntries("cs")).entries
        assert (entry.plan_id, entry.changeset_id, entry.seq, entry.path) == ("plan", "cs", 1, "a.py")
        assert (entry.before, entry.after) == (
            Content(digest_of(b"old"), 3, held=True),
            Content(digest_of(b"newer"), 5, held=True),
        )
        assert (entry.before_digest, entry.after_digest) == (Digest.of(b"old"), Digest.of(b"newer"))
        assert (entry.operation, entry.tool, entry.recorded_at_ms) == (Operation.MODIFY, "editor", NOON_MS)
        assert world.do(GetChangeset("cs")).changeset.entry_count == 1

    def test_digests_instead_of_bytes(self, world: World) -> None:
        """Then there are no bytes to keep."""
        world.open()
        digest = digest_of(b"x")
        entry = world.do(
            RecordChange("plan", "ctx", world.lease(), "a", before_digest=digest, after_digest=digest_of(b"y"))
        ).entry
        assert entry.before == Content(digest, None, held=False)
        assert (entry.before_digest, entry.after_digest) == (Digest.of(b"x"), Digest.of(b"y"))
        assert world.state.bodies.bytes == 0
        assert entry.held == ()

    def test_bodies_of_entries_are_cold(self, world: World) -> None:
        """They need nothing of the arena, unless a fragment has the same."""
        world.open()
        world.record(before=b"old", after=b"newer")
        assert (world.state.bodies.bytes, world.state.bodies.arena_bytes) == (8, 0)
        assert world.state.bodies.tier_of(digest_of(b"old")) is COLD
        world.store("f", body=b"newer")
        assert world.state.bodies.arena_bytes == 5
        world.do(DeleteFragment("p", "f"))
        assert world.state.bodies.tier_of(digest_of(b"newer")) is COLD

    def test_uploads(self, world: World) -> None:
        """Either side may have been uploaded; only what came inline travels on."""
        world.open()
        origin = replace(world.origin(), uploads={0: (digest_of(b"old"), 3), 4: (digest_of(b"newer"), 5)})
        commands = [replace(change(world), before=0, after=4), replace(change(world), before=4, after=b"last")]
        outcomes = [machine.apply(world.state, command, origin) for command in commands]
        assert [outcome.bodies for outcome in outcomes] == [{}, {digest_of(b"last"): b"last"}]
        first, _ = world.do(ListEntries("cs")).entries
        assert (first.before, first.after) == (
            Content(digest_of(b"old"), 3, held=True),
            Content(digest_of(b"newer"), 5, held=True),
        )
        world.refuse(commands[0], InvalidArgument, "there is no upload 0 on this connection")

    def test_digest_of_no_file(self, world: World) -> None:
        """There is none."""
        world.open()
        created = world.do(change(world, after=b"x")).entry
        deleted = world.do(change(world, before=b"x")).entry
        assert (created.before_digest, created.after_digest) == (None, Digest.of(b"x"))
        assert (deleted.before_digest, deleted.after_digest) == (Digest.of(b"x"), None)

    @pytest.mark.parametrize("side", ["before", "after"])
    def test_both_forms_of_one_side(self, world: World, side: str) -> None:
        """Nobody could say which of them is true."""
        world.open()
        command = replace(change(world), **{side: b"x", f"{side}_digest": digest_of(b"x")})
        world.refuse(command, InvalidArgument, f"{side} is given both as bytes and as a digest: give one")

    @pytest.mark.parametrize(
        "path, fields, message",
        [
            ("../a", {"after": b"x"}, "leaves its root by '..'"),
            ("/a", {"after": b"x"}, "is absolute"),
            ("a", {}, "nothing changed"),
            ("a", {"before": b"x", "after_digest": digest_of(b"x")}, "nothing changed"),
        ],
    )
    def test_what_is_no_change(self, world: World, path: str, fields: dict[str, bytes], message: str) -> None:
        """Paths and digests are checked here too, whatever the client did."""
        world.open()
        world.refuse(replace(change(world, path), **fields), InvalidArgument, message)

    def test_move(self, world: World) -> None:
        """It has a source, with rules of its own."""
        world.open()
        world.record("to", before=b"x", after=b"x", source_path="from")
        (entry,) = world.do(ListEntries("cs")).entries
        assert (entry.operation, entry.source_path) == (Operation.MOVE, "from")
        command = RecordChange("plan", "ctx", world.lease(), "to", b"x", b"x", source_path="../from")
        world.refuse(command, InvalidArgument, "path '../from' leaves its root")

    def test_most_recent_of_the_context(self, world: World) -> None:
        """The stack's top, and after it is closed the one below."""
        world.open("outer")
        world.open("inner")
        assert world.record() == "inner"
        world.end("inner")
        assert world.record() == "outer"

    def test_closing_the_outer_first(self, world: World) -> None:
        """A stack gives back from anywhere."""
        world.open("outer")
        world.open("inner")
        world.end("outer")
        assert world.record() == "inner"
        assert world.state.contexts.get("ctx") == ContextRow("ctx", "plan", ("inner",))

    def test_contexts_do_not_see_each_other(self, world: World) -> None:
        """Interleaved as they may be, each change goes to its own context's changeset."""
        world.open("a1", "a")
        world.open("b1", "b")
        world.open("a2", "a")
        recorded = [world.record(context_id=context) for context in "abab"]
        assert recorded == ["a2", "b1", "a2", "b1"]

    def test_explicit_id(self, world: World) -> None:
        """It overrides the stack."""
        world.open("outer")
        world.open("inner")
        assert world.record(changeset_id="outer") == "outer"

    def test_explicit_id_of_another_context(self, world: World) -> None:
        """A context can neither record into another's changeset nor end it, whatever it calls it by."""
        world.open()
        theirs = RecordChange("plan", "other", world.lease(), "a.py", after=b"x", changeset_id="cs")
        world.refuse(theirs, NotFound, "this context of plan 'plan' has no changeset 'cs'")
        world.refuse(EndChangeset("plan", "other", world.lease(), "cs"), NotFound, "has no changeset 'cs'")

    def test_no_active_changeset(self, world: World) -> None:
        """A typed refusal that says what to do, before the first and after the last."""
        command = change(world, after=b"x")
        error = world.refuse(command, NoActiveChangeset, r"call start_changeset\(\) first")
        assert isinstance(error, PlanError)
        world.open("elsewhere", "other")
        world.refuse(command, NoActiveChangeset, r"call start_changeset\(\) first")
        world.open()
        world.end()
        world.refuse(command, NoActiveChangeset, r"call start_changeset\(\) first")

    def test_context_of_another_plan(self, world: World) -> None:
        """Its changesets are no business of this plan."""
        world.open()
        world.use("other")
        token = world.execute("other")
        command = RecordChange("other", "ctx", token, "a", after=b"x")
        world.refuse(command, InvalidArgument, "^context 'ctx' belongs to another plan$")

    def test_changeset_of_another_plan(self, world: World) -> None:
        """Nor is one that is named."""
        world.open()
        world.use("other")
        token = world.execute("other")
        command = RecordChange("other", "x", token, "a", after=b"x", changeset_id="cs")
        error = world.refuse(command, NotFound, "plan 'other' has no changeset 'cs'")
        assert error.details == {"changeset_id": "cs"}
        world.refuse(
            RecordChange("other", "x", token, "a", after=b"x", changeset_id="none"), NotFound, "no changeset 'none'"
        )

    @pytest.mark.parametrize("abort", [False, True])
    def test_ended_is_immutable(self, world: World, *, abort: bool) -> None:
        """Closed or aborted, it takes nothing more."""
        world.open()
        world.end(abort=abort)
        command = RecordChange("plan", "ctx", world.lease(), "a", after=b"x", changeset_id="cs")
        state = "aborted" if abort else "closed"
        world.refuse(command, ChangesetClosed, f"changeset 'cs' is {state}: start another one")
        world.refuse(EndChangeset("plan", "ctx", world.lease(), "cs"), ChangesetClosed, "start another one")

    def test_earlier_attempt(self, world: World) -> None:
        """The changesets of an attempt end with it."""
        world.open()
        world.do(EndSession("alice"))
        token = world.start()
        command = RecordChange("plan", "ctx", token, "a", after=b"x", changeset_id="cs")
        world.refuse(command, ChangesetClosed, "is aborted: start another one")

    def test_old_lease(self, world: World) -> None:
        """The old token can no longer start, record or end anything."""
        world.open()
        old = world.lease()
        world.fail()
        world.do(RetryPlan("plan"))
        world.start()
        for command in (
            StartChangeset("plan", "ctx", "new", old),
            RecordChange("plan", "ctx", old, "a", after=b"x"),
            EndChangeset("plan", "ctx", old, "cs"),
        ):
            world.refuse(command, LeaseLost, "stop working on it")

    def test_only_while_executing(self, world: World) -> None:
        """In no other phase, and for no read-only plan."""
        world.use("early")
        token = world.start("early")
        world.refuse(StartChangeset("early", "x", "new", token), PlanNotReady, "changes are recorded while it executes")
        world.action("look", read_only=True)
        world.use("looking", "look")
        token = world.execute("looking")
        for command in (
            StartChangeset("looking", "x", "new", token),
            RecordChange("looking", "x", token, "a", after=b"x"),
            EndChangeset("looking", "x", token, "new"),
        ):
            world.refuse(command, PlanError, "'looking' is read_only, by its action, projects or parent")

    def test_read_only_projects(self, world: World) -> None:
        """All of a plan's projects, that is: nothing can be recorded where nothing may be written."""
        links = (ProjectLink("p", read_only=True), ProjectLink("q", read_only=True))
        world.do(UseAction("looking", "act", links))
        token = world.execute("looking")
        start = StartChangeset("looking", "x", "new", token)
        world.refuse(start, PlanError, "'looking' is read_only, by its action, projects or parent")
        world.refuse(RecordChange("looking", "x", token, "a", after=b"x"), PlanError, "it can change nothing$")
        world.do(UseAction("working", "act", (*links, ProjectLink("r"))))
        world.execute("working")
        world.open("cs", "x", "working")
        world.record(context_id="x", plan_id="working")

    def test_read_only_parent(self, world: World) -> None:
        """A child cannot do for its parent what that may not, whatever projects it names; nor can a grandchild."""
        world.do(UseAction("looking", "act", (ProjectLink("p", read_only=True),)))
        world.execute("looking")
        spec = SubplanSpec("kid", "kid", "act", project_links=(ProjectLink("q"),))
        world.do(DeclareSubplans("looking", world.lease("looking"), (spec,)))
        world.execute("kid")
        world.declare("grandkid", plan_id="kid")
        world.execute("grandkid")
        for name in ("kid", "grandkid"):
            assert world.plan(name).projects == ("q",)
            command = RecordChange(name, "x", world.lease(name), "a", after=b"x")
            world.refuse(command, PlanError, f"{name!r} is read_only, by its action, projects or parent")

    def test_bound(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """So many entries in a plan, over all of its changesets."""
        monkeypatch.setattr(limits, "ENTRIES_PER_PLAN_MAX", 2)
        world.open("one")
        world.record("a")
        world.open("two")
        world.record("b")
        world.refuse(change(world, after=b"x"), Busy, "has 2 entries already")

    def test_bytes_are_bounded(self) -> None:
        """Both sides count together, and what is kept already does not count again."""
        world = World(TierBudget(bodies_bytes=10))
        world.use()
        world.execute()
        world.open()
        world.refuse(change(world, before=b"123456", after=b"654321"), TierFull, "delete some, or raise bodies_bytes")
        world.record(before=b"12345", after=b"54321")
        world.record(before=b"54321", after=b"12345")
        world.refuse(change(world, after=b"x"), TierFull, "bodies have no room left in their 10 bytes: delete some")

    def test_aborted_transaction_leaves_nothing_behind(self, world: World) -> None:
        """Not even an empty list under the id of a changeset that never was."""
        lease = world.lease()
        before = image(world.state)
        world.abort(
            [
                StartChangeset("plan", "ctx", "ghost", lease),
                RecordChange("plan", "ctx", lease, "a", after=b"x"),
                RecordChange("plan", "ctx", lease, "..", after=b"x"),
            ]
        )
        assert image(world.state) == before
        assert (world.state.entries.by_changeset, world.state.entries.by_plan) == ({}, {})


class TestEndAndRead:
    """Closed counts, aborted does not, and both stay readable."""

    @pytest.mark.parametrize("abort, expected", [(False, ChangesetState.CLOSED), (True, ChangesetState.ABORTED)])
    def test_end(self, world: World, *, abort: bool, expected: ChangesetState) -> None:
        """With the time of its end; a context without open changesets is forgotten."""
        world.open()
        world.record()
        world.now_ms += 5
        changeset = world.end(abort=abort)
        assert (changeset.state, changeset.ended_at_ms, changeset.entry_count) == (expected, NOON_MS + 5, 1)
        assert world.do(GetChangeset("cs")).changeset == changeset
        assert len(world.state.contexts) == 0

    def test_missing(self, world: World) -> None:
        """What is not there is not ended, nor read."""
        world.refuse(EndChangeset("plan", "ctx", world.lease(), "cs"), NotFound, "has no changeset 'cs'")
        world.refuse(GetChangeset("cs"), NotFound, "there is no changeset 'cs'")
        world.refuse(ListEntries("cs"), NotFound, "there is no changeset 'cs'")
        world.refuse(ListChangesets("none"), NotFound, "there is no plan 'none'")

    def test_scope(self, world: World) -> None:
        """A changeset is as visible as its plan: where that is not, it is not there."""
        world.open()
        world.record()
        lease = world.lease()
        for command in (
            GetChangeset("cs"),
            ListEntries("cs"),
            ListChangesets("plan"),
            StartChangeset("plan", "ctx", "new", lease),
            RecordChange("plan", "ctx", lease, "a", after=b"x"),
            EndChangeset("plan", "ctx", lease, "cs"),
        ):
            world.refuse(command, NotFound, "^there is no (plan 'plan'|changeset 'cs')", projects={"q"})
            assert image(world.state)["changesets"]
        assert world.do(GetChangeset("cs"), projects={"p", "q"}).changeset.entry_count == 1

    def test_list_changesets(self, world: World) -> None:
        """In order of starting."""
        for name in ("z", "a", "m"):
            world.open(name)
        page = world.do(ListChangesets("plan", limit=2))
        assert ([each.changeset_id for each in page.changesets], page.cursor) == (["z", "a"], "2")
        rest = world.do(ListChangesets("plan", cursor="2"))
        assert ([each.changeset_id for each in rest.changesets], rest.cursor) == (["m"], None)
        world.refuse(ListChangesets("plan", cursor="a"), InvalidArgument, "cursor is malformed")

    def test_list_entries(self, world: World) -> None:
        """In order of recording; an empty changeset has an empty page."""
        world.open()
        assert world.do(ListEntries("cs")).entries == ()
        for path in "abc":
            world.record(path)
        page = world.do(ListEntries("cs", limit=2))
        assert ([each.path for each in page.entries], page.cursor) == (["a", "b"], "2")
        rest = world.do(ListEntries("cs", cursor="2"))
        assert ([each.path for each in rest.entries], rest.cursor) == (["c"], None)

    def test_entries_are_as_many_as_a_reply_carries(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows weigh; bodies do not, because they do not travel in the reply, asked for or not."""
        monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 16 * limits.KIB)
        world.open()
        for number in range(3):
            world.record(str(number), after=bytes([number]) * 20 * limits.KIB)
        page = world.do(ListEntries("cs", with_bodies=True))
        assert (len(page.entries), page.cursor, len(page.body_digests)) == (2, "2", 2)
        without = world.do(ListEntries("cs"))
        assert (len(without.entries), without.cursor, without.body_digests) == (2, "2", ())

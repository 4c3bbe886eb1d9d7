"""Changesets against stacks of lists: every entry in the changeset where its context would have it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.changesets.rules import net_changes_of
from stepwell.domain.commands import Command, Write
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CompletePhase,
    CreateAction,
    EndSession,
    FailPhase,
    RetryPlan,
    StartPhase,
    UseAction,
)
from stepwell.domain.plans.model import Phase, ProjectLink
from stepwell.domain.replies import EntryFound, Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import BrokenChain
from tests.support.model_check import AgainstModel, Refusal, content

PLANS = ("one", "two")
BYTES_MAX = 60


@dataclass
class Book:
    """A changeset, with what was recorded in it."""

    plan: str
    context: str
    attempt: int
    state: str = "open"
    entries: list[tuple[str, bytes | None, bytes | None]] = field(default_factory=list)
    modes: list[tuple[int | None, int | None]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


@dataclass
class Stacks:
    """Open changesets by context, and whether each plan is executing under which lease."""

    lease: dict[str, int | None] = field(default_factory=dict)
    attempt: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLANS, 1))
    books: dict[str, Book] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)

    def apply(self, command: Command[Reply], _origin: Origin, revision: int) -> bool:
        match command:
            case StartChangeset(plan, context, name, token):
                self.require_lease(plan, token)
                if name in self.books:
                    raise Refusal("AlreadyExists")
                self.require_own(plan, context)
                self.books[name] = Book(plan, context, self.attempt[plan])
                self.stacks.setdefault(context, []).append(name)
            case RecordChange():
                self.record(command)
            case EndChangeset(plan, context, token, name, abort):
                self.require_lease(plan, token)
                self.end(name, self.open_book(plan, context, name), "aborted" if abort else "closed")
            case StartPhase(plan):
                self.lease[plan] = revision
            case CompletePhase(plan):
                self.lease[plan] = None
            case FailPhase(plan):
                self.stop(plan)
            case RetryPlan(plan):
                self.attempt[plan] += 1
            case EndSession():
                lost = [plan for plan in PLANS if self.lease.get(plan)]
                for plan in lost:
                    self.stop(plan)
                    self.attempt[plan] += 1
                return bool(lost)
            case _:
                pass
        return True

    def record(self, command: RecordChange) -> None:
        self.require_lease(command.plan_id, command.lease)
        name = command.changeset_id
        if name is None:
            self.require_own(command.plan_id, command.context_id)
            if not self.stacks.get(command.context_id):
                raise Refusal("NoActiveChangeset")
            name = self.stacks[command.context_id][-1]
        book = self.open_book(command.plan_id, command.context_id, name)
        before, after = (None if side is None else content(side) for side in (command.before, command.after))
        modes = command.before_mode, command.after_mode
        if ".." in command.path or (before == after and (None in modes or modes[0] == modes[1])):
            raise Refusal("InvalidArgument")
        for side, mode in zip((before, after), modes, strict=True):
            if mode is not None and (side is None or mode == 0o644 or (mode == 0o040000 and side)):
                raise Refusal("InvalidArgument")
        book.entries.append((command.path, before, after))
        book.modes.append(modes)
        book.numbers.append(sum(len(each.entries) for each in self.books.values() if each.plan == book.plan))
        if sum(map(len, self.bodies())) > BYTES_MAX:
            raise Refusal("TierFull")

    def bodies(self) -> set[bytes]:
        return {
            body for book in self.books.values() for _, *sides in book.entries for body in sides if body is not None
        }

    def require_lease(self, plan: str, token: int | None) -> None:
        if plan not in PLANS:
            raise Refusal("NotFound")
        if token is None and self.lease[plan] is None:
            raise Refusal("PlanNotReady")
        if self.lease[plan] is None or token != self.lease[plan]:
            raise Refusal("LeaseLost")

    def require_own(self, plan: str, context: str) -> None:
        if any(self.books[name].plan != plan for name in self.stacks.get(context, [])):
            raise Refusal("InvalidArgument")

    def open_book(self, plan: str, context: str, name: str) -> Book:
        book = self.books.get(name)
        if book is None or (book.plan, book.context) != (plan, context):
            raise Refusal("NotFound")
        if book.state != "open":
            raise Refusal("ChangesetClosed")
        return book

    def end(self, name: str, book: Book, state: str) -> None:
        book.state = state
        self.stacks[book.context].remove(name)

    def stop(self, plan: str) -> None:
        self.lease[plan] = None
        for name, book in self.books.items():
            if book.plan == plan and book.state == "open":
                self.end(name, book, "aborted")

    def net(self, plan: str) -> object:
        """What a plan's closed changesets come to: its entries in their order, walked through path by path."""
        entries = [
            (number, path, (before, modes[0]), (after, modes[1]))
            for book in self.books.values()
            if (book.plan, book.state, book.attempt) == (plan, "closed", self.attempt[plan])
            for number, (path, before, after), modes in zip(book.numbers, book.entries, book.modes, strict=True)
        ]
        tree: dict[str, tuple[bytes | None, int | None]] = {}
        first: dict[str, bytes | None] = {}
        broken = set()
        for _, path, before, after in sorted(entries, key=lambda each: each[0]):
            first.setdefault(path, before[0])
            body, mode = tree.get(path, before)
            if body != before[0] or (None not in {mode, before[1]} and mode != before[1]):
                broken.add(path)
            known = before[1] if mode is None else mode
            keeps = after[0] is not None and (known != 0o040000 or after[0] == b"")
            tree[path] = after[0], after[1] if after[1] is not None or not keeps else known
        if broken:
            return sorted(broken)
        return {path: (first[path], *tree[path]) for path in first}

    def net_in(self, state: State, plan_id: str) -> object:
        plan = state.plans.get(plan_id)
        if plan is None:
            return {}
        bodies = {
            digest_of(body): body
            for book in self.books.values()
            for _, *sides in book.entries
            for body in sides
            if body is not None
        }
        try:
            net = net_changes_of(state, plan, plan.attempt)
        except BrokenChain as error:
            return error.details["paths"]
        return {
            path: (
                bodies[each.before.digest] if each.before else None,
                bodies[each.after.digest] if each.after else None,
                each.after.mode if each.after else None,
            )
            for path, each in net.items()
        }

    def view(self) -> object:
        return (
            {
                name: (
                    (book.plan, book.context, book.attempt, book.state),
                    ([path for path, *_ in book.entries], book.modes, book.numbers),
                )
                for name, book in self.books.items()
            },
            {plan: self.net(plan) for plan in PLANS},
            {context: names for context, names in self.stacks.items() if names},
            sum(map(len, self.bodies())),
        )

    def seen_in(self, state: State) -> object:
        return (
            {
                each.changeset_id: (
                    (each.plan_id, each.context_id, each.attempt, each.state),
                    (
                        [entry.path for entry in state.entries.of(each.changeset_id)],
                        [
                            (entry.before and entry.before.mode, entry.after and entry.after.mode)
                            for entry in state.entries.of(each.changeset_id)
                        ],
                        [entry.ordinal for entry in state.entries.of(each.changeset_id)],
                    ),
                )
                for each in state.changesets
            },
            {plan: self.net_in(state, plan) for plan in PLANS},
            {context.context_id: list(context.active) for context in state.contexts},
            state.bodies.bytes,
        )


CONTEXTS = st.sampled_from(["x", "y", "z"])
CONTENTS = st.sampled_from([None, b"", b"a", b"bbbb", b"c" * 9, b"d" * 20, b"e" * 25, 1, 2, 3])
MODES = st.sampled_from([None] * 6 + [0o100644, 0o100755, 0o120000, 0o040000, 0o644])
PATHS = st.sampled_from(["a.py", "b/c.py", "../d.py"])


class ChangesetMachine(AgainstModel):
    """Interleaved workers of two plans in three contexts."""

    model: Stacks

    @initialize()
    def start(self) -> None:
        self.begin(Stacks(), TierBudget(bodies_bytes=BYTES_MAX))
        self.births = 0
        self.both(CreateAction("act", "", "", "planner", "coder"), self.origin())
        for plan in PLANS:
            self.both(UseAction(plan, "act", (ProjectLink("p"),)), self.origin())
            self.both(StartPhase(plan, Phase.STRATEGIZE), self.origin())
            self.both(CompletePhase(plan, Phase.STRATEGIZE, self.model.lease[plan]), self.origin())
            self.both(AdvancePlan(plan, Phase.EXECUTE), self.origin())
            self.both(StartPhase(plan, Phase.EXECUTE), self.origin())

    def command(self, data: st.DataObject) -> Write[Reply]:
        """A step of a worker, now and then with an old lease or another's changeset."""
        plan = data.draw(st.sampled_from(PLANS))
        token = data.draw(st.sampled_from([self.model.lease[plan]] * 8 + [None, 1]))
        context = data.draw(CONTEXTS)
        names = [*self.model.books, "nothing"]
        match data.draw(st.sampled_from(["start", "record", "record", "record", "end"])):
            case "start":
                self.births += 1
                name = data.draw(st.sampled_from([f"cs-{self.births}"] * 4 + names[:1]))
                return StartChangeset(plan, context, name, token)
            case "record":
                named = data.draw(st.none() | st.none() | st.sampled_from(names))
                path, before, after = data.draw(st.tuples(PATHS, CONTENTS, CONTENTS))
                modes = data.draw(st.tuples(MODES, MODES))
                return RecordChange(
                    plan,
                    context,
                    token,
                    path,
                    before,
                    after,
                    changeset_id=named,
                    before_mode=modes[0],
                    after_mode=modes[1],
                )
            case _:
                return EndChangeset(
                    plan, context, token, data.draw(st.sampled_from(names)), abort=data.draw(st.booleans())
                )

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        for _ in range(3):
            command = self.command(data)
            reply = self.both(command, self.origin())
            if isinstance(reply, EntryFound):
                book = self.model.books[reply.entry.changeset_id]
                assert (reply.entry.seq, reply.entry.path) == (len(book.entries), book.entries[-1][0])

    @rule(data=st.data(), plan=st.sampled_from(PLANS), size=st.integers(1, 5))
    def two_at_once(self, data: st.DataObject, plan: str, size: int) -> None:
        """Changes of one file, recorded by turns into two changesets, most of them fitting; then both count."""
        token, contexts = self.model.lease[plan], ("left", "right")
        self.births += 1
        names = {context: f"{context}-{self.births}" for context in contexts}
        for context, name in names.items():
            self.both(StartChangeset(plan, f"{plan}-{context}", name, token), self.origin())
        body, mode = data.draw(st.tuples(st.sampled_from([None, b"", b"a"]), st.just(None)))
        for _ in range(size):
            context = data.draw(st.sampled_from(contexts))
            after = data.draw(st.sampled_from([None, b"", b"a", b"bbbb"]))
            after_mode = data.draw(st.sampled_from([None, 0o100644, 0o100755])) if after is not None else None
            found = data.draw(st.sampled_from([body] * 5 + [b"bbbb"]))
            before_mode = data.draw(st.sampled_from([None, mode])) if found is not None and found == body else None
            change = RecordChange(
                plan,
                f"{plan}-{context}",
                token,
                "shared.py",
                found,
                after,
                before_mode=before_mode,
                after_mode=after_mode,
            )
            if self.both(change, self.origin()) is not None:
                body, mode = after, after_mode
        for context, name in names.items():
            self.both(EndChangeset(plan, f"{plan}-{context}", token, name), self.origin())

    @rule(data=st.data(), size=st.integers(1, 5))
    def transact(self, data: st.DataObject, size: int) -> None:
        self.both_at_once([self.command(data) for _ in range(size)], self.origin())

    @rule(data=st.data(), size=st.integers(1, 5))
    def abort(self, data: st.DataObject, size: int) -> None:
        commands = [self.command(data) for _ in range(size)]
        self.both_at_once([*commands, EndChangeset("nobody", "x", None, "nothing")], self.origin())

    @rule(plan=st.sampled_from(PLANS))
    def fail_and_retry(self, plan: str) -> None:
        """What is open is aborted with its attempt; another one begins."""
        self.both(FailPhase(plan, Phase.EXECUTE, self.model.lease[plan], "x"), self.origin())
        self.both(RetryPlan(plan), self.origin())
        self.both(StartPhase(plan, Phase.EXECUTE), self.origin())

    @rule()
    def session_is_lost(self) -> None:
        """So it is when the owner is gone."""
        self.both(EndSession("alice"), self.origin("manager"))
        for plan in PLANS:
            self.both(StartPhase(plan, Phase.EXECUTE), self.origin())


TestChangesets = ChangesetMachine.TestCase
TestChangesets.settings = settings(max_examples=settings().max_examples // 2)

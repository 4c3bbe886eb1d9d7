"""Receipts against a list: the newest, as many as there may be, each seen by whoever may; and tiers that stay."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stepwell import limits
from stepwell.domain.commands import Command, Write
from stepwell.domain.receipts.commands import GetReceipt, ListReceipts, StoreReceipt
from stepwell.domain.replies import ReceiptPage, Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment, SetBudget, StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import Origin
from tests.support.domain.world import image
from tests.support.model_check import AgainstModel, Refusal, content

COUNT_MAX, SIZE_MAX, ALL_MAX = 4, 12, 20
TIERS = ("fragments", "clocks", "orders", "usage", "created")

Kept = tuple[str, frozenset[str], str, bytes]
"""A receipt: its id, its projects, its title, its bytes."""


@dataclass
class Pile:
    """Receipts, the oldest at the bottom, and the bodies of fragments, which have the rest of the room."""

    room: int
    receipts: list[Kept] = field(default_factory=list)
    fragments: dict[str, bytes] = field(default_factory=dict)

    @property
    def share(self) -> int:
        return min(ALL_MAX, self.room * 10 // 100)

    def bytes(self) -> int:
        return sum(map(len, {*self.fragments.values(), *(data for *_, data in self.receipts)}))

    def apply(self, command: Command[Reply], origin: Origin, _revision: int) -> bool:
        match command:
            case StoreReceipt():
                self.store(command, origin)
            case GetReceipt(name):
                self.find(name, origin)
                return False
            case ListReceipts():
                return False
            case StoreFragment(_, name, body):
                self.fragments[name] = content(body)
                self.require_room()
            case DeleteFragment(_, name):
                if self.fragments.pop(name, None) is None:
                    raise Refusal("NotFound")
            case SetBudget(budget):
                self.room = budget.bodies_bytes
                self.shrink()
                self.require_room()
            case _:
                raise NotImplementedError(command)
        return True

    def store(self, command: StoreReceipt, origin: Origin) -> None:
        if origin.projects is not None and not {*command.projects} <= origin.projects:
            raise Refusal("OutOfScope")
        data = content(command.body)
        if len(data) > SIZE_MAX:
            raise Refusal("InvalidArgument")
        kept = (command.receipt_id, frozenset(command.projects), command.title, data)
        if kept in self.receipts:
            return
        if any(each[0] == command.receipt_id for each in self.receipts):
            raise Refusal("AlreadyExists")
        if len(data) > self.share:
            raise Refusal("TierFull")
        is_new = data not in {*self.fragments.values(), *(each[3] for each in self.receipts)}
        self.receipts.append(kept)
        self.shrink()
        if is_new:
            self.require_room()

    def shrink(self) -> None:
        while len(self.receipts) > COUNT_MAX or sum(len(data) for *_, data in self.receipts) > self.share:
            del self.receipts[0]

    def require_room(self) -> None:
        if self.bytes() > self.room:
            raise Refusal("TierFull")

    def seen(self, origin: Origin) -> list[str]:
        """What a session may see, the newest first."""
        found = [name for name, projects, *_ in self.receipts if origin.projects is None or projects <= origin.projects]
        return found[::-1]

    def find(self, name: str, origin: Origin) -> None:
        if name not in self.seen(origin):
            raise Refusal("NotFound")

    def view(self) -> object:
        return (
            [(name, sorted(projects), title, digest_of(data)) for name, projects, title, data in self.receipts],
            sum(len(data) for *_, data in self.receipts),
            self.bytes(),
        )

    def seen_in(self, state: State) -> object:
        rows = [*state.receipts.before(None)][::-1]
        return (
            [(row.receipt_id, list(row.projects), row.title, row.digest) for row in rows],
            state.receipts.bytes,
            state.bodies.bytes,
        )


SCOPES = st.sampled_from([None, frozenset("p"), frozenset("pq"), frozenset("z")])
CONTENTS = st.sampled_from([b"", b"a", b"bbbb", b"c" * 9, b"d" * 12, b"e" * 13, 1, 2, 3])
NAMES = st.sampled_from([f"r{number}" for number in range(8)])
PROJECTS = st.sampled_from([("p",), ("q",), ("q", "p"), ("p", "p")])
ROOMS = st.sampled_from([60, 90, 150, 250])
STORES = st.builds(StoreReceipt, NAMES, PROJECTS, st.sampled_from(["", "why?"]), CONTENTS)
FRAGMENTS = st.builds(
    StoreFragment, st.just("p"), NAMES, CONTENTS | st.just(b"f" * 30), st.just(1), st.sampled_from([*Tier])
)
OTHERS: st.SearchStrategy[Write[Reply]] = st.one_of(
    FRAGMENTS,
    st.builds(DeleteFragment, st.just("p"), NAMES),
    st.builds(SetBudget, st.builds(TierBudget, bodies_bytes=ROOMS)),
)


class ReceiptMachine(AgainstModel):
    """Sessions of several scopes store, look and list, while fragments come and go and the budget changes."""

    model: Pile

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, bound in {"MAX": COUNT_MAX, "BYTES_MAX": ALL_MAX}.items():
            self.patch.setattr(limits, f"RECEIPTS_{name}", bound)
        self.patch.setattr(limits, "RECEIPT_BYTES_MAX", SIZE_MAX)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(room=ROOMS)
    def start(self, room: int) -> None:
        self.begin(Pile(room), TierBudget(bodies_bytes=room))

    @rule(commands=st.lists(STORES, min_size=1, max_size=5), scope=SCOPES)
    def store(self, commands: list[StoreReceipt], scope: frozenset[str] | None) -> None:
        """Nothing in the tiers moves, whether there is room or not."""
        before = self.tiers()
        for command in commands:
            self.both(command, self.origin(projects=scope))
        assert self.tiers() == before

    @rule(name=NAMES, scope=SCOPES)
    def look(self, name: str, scope: frozenset[str] | None) -> None:
        before = self.tiers()
        self.both(GetReceipt(name), self.origin(projects=scope))
        assert self.tiers() == before

    @rule(limit=st.integers(1, 5), scope=SCOPES)
    def leaf_through(self, limit: int, scope: frozenset[str] | None) -> None:
        """Full pages but for the last, which has no cursor, however much there is that the session does not see."""
        origin, seen = self.origin(projects=scope), list[str]()
        cursor: str | None = None
        expected = self.model.seen(origin)
        while True:
            page = self.both(ListReceipts(limit, cursor), origin)
            assert isinstance(page, ReceiptPage)
            seen += [row.receipt_id for row in page.receipts]
            cursor = page.cursor
            assert (cursor is None) == (len(seen) == len(expected))
            if cursor is None:
                break
            assert len(page.receipts) == limit
        assert seen == expected

    @rule(command=OTHERS)
    def do_something_else(self, command: Write[Reply]) -> None:
        self.both(command, self.origin())

    @rule(commands=st.lists(STORES | OTHERS, min_size=1, max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once(commands, self.origin())

    def tiers(self) -> dict[str, object]:
        whole = image(self.state)
        return {part: whole[part] for part in TIERS}


TestReceipts = ReceiptMachine.TestCase
TestReceipts.settings = settings(max_examples=settings().max_examples // 2)

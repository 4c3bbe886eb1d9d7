"""Defects that break the promise of bounds."""

from __future__ import annotations

from tests.promises.model import Defect

BUDGET = "Tokens in hot never exceed the budget, at any revision."
OVERFLOW = "Overflow demotes and never deletes."
NAMED = "Every frame, buffer and queue has a named bound"
BUSY = "Past it, the answer is `Busy`, at once."

TIERS = "tests/property/test_tiers.py::TestTiers"
FAULTS = "tests/faults/test_memory.py"
DESCRIPTORS = "tests/faults/test_descriptors.py"
DEMO = "tests/examples/test_demo.py::test_its_own_runtime"

DEFECTS = (
    Defect(
        3,
        BUDGET,
        "The short path of a store does not count its tokens against the budget of hot.",
        "domain/tiers/fast_path.py",
        "        tokens_left -= command.tokens - before.tokens if before else command.tokens\n",
        "",
        ("features/context_tiers.feature: Inserting and enforcing the budget are one step", DEMO),
    ),
    Defect(
        3,
        BUDGET,
        "The general path of a store places the fragment without a look at the budget.",
        "domain/tiers/budget.py",
        "    if state.fragments.has_room(row, before, budget) and (",
        "    if state and (",
        (TIERS,),
    ),
    Defect(
        3,
        OVERFLOW,
        "A fragment that has to leave its tier is deleted.",
        "domain/tiers/budget.py",
        "        self.moves[victim.key] = RowChanged(before, lowered)\n",
        "        self.moves[victim.key] = RowChanged(before, None)\n",
        (TIERS,),
    ),
    Defect(
        3,
        NAMED,
        "The bodies in shared memory may need more than the budget of the arena.",
        "domain/tiers/budget.py",
        "    if state.bodies.arena_bytes + (arriving.size if arriving else 0) > budget.live_bytes:",
        "    if not budget.live_bytes:",
        (TIERS, "tests/property/test_memory.py::TestMemory", f"{FAULTS}::test_full_arena_is_refused"),
    ),
    Defect(
        3,
        NAMED,
        "The arena takes another segment although it is at its limit.",
        "memory/writer/arena.py",
        "        if self.bytes + size > (self._emptying_limit if emptying else self.limit - self._spare):",
        "        if self.bytes > (self._emptying_limit if emptying else self.limit - self._spare):",
        ("tests/unit/memory/writer/test_arena.py::TestAppending::test_bound_is_not_passed",),
    ),
    Defect(
        3,
        NAMED,
        "A frame may have any length.",
        "protocol/framing.py",
        "        if not 0 <= length <= self.frame_bytes_max:",
        "        if not 0 <= length:",
        ("tests/faults/test_bad_peers.py::test_what_is_no_protocol_ends_the_connection",),
    ),
    Defect(
        3,
        BUSY,
        "The manager accepts any number of connections.",
        "manager/loop.py",
        "        if len(self._connections) > (peers_max := self._acceptor.peers_max):",
        "        if len(self._connections) > 1_000 * (peers_max := self._acceptor.peers_max):",
        (f"{DESCRIPTORS}::test_flood_of_connections",),
    ),
    Defect(
        3,
        BUSY,
        "A manager without a free descriptor leaves a new peer without an answer.",
        "manager/acceptor.py",
        "            if error.errno not in OUT_OF_DESCRIPTORS or self._spare is None:\n"
        "                raise\n"
        "            self._refuse(error)\n"
        "            return None\n",
        "            raise\n",
        ("tests/unit/manager/test_loop.py::test_no_descriptor_left_is_told_busy",),
    ),
)

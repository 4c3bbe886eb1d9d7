"""The fast path: runs of the two simple cases that are most of the traffic.

- a `get` of a fragment that is hot already: it moves nothing;
- a `store` into the hot tier of a project that exists: of a new fragment, or in place of one that is hot. If hot is
  full, the least recently used fragments are demoted to warm, and those of warm to cold.

`machine.apply_get_run` and `machine.apply_store_run` take a batch of commands, apply as many from its beginning as are
simple, and stop before the first that is not. They take a third of the time that `machine.apply` takes for the same
commands, because one pass over the batch replaces a verdict, a change and a reply for each command. Whatever is not
simple, including every refusal, is left to `machine.apply`, which alone defines what a command means. Property tests
hold the two to the same result.

This module decides the stores. `decide_stores` reads the state and changes nothing, like any decider. It does not match
names against patterns: a name that exists was checked when it was created, and a new id passes only if it is printable,
which is stricter than its pattern. To decide a read is a matter of three conditions, which are in
`machine.apply_get_run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.checks import is_small_metadata
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of, shared_size
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.tiers.model import COLD, HOT, NO_METADATA, WARM, FragmentRow, Tier
from stepwell.domain.tiers.table import Demotion
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import Origin, RowChanged


class StoreRun(Struct):
    """A run of stores: their rows, the new bodies by digest, the rows that they replace, and the demotions.

    All rows are hot, of one project and of different fragments. Each has a revision of its own. Under this revision
    `replaced` has the row in whose place it comes, if there is one, and `demotions` the changes that make room for it
    in the same step, in order. A row with the body that its fragment had before brings no new body; of the replaced
    ones, `released` are those whose body the new row does not have.
    """

    rows: list[FragmentRow] = []
    bodies: dict[bytes, bytes] = {}
    replaced: dict[int, FragmentRow] = {}
    released: list[FragmentRow] = []
    demotions: dict[int, list[Demotion]] = {}

    def changes(self, row: FragmentRow) -> tuple[RowChanged[FragmentRow], ...]:
        """Return all changes of the step that stores a row."""
        stored = RowChanged(self.replaced.get(row.revision), row)
        if not self.demotions:  # the usual case
            return (stored,)
        return (*starmap(RowChanged, self.demotions.get(row.revision, ())), stored)


def decide_stores(state: State, commands: Sequence[object], origin: Origin, room_bytes: int) -> StoreRun:
    """Return the effect of the stores at the beginning of `commands` that are simple.

    All rows are of one project that exists, because its name is then known to be valid, and of fragments that the run
    has not changed before. A body is new, or the fragment has it already; together the bodies have at most
    `room_bytes`, and the arena needs no demotion for them. A body that a replaced row releases still counts as present,
    so that a later command with this body is not simple. Each row has the revision that the general path would give it.
    """
    table, bodies, budget = state.fragments, state.bodies, state.budget
    now_ms, projects, writer = origin.now_ms, origin.projects, origin.writer
    run, first = StoreRun(), commands[0]
    if not isinstance(first, StoreFragment) or (project := table.interned_project(first.project)) is None:
        return run
    present, arrived = table.by_id(project), run.bodies
    changed: set[str] = set()
    revision, next_serial = state.revision, table.next_serial
    tokens_left = budget.hot_tokens - table.hot_tokens
    bytes_left = min(budget.bodies_bytes - bodies.bytes, budget.live_bytes - bodies.arena_bytes, room_bytes)
    overflow: _Overflow | None = None
    for command in commands:
        if (
            not isinstance(command, StoreFragment)
            or (kind := known_label(command.kind)) is None
            or not isinstance(body := command.body, bytes)
            or command.project != project
            or (projects is not None and project not in projects)
            or command.tier is not HOT
            or command.options is not None
            or (command.metadata and not is_small_metadata(command.metadata))
            or (name := command.fragment_id) in changed
        ):
            break
        before = entry.row if (entry := present.get(name)) else None
        if not (_may_replace(before, command) if before else _may_create(command)):
            break
        size = shared_size(len(body))
        bytes_left -= size
        # The digest comes late, because it costs more than all the conditions before it together.
        if bytes_left < 0 or (digest := digest_of(body)) in arrived:
            break
        is_present = digest in bodies.counts
        if is_present and not (before and before.digest == digest):
            break
        changed.add(name)
        tokens_left -= command.tokens - before.tokens if before else command.tokens
        if tokens_left < 0:
            overflow = overflow or _Overflow(state, now_ms, project, changed)
            if not overflow.demote(-tokens_left):
                break
            tokens_left += overflow.freed_tokens
            run.demotions[revision + 1] = overflow.demotions
        revision += 1
        serial, created_at_ms = max(revision, next_serial), now_ms  # as `serial_at` does
        if before:
            run.replaced[revision] = before
            if not is_present:
                run.released.append(before)
            name, serial, created_at_ms = before.fragment_id, before.serial, before.created_at_ms
        else:
            next_serial = serial + 1
        if not is_present:
            arrived[digest] = body
        metadata, depth, tokens = command.metadata or NO_METADATA, command.detail_depth, command.tokens
        row = FragmentRow(
            project, name, command.source, kind, depth, tokens, size, digest, HOT, now_ms, created_at_ms, revision,
            serial, metadata, writer if command.work is None else origin.writer_for(command.work),
        )  # fmt: skip
        run.rows.append(row)
    return run


def _may_create(command: StoreFragment) -> bool:
    """Return True if a fragment may be created under the id of a store without a check against its pattern."""
    name = command.fragment_id
    return bool(name) and name.isprintable() and not command.expected_revision


def _may_replace(before: FragmentRow, command: StoreFragment) -> bool:
    """Return True if a store may come in place of a row: the row stays in hot, and has the expected revision."""
    expected = command.expected_revision
    return (
        before.tier is HOT
        and (expected is None or expected == before.revision)
        and not before.keep
        and before.expires_at_ms is None
    )


class _Overflow:
    """The demotions of a run whose rows do not fit into hot.

    Only fragments that were in their tier before the run are demoted, from the least recently used on. If these are not
    enough, the next store is not simple. `demotions` and `freed_tokens` are the result of the last `demote`.

    `changed` are the ids of the fragments of the run's project that the run has stored or demoted. What it has stored
    is used most recently, and is not demoted; what it has demoted is not hot any more, and is not replaced.
    """

    __slots__ = (
        "_changed",
        "_cold_left",
        "_hot",
        "_moves_left",
        "_now_ms",
        "_project",
        "_warm",
        "_warm_left",
        "demotions",
        "freed_tokens",
    )

    def __init__(self, state: State, now_ms: int, project: str, changed: set[str]) -> None:
        table, budget = state.fragments, state.budget
        self._project, self._changed = project, changed
        self._hot, self._warm = filter(self._is_as_before, table.oldest(HOT)), table.oldest(WARM)
        self._warm_left = budget.warm_entries - table.usage(WARM).entries
        self._cold_left = budget.cold_entries - table.usage(COLD).entries
        self._moves_left = limits.DEMOTIONS_PER_RUN
        self._now_ms = now_ms
        self.demotions: list[Demotion] = []
        self.freed_tokens = 0

    def demote(self, tokens: int) -> bool:
        """Demote from hot until so many tokens are free, and from warm what has no room there then.

        Return False if the general path has to decide: there are not enough victims, as for a fragment that is larger
        than all of hot, or there are too many.
        """
        self.demotions, self.freed_tokens = [], 0
        while self.freed_tokens < tokens:
            if not self._lower(self._hot, WARM):
                return False
            self.freed_tokens += self.demotions[-1][0].tokens
            self._warm_left -= 1
        while self._warm_left < 0:
            self._cold_left -= 1
            if self._cold_left < 0 or not self._lower(self._warm, COLD):
                return False
            self._warm_left += 1
        return True

    def _is_as_before(self, entry: FragmentEntry) -> bool:
        """Return True if the run has not changed a fragment."""
        return entry.row.fragment_id not in self._changed or entry.row.project != self._project

    def _lower(self, victims: Iterator[FragmentEntry], tier: Tier) -> bool:
        """Add the demotion of the next victim to a tier. Return False if there is none, or there are too many."""
        entry = next(victims, None)
        self._moves_left -= 1
        if entry is None or self._moves_left < 0:
            return False
        self.demotions.append((entry.row, replace(entry.row, tier=tier, placed_at_ms=self._now_ms)))
        if entry.row.project == self._project:
            self._changed.add(entry.row.fragment_id)
        return True

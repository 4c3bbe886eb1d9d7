"""Shortcuts: what most requests ask for, in one step, where nothing else comes of it.

A `get` of a fragment that is hot moves nothing, and a `store` of one that is new, and has room, concerns nobody else.
Both are decided and done in here in one go, as many at once as come one after the other, in a third of the time. Of
whatever is not as simple they know nothing, change nothing, and end before it: then `machine.apply`, which says what is
right, has its turn. That the two agree is property-tested. Names are held to their bounds by `machine.apply` too: what
exists has been.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.replies import FragmentFound
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import GetFragment, StoreFragment
from stepwell.domain.tiers.model import HOT, NO_METADATA, FragmentRow
from stepwell.domain.verdict import Origin


def get(state: State, commands: Sequence[object], origin: Origin) -> list[FragmentFound]:
    """Fragments that are hot already and have little to say beside their bodies, up to the first that is not."""
    found: list[FragmentFound] = []
    table, now_ms, projects = state.fragments, origin.now_ms, origin.projects
    entries, touch = table.entries, table.touch
    for command in commands:
        if not isinstance(command, GetFragment) or (projects is not None and command.project not in projects):
            break
        entry = entries.get((command.project, command.fragment_id))
        if entry is None:
            break
        row = entry.row
        if row.tier is not HOT or row.metadata or len(row.source) > limits.SIMPLE_SOURCE_CHARS_MAX:
            break
        touch(entry, now_ms)
        found.append(FragmentFound(row, now_ms, entry.access_count))
    return found


def store(
    state: State, commands: Sequence[object], origin: Origin, room: int
) -> tuple[Sequence[FragmentRow], dict[bytes, bytes]]:
    """The rows of fragments that are new, of one project that exists, with nothing making room; and their bodies.

    These are new too, and have at most `room` bytes together.
    """
    table, bodies, budget = state.fragments, state.bodies, state.budget
    now_ms, projects = origin.now_ms, origin.projects
    rows: list[FragmentRow] = []
    arrived: dict[bytes, bytes] = {}
    names: set[str] = set()
    project: str | None = None
    revision, serial = state.revision, table.next_serial
    tokens_left = budget.hot_tokens - table.hot_tokens
    bytes_left = min(budget.bodies_bytes - bodies.bytes, budget.live_bytes - bodies.arena_bytes, room)
    for command in commands:
        if not isinstance(command, StoreFragment):
            break
        if project is None:
            project = table.project_named(command.project)
        body, tokens, fragment_id, kind = command.body, command.tokens, command.fragment_id, known_label(command.kind)
        if (
            project is None
            or kind is None
            or not isinstance(body, bytes)
            or command.project != project
            or (projects is not None and project not in projects)
            or command.tier is not HOT
            or command.metadata
            or command.expected_revision
            or not fragment_id
            or not fragment_id.isprintable()
            or fragment_id in names
            or (project, fragment_id) in table.entries
        ):
            break
        size = len(body)
        tokens_left -= tokens
        bytes_left -= size
        if tokens_left < 0 or bytes_left < 0 or (digest := digest_of(body)) in arrived or digest in bodies.counts:
            break
        revision += 1
        rows.append(
            FragmentRow(
                project,
                fragment_id,
                command.source,
                kind,
                command.detail_depth,
                tokens,
                size,
                digest,
                HOT,
                now_ms,
                now_ms,
                revision,
                serial,
                NO_METADATA,
            )
        )
        serial += 1
        names.add(fragment_id)
        arrived[digest] = body
    if rows:
        state.revision = revision
        table.add(rows)
        bodies.add(rows)
    return rows, arrived

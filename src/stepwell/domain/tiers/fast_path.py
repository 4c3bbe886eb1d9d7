"""The fast path: decides runs of the two simple cases that are most of the traffic.

- a `get` of a fragment that is hot already: it moves nothing;
- a `store` of a new fragment into a project that exists, with room for it: it affects no other fragment.

`hot_entries` and `new_rows` read the state and change nothing, like any decider. Both take a batch of commands, accept
as many from its beginning as are simple, and stop before the first that is not. `machine.apply_get_run` and
`machine.apply_store_run` then make the changes, in a third of the time that `machine.apply` takes for the same
commands, because one pass over the batch replaces a verdict, a change and a reply for each command. Whatever is not
simple, including every refusal, is left to `machine.apply`, which alone defines what a command means. Property tests
hold the two to the same result.

Names are not checked here: a name that exists was checked when it was created, and a new id passes only if it is
printable, which is stricter than its pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import GetFragment, StoreFragment
from stepwell.domain.tiers.model import HOT, NO_METADATA, FragmentRow
from stepwell.domain.tiers.table import FragmentEntry
from stepwell.domain.verdict import Origin


def hot_entries(state: State, commands: Sequence[object], origin: Origin) -> list[FragmentEntry]:
    """Return the entries of the hot fragments that the commands at the beginning read.

    A fragment with metadata or a long source ends the run. The results that are left are so small that those of a whole
    batch fit into one response, so that the sizes need not be added up.
    """
    found: list[FragmentEntry] = []
    entries, projects = state.fragments.entries, origin.projects
    for command in commands:
        if not isinstance(command, GetFragment) or (projects is not None and command.project not in projects):
            break
        entry = entries.get((command.project, command.fragment_id))
        if entry is None:
            break
        row = entry.row
        if row.tier is not HOT or row.metadata or len(row.source) > limits.SIMPLE_SOURCE_CHARS_MAX:
            break
        found.append(entry)
    return found


def new_rows(
    state: State, commands: Sequence[object], origin: Origin, room_bytes: int
) -> tuple[list[FragmentRow], dict[bytes, bytes]]:
    """Return the rows that the stores at the beginning create, and their bodies by digest.

    All rows are of one project that exists, because its name is then known to be valid. All are new and
    hot, and none has metadata or an expected revision. The bodies are new too and fit into the budget without a
    demotion; together they have at most `room_bytes`. Each row has the revision that the general path would give it.
    """
    table, bodies, budget = state.fragments, state.bodies, state.budget
    now_ms, projects = origin.now_ms, origin.projects
    rows: list[FragmentRow] = []
    arrived: dict[bytes, bytes] = {}
    names: set[str] = set()
    project: str | None = None
    revision, serial = state.revision, table.next_serial
    tokens_left = budget.hot_tokens - table.hot_tokens
    bytes_left = min(budget.bodies_bytes - bodies.bytes, budget.live_bytes - bodies.arena_bytes, room_bytes)
    for command in commands:
        if not isinstance(command, StoreFragment):
            break
        if project is None:
            project = table.interned_project(command.project)
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
        # The digest comes last, because it costs more than all the other conditions together.
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
    return rows, arrived

"""Show and resolve the conflicts of a merge.

A conflict consists of hunks, as in git: lines that both sides changed, a content that cannot be merged by lines, or a
mode. A choice concerns the hunks alone. All other edits of both sides are part of the result, unless the caller gives a
new body. Afterwards the children that wait at the same path are merged with the result, in declared order, until one of
them is in conflict with it: that is the next open conflict of the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.client.workflows.merge_tree import blocking_path
from stepwell.domain.changesets.model import Content
from stepwell.domain.changesets.paths import DIRECTORY
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.commands import ResolveConflict
from stepwell.domain.plans.conflicts import MergeConflict, Resolution, Side
from stepwell.domain.plans.model import MergeStrategy, Plan
from stepwell.errors import InvalidArgument, NotFound, PlanError
from stepwell.text import brief_repr, plural
from stepwell.trees.merge.file_merge import Merged, Version, merge, whole_conflict
from stepwell.trees.merge.text_merge import Hunk, HunkKind, Labels

_RESOLUTIONS: Final = {"ours": Resolution.ACCEPT_OURS, "theirs": Resolution.ACCEPT_THEIRS}
_ADVICE: Final = "resolve a conflict by accept='ours', accept='theirs', accept=[a side for each hunk] or body="


class ConflictSides(Struct, frozen=True):
    """Both sides of a conflict and their common base; None stands for "no file".

    `ours` is what is merged so far, `theirs` what the child left. `hunks` are the points on which they disagree; each
    needs a choice. `marked` is git's merge of the three texts: with conflict markers, or without if they can be merged
    after all, as `is_clean` says; None if they are no texts. `reason` explains the conflict.
    """

    conflict: MergeConflict
    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    hunks: tuple[Hunk, ...]
    marked: bytes | None
    is_clean: bool
    reason: str

    __repr__ = brief_repr

    @property
    def path(self) -> str:
        return self.conflict.path

    @property
    def is_text(self) -> bool:
        """True if `marked` is UTF-8 and shows the conflict, which one about the mode alone does not."""
        if self.marked is None or (self.hunks and all(hunk.kind is HunkKind.MODE for hunk in self.hunks)):
            return False
        try:
            self.marked.decode()
        except UnicodeDecodeError:
            return False
        return True

    @property
    def version(self) -> str:
        """The version of the conflict, for `resolve`."""
        return self.conflict.version


def conflict_sides(context: ChangesetApi, path: str) -> ConflictSides:
    """Return the open conflict of a path with its contents; `NotFound` if there is none."""
    found = _open_conflict(context, path)
    if found is None:
        raise NotFound(f"plan {context.plan_id!r} has no open conflict at {path!r}", path=path)
    return found.sides()


def conflict_text(context: ChangesetApi, path: str) -> str:
    """Return the open conflict of a path as text with markers, or a description if it is not about text."""
    sides = conflict_sides(context, path)
    if sides.marked is not None and sides.is_text:
        return sides.marked.decode()
    ours, theirs = (_describe_side(side) for side in (sides.conflict.ours, sides.conflict.theirs))
    return f"{path}: {sides.reason}\nours: {ours}\ntheirs: {theirs}\n"


def resolve(
    context: ChangesetApi,
    conflict: str | MergeConflict | ConflictSides,
    *,
    accept: Side | Sequence[Side] | None,
    body: bytes | None,
    mode: int | None,
    version: str | None,
) -> Plan:
    """Resolve a conflict, as `PlanExecutionContext.resolve` promises; return the plan."""
    choice = _Choice(accept, body, mode)
    require_instance(conflict, (str, MergeConflict, ConflictSides), "give a path, or one of plan.open_conflicts")
    path = conflict if isinstance(conflict, str) else conflict.path
    version = conflict.version if version is None and not isinstance(conflict, str) else version
    found = _open_conflict(context, path)
    if found is None:
        # The manager refuses this command with the right error: the caller may have lost its lease.
        return context.session.perform(_call(context, path, version or "none", Resolution.MERGED, None))
    if version is not None:
        found.conflict.require_version(version)
    plan = found.resolve(choice.resolution, choice.result(found))
    # The waiting children of the path are merged one by one. If this is interrupted, the next one is an open conflict
    # without hunks, and every choice merges it.
    while (waiting := _first_open(plan, path)) is not None:
        following = _OpenConflict(context, plan, waiting)
        if not following.merges_cleanly:
            break
        plan = following.resolve(Resolution.MERGED, following.merged.resolved())
    return plan


class _Choice:
    """The choice of a caller, checked as far as that is possible without the conflict."""

    def __init__(self, accept: Side | Sequence[Side] | None, body: bytes | None, mode: int | None) -> None:
        require_instance(body, (bytes, type(None)), "a body is bytes (text.encode())")
        require_instance(accept, (str, list, tuple, type(None)), _ADVICE)
        given = [accept] if isinstance(accept, str) else [*(accept or ())]
        if (accept is None) == (body is None) or any(side not in {*_RESOLUTIONS} for side in map(str, given)):
            raise InvalidArgument(_ADVICE)
        if mode is not None and body is None:
            raise InvalidArgument("a mode goes with a body: what is accepted has its own")
        self._is_for_all = isinstance(accept, str)
        self._sides: list[Side] = ["ours" if side == "ours" else "theirs" for side in given]
        self._body = body
        self._mode = mode

    @property
    def resolution(self) -> Resolution:
        if self._body is not None:
            return Resolution.BODY
        sides = {*self._sides}
        return _RESOLUTIONS[sides.pop()] if len(sides) == 1 else Resolution.HUNKS if sides else Resolution.MERGED

    def result(self, found: _OpenConflict) -> Version | None:
        """Return the version that the path gets; None deletes the file."""
        if self._body is not None:
            found.require_no_markers(self._body)
            return Version(self._body, found.merged_mode if self._mode is None else self._mode)
        return found.merged.resolved(self._sides * len(found.merged.hunks) if self._is_for_all else self._sides)


class _OpenConflict:
    """The open conflict of a path, with its bytes and its merge. Belongs to one call of one thread."""

    def __init__(self, context: ChangesetApi, plan: Plan, conflict: MergeConflict) -> None:
        self._context = context
        self._strategy = plan.subplans.merge if plan.subplans else MergeStrategy.GIT_THREE_WAY
        self.conflict = conflict
        self.path = conflict.path
        self._ours, self._base, self._theirs = (
            None if side is None else Version(bytes(context.body(side.digest)), side.mode)
            for side in (conflict.ours, conflict.base, conflict.theirs)
        )
        self._by_lines = merge(self._ours, self._base, self._theirs)
        self.merged = self._merge()

    @property
    def merges_cleanly(self) -> bool:
        """True if the merge needs no choice.

        A file that would appear where none is needs one: it may be impossible beside the files around it.
        """
        return self.merged.is_clean and (self._ours is not None or self.merged.resolved() is None)

    def _merge(self) -> Merged:
        """Return the merge of the sides by the plan's strategy, with the hunks that need a choice."""
        merged = self._by_lines
        if self._strategy is MergeStrategy.SEQUENTIAL_APPLY and merged.text is not None:
            return whole_conflict(self._ours, self._theirs, "the child did not find what those before it left")
        if merged.is_clean and self._ours is None and self._theirs is not None:
            return whole_conflict(None, self._theirs, "one side has no file, and other files may be in the way")
        return merged

    @property
    def merged_mode(self) -> int | None:
        """The mode that both sides agree on; None if they do not, or if it is not known."""
        return None if any(hunk.kind is HunkKind.MODE for hunk in self.merged.hunks) else self._by_lines.mode

    def sides(self) -> ConflictSides:
        return ConflictSides(
            conflict=self.conflict,
            base=self._base.body if self._base else None,
            ours=self._ours.body if self._ours else None,
            theirs=self._theirs.body if self._theirs else None,
            hunks=self.merged.hunks,
            marked=self._by_lines.marked(self._labels),
            is_clean=self._by_lines.is_clean,
            reason=self.merged.reason or "it can be merged by now: every choice does that",
        )

    def resolve(self, resolution: Resolution, result: Version | None) -> Plan:
        """Record the resolution and return the plan. The manager refuses it if the conflict has changed meanwhile.

        Raises `PlanError` for a file that cannot exist beside another one, before it is recorded: an impossible tree
        would be found only when the plan is applied, too late to choose otherwise.
        """
        if result is not None and result != self._ours and result.mode != DIRECTORY:
            self._require_room()
        content = None if self._is_side(resolution, result) else result
        call = _call(self._context, self.path, self.conflict.version, resolution, content)
        return self._context.session.perform(call)

    def _is_side(self, resolution: Resolution, result: Version | None) -> bool:
        """Return True if the manager takes the content of one side as it is, so that no body is sent."""
        if resolution is Resolution.ACCEPT_OURS:
            return result == self._ours
        return resolution in {Resolution.ACCEPT_THEIRS, Resolution.MERGED} and result == self._theirs

    def require_no_markers(self, body: bytes) -> None:
        """Raise `InvalidArgument` if a body still has a conflict marker of `marked`, and no side has such a line."""
        ours, theirs = (label.encode() for label in self._labels)
        known = {line for side in (self._ours, self._theirs) if side for line in side.body.splitlines()}
        for number, line in enumerate(map(bytes.rstrip, body.splitlines()), 1):
            if line in {b"<<<<<<< " + ours, b">>>>>>> " + theirs} - known:
                raise InvalidArgument(
                    f"line {number} of the body is a conflict marker: choose between the lines around it, and remove it"
                )

    @property
    def _labels(self) -> Labels:
        return "ours", f"theirs ({self.conflict.alias})"

    def _require_room(self) -> None:
        other = blocking_path(self.path, self._context.net_changes())
        if other is not None:
            raise PlanError(
                f"there cannot be a file at {self.path!r} as long as there is one at {other!r}: accept 'ours', or "
                f"record first that {other!r} is deleted",
                path=other,
            )


def _open_conflict(context: ChangesetApi, path: str) -> _OpenConflict | None:
    """Read the open conflict of a path, with the content that the plan has there now as `ours`; None if there is none.

    The conflict was recorded at the merge, and the plan may have recorded changes of the path since.
    """
    plan = PlanApi(context.session).get_plan(context.plan_id)
    conflict = _first_open(plan, path)
    if conflict is None:
        return None
    net = context.net_changes().get(path)
    return _OpenConflict(context, plan, replace(conflict, ours=net.after) if net else conflict)


def _call(
    context: ChangesetApi, path: str, version: str, resolution: Resolution, content: Version | None
) -> Call[Plan]:
    """Return the call that records a resolution; `content` is None if it is that of a side."""
    body = content.body if content else None
    is_large = body is not None and len(body) > limits.INLINE_BODY_BYTES_MAX
    command = ResolveConflict(
        plan_id=context.plan_id,
        lease=context.session.lease_token(context.plan_id, context.lease),
        path=path,
        version=version,
        changeset_id=context.session.new_id(),
        resolution=resolution,
        body=0 if is_large else body,
        mode=content.mode if content else None,
    )
    return Call(command, plan_of, {"body": body} if is_large and body is not None else None)


def _first_open(plan: Plan, path: str) -> MergeConflict | None:
    return next((each for each in plan.open_conflicts if each.path == path), None)


def _describe_side(side: Content | None) -> str:
    """Describe a side whose content is not shown."""
    if side is None:
        return "nothing"
    mode = "" if side.mode is None else f"mode {side.mode:o}, "
    return f"{mode}{'' if side.size is None else plural(side.size, 'byte') + ', '}sha256 {side.digest.hex()[:12]}"

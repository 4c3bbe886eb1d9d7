"""Defects that break the promise of trees."""

from __future__ import annotations

from tests.promises.model import Defect

ENTIRELY = "A change to a tree happens entirely or not at all, whatever happens to the process or the power."
OVERWRITTEN = "What another program has changed is never overwritten"
NAMES = "it is a conflict that names every path"
OUT = "No path leads out of its root."

FEATURE = "features/apply.feature"
CRASHES = "tests/unit/trees/test_crashes.py"
ROOT = "tests/unit/trees/test_root.py"
TREES = "tests/property/test_trees.py"
APPLIED = "tests/property/test_apply.py::test_captured_applied_and_rolled_back"
PROCESSES = "tests/crossprocess/test_apply.py"
PLANTED = "tests/property/test_planted_transactions.py"

DEFECTS = (
    Defect(
        15,
        ENTIRELY,
        "What a process that died has half changed is not undone.",
        "trees/recovery.py",
        "                    undo_open(staging, found)\n                except",
        "                    staging.remove(found)\n                except",
        (
            f"{CRASHES}::test_death_at_every_step",
            f"{PROCESSES}::test_death_at_every_step",
        ),
    ),
    Defect(
        15,
        ENTIRELY,
        "The directories of a tree are not flushed after a change.",
        "trees/forward.py",
        "        sync_all(self._root, self._log)\n",
        "",
        ("tests/unit/trees/test_transaction.py::test_what_is_on_disk_before_what",),
    ),
    Defect(
        15,
        ENTIRELY,
        "A file is put in place without its permissions.",
        "trees/syscalls.py",
        "        os.fchmod(descriptor, mode)\n",
        "        os.fchmod(descriptor, mode & 0o600)\n",
        (f"{FEATURE}: Applied and proven", f"{TREES}::test_there_and_back", APPLIED),
    ),
    Defect(
        15,
        OVERWRITTEN,
        "A file that another program has changed is replaced.",
        "trees/change_plan.py",
        "    if differing:\n        mismatches",
        "    if differing and not by_path:\n        mismatches",
        (f"{FEATURE}: Somebody was there first",),
    ),
    Defect(
        15,
        OVERWRITTEN,
        "A file that another program has changed since is replaced when the change is taken back.",
        "trees/undo.py",
        "        return is_ours or is_nothing\n",
        "        return True\n",
        ("tests/unit/trees/test_recovery.py::test_somebody_changed_files_since",),
    ),
    Defect(
        15,
        NAMES,
        "A conflict names the first path only.",
        "trees/change_plan.py",
        "str(found[path])) for path, entry in differing.items()]\n",
        "str(found[path])) for path, entry in [*differing.items()][:1]]\n",
        (f"{FEATURE}: Somebody was there first",),
    ),
    Defect(
        15,
        OUT,
        "A symbolic link on the way to a path is followed.",
        "trees/root.py",
        "_DOWN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "_DOWN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC",
        (f"{ROOT}::test_a_component_swapped_during_the_run",),
    ),
    Defect(
        15,
        OUT,
        "A component `..` leads upwards.",
        "trees/root.py",
        '_NO_NAMES: Final = frozenset({"", ".", ".."})',
        '_NO_NAMES: Final = frozenset({"", "."})',
        (f"{ROOT}::test_no_component_leads_upwards",),
    ),
    Defect(
        15,
        OUT,
        "A transaction that another program has planted is accepted without a valid seal.",
        "trees/sealed_name.py",
        "        return found if is_same_device or (is_same_file_system and self._root.file_system != 0) else None",
        "        return found if is_same_device or is_same_file_system or found.stage else None",
        (f"{PLANTED}::test_nothing_else_changes",),
    ),
)

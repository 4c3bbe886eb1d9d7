"""What a new user tries: a plan from its action to files that are changed and back, each step a process of its own."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.support import COMMAND, PATIENCE_SECONDS, interrupt, is_listening, started, wait_until

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


def test_from_a_shell(tmp_path: Path) -> None:
    """Recorded in place, applied, shown, and rolled back: the tree is what it was."""
    address, tree = tmp_path / "manager.sock", tmp_path / "tree"
    tree.mkdir()
    (tree / "price.txt").write_text("price 1.005\n")

    def stepwell(*arguments: str) -> str:
        command, verb, *rest = arguments
        done = subprocess.run(
            [*COMMAND, command, verb, "--address", str(address), *rest],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with started("serve", "--address", str(address), "--workers", "0") as server:
        wait_until(is_listening(address), server)
        stepwell("action", "create", "fix-price", "--validate", "rounded=grep -q 1.01 price.txt")
        plan_id = stepwell("plan", "new", "fix-price", "--project", "shop").strip()
        edit = "sed -i s/1.005/1.01/ price.txt && echo done > notes.txt"
        stepwell("plan", "record", plan_id, "--", "sh", "-c", edit)
        diff = stepwell("plan", "diff", plan_id)
        assert {"-price 1.005", "+price 1.01", "+done"} <= {*diff.splitlines()}
        assert "2 paths" in stepwell("plan", "apply", plan_id)
        assert "apply/applied" in stepwell("plan", "show", plan_id)
        stepwell("plan", "rollback", plan_id)
        assert (tree / "price.txt").read_text() == "price 1.005\n"
        assert not (tree / "notes.txt").exists()
        interrupt(server)

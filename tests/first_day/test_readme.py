"""Every snippet of README and docs runs as it stands, for a reader who has what the text around it speaks of."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.domain.events import Event
from stepwell.testing import LocalRuntime
from tests.support.cli.processes import interrupt, run, started
from tests.support.documents import Snippet, snippets

ROOT = Path(__file__).parents[2]
PYTHON = snippets("python")
CART = "def total(items):\n    return sum(round(x) for x in items)\n"


class Seen(Exception):
    """Raised by the reader when the first event is printed."""


def show(*values: object) -> None:
    """Print, and end a loop over events: it would wait for the next one for ever."""
    print(*values)
    if any(isinstance(each, Event) for each in values):
        raise Seen


def shop(directory: Path) -> None:
    """Make a shop with a cart, in a directory of that name."""
    directory.mkdir(parents=True)
    (directory / "cart.py").write_text(CART)


@contextmanager
def reader(snippet: Snippet) -> Iterator[dict[str, object]]:
    """The names that a snippet may use: a client of a shop, and a plan that is being executed."""
    functions: dict[str, object] = {"sw": sw}
    exec(snippet.functions, functions)  # noqa: S102 - the document's own code
    strategies = [functions["longest"]] if "longest" in functions else []
    with LocalRuntime(strategies=strategies) as runtime, runtime.client(projects=["shop"]) as client:
        cart = sw.Fragment(fragment_id="cart", source="cart.py", body=CART)
        client.tiers.store(cart)
        client.tiers.store(sw.Fragment(fragment_id="old", body="old"))
        client.plans.create_action(
            "fix-bug",
            description="Fix {bug}",
            definition_of_done="The test passes",
            strategy_actor="local/planner",
            execution_actor="local/coder",
            arguments=[sw.Argument(name="bug")],
        )
        plan = client.plans.use_action("fix-bug", projects=["shop"], arguments={"bug": "the rounding"})
        client.plans.start_strategize(plan.plan_id)
        plan = client.plans.proceed(plan.plan_id)
        yield {
            "sw": sw,
            "asyncio": asyncio,
            "subprocess": subprocess,
            "print": show,
            "client": client,
            "address": runtime.address,
            "revision": 0,
            "request": sw.ContextRequest(projects=["shop"], query="where is the total rounded?"),
            "fragment": cart,
            "fragments": [sw.Fragment(fragment_id=f"n{number}", body="note") for number in range(9)],
            "new": sw.Fragment(fragment_id="new", body="new"),
            "plan": plan,
            "context": client.execution(plan.plan_id),
            "run": fix,
        }


def fix(plan: sw.Plan, context: sw.WorkContext) -> None:
    """Do the work of one agent: all of them change the same line."""
    changeset_id = context.start_changeset()
    after = CART.replace("round(x)", f"round(x, {plan.arguments['bug']})").encode()
    context.record_change(sw.Change(path="cart.py", before=CART.encode(), after=after))
    context.close_changeset(changeset_id)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with everything that the snippets name."""
    for path in ("path/to/shop", "work/shop", "live/shop"):
        shop(tmp_path / path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("snippet", [each for each in PYTHON if each.is_program], ids=lambda each: each.name)
def test_programs(snippet: Snippet, directory: Path) -> None:
    """A reader pastes it into `python -`: it needs no guard, and says nothing on standard error."""
    done = subprocess.run(
        [sys.executable, "-"], input=snippet.code, capture_output=True, text=True, cwd=directory, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for shown in re.findall(r"print\(.*\)  # (.+)$", snippet.code, re.MULTILINE):
        assert shown in done.stdout, "the comment beside a print is what it prints"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    "snippet",
    [each for each in PYTHON if not each.is_program and not each.is_test],
    ids=lambda each: each.name,
)
def test_snippets(snippet: Snippet) -> None:
    """In a program that has a client and a plan already; a coroutine is run, and a loop over events is left."""
    with reader(snippet) as names:
        try:
            exec(compile(snippet.code, snippet.name, "exec"), names)  # noqa: S102 - the document's own code
            coroutine = names.get("main")
            if callable(coroutine):
                asyncio.run(coroutine(names["address"]))
        except* Seen:
            assert "watch" in snippet.code


@pytest.mark.parametrize("snippet", [each for each in PYTHON if each.is_test], ids=lambda each: each.name)
def test_tests(snippet: Snippet, directory: Path) -> None:
    """A test of the reader's own passes, with the fixtures of the plugin and no other configuration."""
    (directory / "test_snippet.py").write_text(f"import stepwell as sw\n\n\n{snippet.code}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert " passed" in done.stdout


SHELL = {each.name: each.code for each in snippets("sh")}
ASK = "README.md: Install and ask, sh 1"
ASK_OF_SHOP = "docs/how-to/ask-for-context.md: About a directory, from a shell, sh 1"
SERVED = "docs/how-to/ask-for-context.md: From a running manager, sh 1"
POOL = "docs/how-to/token-pools.md: In a shell, sh 1"
PLAN = "docs/how-to/plans-from-a-shell.md: top, sh 1"
NOT_RUN = {
    "README.md: Two commands, sh 1": "it runs all checks, these tests included",
    "CONTRIBUTING.md: Set up, sh 1": "it runs all checks, these tests included",
    "CONTRIBUTING.md: Set up, sh 2": "it needs the environment of a session",
    "CONTRIBUTING.md: Set up, sh 3": "it needs the environment of a session",
    "docs/index.md: Install, sh 1": "it installs the package, which the tests have",
    "docs/performance.md: How to repeat it, sh 1": "it measures for a long time",
    "docs/performance.md: How to repeat it, sh 2": "it writes the page, which a test compares",
    "docs/quality.md: Bug reports, sh 1": "it needs the data",
    "docs/quality.md: Meetings, sh 1": "it needs the data",
}
"""Blocks for a shell that are not run here, and why."""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the installed package, for a user with a home of their own."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def in_shell(script: str, directory: Path) -> str:
    """Return the output of a script that ends at its first error; there is none."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, cwd=directory, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_blocks_for_a_shell_are_known() -> None:
    """A new one is run by a test here, or has a reason why not."""
    assert {*SHELL} == {*NOT_RUN, ASK, ASK_OF_SHOP, SERVED, PLAN, POOL}


@pytest.mark.usefixtures("shell")
def test_first_question() -> None:
    """The first command that a reader tries, once the package is installed, in a part of this repository."""
    install, _, ask = SHELL[ASK].rpartition("&& .venv/bin/")
    assert "pip install" in install
    assert "budget.py" in in_shell(ask, ROOT / "src/stepwell/domain/tiers")


@pytest.mark.usefixtures("shell")
def test_questions_about_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a directory with a cart: an answer, the reason for it, and the difference from a second one."""
    shop(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    ask, why, diff = (shlex.split(line)[1:] for line in SHELL[ASK_OF_SHOP].strip().splitlines())
    assert [main(command) for command in (ask, why, ask, diff)] == [0, 0, 0, 0]
    assert "round(x)" in capsys.readouterr().out


@pytest.mark.usefixtures("shell")
def test_served_directory(tmp_path: Path) -> None:
    """Each line in a terminal of its own: `serve` and `ingest --watch` go on until Ctrl-C."""
    shop(tmp_path / "shop")
    (tmp_path / "state").mkdir(mode=0o700)
    serve, ingest, ask, evaluate = (shlex.split(line)[1:] for line in SHELL[SERVED].strip().splitlines())
    assert evaluate == ["eval", "questions.jsonl"], "it needs the data; tests/unit/cli/test_eval.py has some"
    serve[serve.index("state")] = str(tmp_path / "state")
    ingest[ingest.index(".")] = str(tmp_path / "shop")
    with started(*serve, "--workers", "1") as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("listening at ").strip()
        ask[ask.index("SOCKET")] = address
        with started(*ingest) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline()
            answer = run(*ask)
            interrupt(watcher)
        interrupt(server)
    assert answer.returncode == 0, answer.stderr
    assert "round(x)" in answer.stdout


@pytest.mark.usefixtures("shell")
def test_plan_from_a_shell(tmp_path: Path) -> None:
    """With `stepwell serve` running at its own address: the copy is changed, and is what it was in the end."""
    here, copy = tmp_path / "here", tmp_path / "another-copy"
    for directory in (here, copy):
        directory.mkdir()
        (directory / "price.txt").write_text("price 1.005\n")
    *before, rollback = SHELL[PLAN].strip().splitlines()
    look = "cat ../another-copy/price.txt"
    with started("serve", "--workers", "0") as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening at ")
        shown = in_shell("\n".join([*before, look, rollback, look]), here)
        interrupt(server)
    assert "+price 1.01" in shown
    assert [line for line in shown.splitlines() if line.startswith("price ")] == ["price 1.01", "price 1.005"]


@pytest.mark.usefixtures("shell")
def test_pool_from_a_shell(tmp_path: Path) -> None:
    """With `stepwell serve` running at its own address: the pool is there, and all of it is free."""
    with started("serve", "--workers", "0") as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening at ")
        shown = in_shell(SHELL[POOL], tmp_path)
        interrupt(server)
    assert "team 200,000 per minute 0 0 200,000 0" in " ".join(shown.split())

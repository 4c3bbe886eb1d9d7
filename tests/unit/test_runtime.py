"""A manager of one's own: it starts anywhere, and ends with whoever started it, however that happens."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from multiprocess import spawn

import stepwell as sw
from stepwell import limits
from stepwell import process as stepwell_process
from stepwell.manager import process as process_module
from stepwell.manager.process import Settings, serve
from stepwell.process import ChildProcess
from stepwell.protocol.messages import Request, Response
from stepwell.transport.address import listen, private_directory
from tests.support.peers import RawPeer, store
from tests.support.processes import fork, in_forked_child, is_alive, kill
from tests.support.wait import eventually, promptly

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

ORPHAN_SECONDS = 2.0
"""No manager outlives its program by more than this."""

SNIPPET = """
import stepwell as sw

with sw.Runtime.start(workers=0, budget=sw.TierBudget(hot_tokens=200_000)) as runtime:
    client = runtime.client()
    tiers = client.tiers
    tiers.store(sw.Fragment(fragment_id="a", project="p", source="a.py", body="...", tokens=3), tier=sw.Tier.HOT)
    fragment = tiers.get("a", project="p")
    tiers.demote("a", project="p"); tiers.promote("a", project="p"); tiers.evict_lru(); tiers.metrics()
    plans = client.plans
    plans.create_action(name="fix-bug", description="...", definition_of_done="...",
                        strategy_actor="local/planner", execution_actor="local/coder")
    plan = plans.use_action("local/fix-bug", projects=["p"], arguments={})
    plans.start_strategize(plan.plan_id); plans.complete_strategize(plan.plan_id)
    plans.execute_plan(plan.plan_id); plans.start_execute(plan.plan_id)
    context = client.execution(plan.plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="a.py", before=None, after=b"print()\\n"))
    context.close_changeset(changeset_id)
    client.close()
print("done", fragment.text)
"""


def run(*arguments: str, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; what it printed is in the result."""
    source = str(Path(sw.__file__).parents[1])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )


def check_done(finished: subprocess.CompletedProcess[str]) -> None:
    """It ran once, to its end, and nobody complained."""
    assert (finished.stdout, finished.stderr, finished.returncode) == ("done ...\n", "", 0)


# Where it starts.


def test_snippet_in_an_unguarded_script(tmp_path: Path) -> None:
    """The user's `__main__` is not run again: it prints once."""
    script = tmp_path / "script.py"
    script.write_text(SNIPPET)
    check_done(run(str(script)))


def test_snippet_from_standard_input() -> None:
    """`python -` has no file that anybody could import."""
    check_done(run("-", stdin=SNIPPET))


def test_snippet_from_the_command_line() -> None:
    """`python -c` neither."""
    check_done(run("-c", SNIPPET))


def test_snippet_in_a_notebook() -> None:
    """An interpreter inside a program runs it cell by cell."""
    cell = f"import code; code.InteractiveInterpreter().runsource({SNIPPET!r}, symbol='exec')"
    check_done(run("-c", cell))


def test_snippet_under_pytest(capsys: pytest.CaptureFixture[str]) -> None:
    """Here and now."""
    exec(SNIPPET, {"__name__": "__main__"})  # noqa: S102 - our own text
    assert capsys.readouterr().out == "done ...\n"


@pytest.mark.parametrize("arguments", [["-"], ["-P", "-"]], ids=["on the path", "not on the path"])
def test_directory_of_impostors(tmp_path: Path, arguments: list[str]) -> None:
    """A working directory with modules named like the standard library's: the manager imports none of them."""
    script = "import stepwell, sys, os; sys.path.append(os.getcwd())\n" + SNIPPET
    for name in ("queue", "logging", "socket", "select", "json", "structlog", "msgspec", "stepwell"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__); raise SystemExit(7)\n")
    if "-P" in arguments:
        check_done(run(*arguments, cwd=tmp_path, stdin=script))
    else:
        late = "import os; os.chdir(os.environ['IMPOSTORS'])\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IMPOSTORS", str(tmp_path))
            check_done(
                run(
                    *arguments,
                    stdin="import stepwell, sys; stepwell.Runtime\n" + late + "sys.path.append('.')\n" + SNIPPET,
                )
            )
    assert not (tmp_path / "imported").exists()


def test_two_at_once_are_two() -> None:
    """Each has its own state."""
    with sw.Runtime.start(workers=0) as first, sw.Runtime.start(workers=0) as second:
        assert first.address != second.address
        with first.client(projects=["p"]) as one, second.client(projects=["p"]) as two:
            one.tiers.store(sw.Fragment(fragment_id="a", body=""))
            with pytest.raises(sw.NotFound):
                two.tiers.get("a")


def test_address_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is made absolute; the socket goes with the manager, the directory stays."""
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    with sw.Runtime.start(workers=0, address="s") as runtime:
        assert runtime.address == str(tmp_path / "s")
        assert runtime.address in repr(runtime)
        sw.connect(runtime.address).close()
        with pytest.raises(sw.StartFailed, match="already serves"):
            sw.Runtime.start(workers=0, address="s")
        assert runtime.is_alive()
    assert [*tmp_path.iterdir()] == []


# How starting fails.


@pytest.mark.usefixtures("measured")
def test_start_failure_is_reported(tmp_path: Path) -> None:
    """What the manager met is raised here, as what it is."""
    tmp_path.chmod(0o755)
    with pytest.raises(sw.StartFailed, match="open to other users"):
        sw.Runtime.start(workers=0, address=str(tmp_path / "s"))
    with pytest.raises(sw.InvalidArgument, match="shorter path"):
        sw.Runtime.start(workers=0, address="/" + "x" * 200)


def test_bad_settings_leave_nothing_behind() -> None:
    """An unknown log level, or a budget of nothing, is said before anything is made."""
    with pytest.raises(sw.InvalidArgument, match="debug, info, warning, error"):
        sw.Runtime.start(workers=0, log_level="loud")
    with pytest.raises(sw.InvalidArgument, match="at least 1"):
        sw.Runtime.start(workers=0, budget=sw.TierBudget(hot_tokens=0))


def test_interpreter_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind either."""
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(tmp_path / "nonexistent"))
    with pytest.raises(FileNotFoundError):
        sw.Runtime.start(workers=0)


def test_manager_that_ends_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is named."""
    monkeypatch.setattr(stepwell_process, "_BOOT", "raise SystemExit(3)")
    with pytest.raises(sw.StartFailed, match="exit code 3"):
        sw.Runtime.start(workers=0)


def test_manager_that_never_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it is killed."""
    monkeypatch.setattr(stepwell_process, "_BOOT", "import signal; signal.pause()")
    monkeypatch.setattr(limits, "MANAGER_START_SECONDS_MAX", 0.2)
    monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
    with pytest.raises(sw.StartFailed, match="did not start within"):
        sw.Runtime.start(workers=0)


def test_manager_without_linux_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no pidfd there is no manager."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(sw.StartFailed, match="needs Linux"):
        serve(Settings(address="s", budget=sw.TierBudget(), encoding="estimate"), on_ready=lambda: None)


def test_manager_whose_starter_is_gone_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even its private directory stays."""
    # The manager would run in this process, whose collector, memory and limits are those of the tests that follow.
    for settled in ("_tune_garbage_collector", "_tune_allocator", "_raise_descriptor_limit"):
        monkeypatch.setattr(process_module, settled, lambda: None)
    directory = private_directory()
    settings = Settings(
        address=str(directory / "s"),
        budget=sw.TierBudget(),
        encoding="estimate",
        private_directory=True,
        parent_pid=2**22 + 1,
    )
    with pytest.raises(sw.StartFailed, match="gone already"):
        serve(settings, on_ready=lambda: None)
    assert not directory.exists()
    with pytest.raises(sw.StartFailed, match="gone already"):
        process_module._parent_pidfd(os.getpid())


# How it ends.


def test_close_twice_is_as_good_as_once() -> None:
    """The second time there is nothing to do."""
    runtime = sw.Runtime.start(workers=0)
    runtime.close()
    runtime.close()
    assert not runtime.is_alive()
    assert not Path(runtime.address).parent.exists()


def test_forked_child_has_no_say() -> None:
    """It can neither close nor ask; the parent's manager goes on. It can connect."""
    with sw.Runtime.start(workers=0) as runtime:

        def child() -> None:
            runtime.close()
            with pytest.raises(sw.NotOwner, match=r"stepwell.connect"):
                runtime.is_alive()
            with runtime.client() as client:
                client.status()

        in_forked_child(child, is_measured=True)
        assert runtime.is_alive()
        with pytest.raises(sw.NotOwner, match=r"send runtime.address"):
            pickle.dumps(runtime)


def test_closing_ends_a_manager_that_a_forked_child_still_knows() -> None:
    """A child that lives on holds a copy of the lifeline; the end is announced all the same."""
    with sw.Runtime.start(workers=0) as runtime:
        reader, writer = os.pipe()

        def wait_to_be_told() -> None:
            os.read(reader, 1)

        child = fork(wait_to_be_told)
        runtime.close()
        assert not is_alive(runtime.pid)
        os.write(writer, b"x")
        os.waitpid(child, 0)
        os.close(writer)
        os.close(reader)


def test_manager_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped manager cannot drain."""
    monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
    runtime = sw.Runtime.start(workers=0)
    os.kill(runtime.pid, signal.SIGSTOP)
    runtime.close()
    assert not is_alive(runtime.pid)
    assert not Path(runtime.address).parent.exists()


PROGRAM = """
import os, signal, stepwell
runtime = stepwell.Runtime.start(workers=0)
child = 0
if {forks}:
    child = os.fork()
    if child == 0:
        os.close(1)
        signal.alarm(60)
        while True:
            signal.pause()
print(runtime.pid, child, runtime.address, flush=True)
{ending}
"""


@contextmanager
def program(ending: str, *, forks: bool = False) -> Iterator[tuple[subprocess.Popen[str], int, int, Path]]:
    """A program with a runtime: its process, its manager's, its forked child's if any, and the socket's path."""
    source = PROGRAM.format(ending=ending, forks=forks)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        manager, child, address = running.stdout.readline().split()
        try:
            yield running, int(manager), int(child), Path(address)
        finally:
            running.kill()
            if int(child):
                kill(int(child))


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "a forked child lives on"])
def test_killed_program_takes_its_manager_along(*, forks: bool) -> None:
    """Kill -9 of the program: the manager is gone within two seconds, and so is its directory."""
    with program("signal.pause()", forks=forks) as (running, manager, child, socket_path):
        assert socket_path.exists()
        running.kill()
        running.wait()
        promptly(lambda: not is_alive(manager), ORPHAN_SECONDS)
        assert not socket_path.parent.exists()
        assert bool(child) == forks
        assert not forks or is_alive(child)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "os._exit(4)", "os.abort()"])
def test_program_that_ends_takes_its_manager_along(ending: str) -> None:
    """However a program ends that never closed its runtime, nothing of it stays."""
    with program(ending) as (running, manager, _, socket_path):
        running.wait(60)
        promptly(lambda: not is_alive(manager), ORPHAN_SECONDS)
        promptly(lambda: not socket_path.parent.exists(), ORPHAN_SECONDS)


def test_sigterm_drains() -> None:
    """What has arrived is answered, then the manager ends, and its socket is gone."""
    with sw.Runtime.start(workers=0) as runtime, RawPeer(runtime.address) as peer:
        peer.hello("a")
        os.kill(runtime.pid, signal.SIGSTOP)
        peer.send(*(Request(number, (store(str(number)),)) for number in range(200)))
        os.kill(runtime.pid, signal.SIGTERM)
        os.kill(runtime.pid, signal.SIGCONT)
        assert [peer.expect(Response).request_id for _ in range(200)] == [*range(200)]
        assert peer.receive() is None
        eventually(lambda: not runtime.is_alive())
        assert not Path(runtime.address).exists()


def test_sigint_is_for_the_program() -> None:
    """Ctrl-C reaches the whole group; the manager ends when its program does, not before."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        for _ in range(3):
            os.kill(runtime.pid, signal.SIGINT)
            client.status()
        assert runtime.is_alive()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_manager_in_the_foreground_ends_on_signals(ending: signal.Signals) -> None:
    """As `stepwell serve` runs it: without a lifeline, on Ctrl-C too, and its socket goes."""
    address = private_directory() / "s"
    script = f"""
        from stepwell.domain.tiers.model import TierBudget
        from stepwell.manager.process import Settings, serve
        settings = Settings(address={str(address)!r}, budget=TierBudget(), encoding="estimate", private_directory=True)
        serve(settings, on_ready=lambda: print("ready", flush=True))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as manager:
        try:
            assert manager.stdout is not None
            assert manager.stdout.readline() == b"ready\n"
            manager.send_signal(ending)
            assert manager.wait(60) == 0
        finally:
            manager.kill()
    assert not address.parent.exists()


def test_killed_manager_is_lost() -> None:
    """Nothing restarts it: its clients are told, and closing clears its directory away."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
        with pytest.raises(sw.RuntimeLost):
            client.tiers.metrics()
        with pytest.raises(sw.RuntimeLost):
            runtime.client()
    assert not Path(runtime.address).parent.exists()


# Where it logs.


def test_log_that_nobody_reads_is_no_reason_to_end() -> None:
    """Standard error is a pipe whose reader has gone: the manager serves on."""
    script = """
        import os, stepwell
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        with stepwell.Runtime.start(workers=0, log_level="debug") as runtime:
            os.close(reader)
            for _ in range(20):
                runtime.client().close()
            print(runtime.is_alive(), flush=True)
        os._exit(0)
    """
    assert run("-c", textwrap.dedent(script)).stdout == "True\n"


def test_program_without_standard_error() -> None:
    """A daemon has closed it: the manager starts all the same."""
    script = """
        import os, stepwell
        os.close(2)
        with stepwell.Runtime.start(workers=0, log_level="debug") as runtime, runtime.client() as client:
            print(client.status().pid == runtime.pid, flush=True)
    """
    assert run("-c", textwrap.dedent(script)).stdout == "True\n"


def test_log_is_readable_or_json() -> None:
    """Events with fields, one a line."""
    script = "import stepwell\nwith stepwell.Runtime.start(workers=0, log_level='debug') as r: r.client().close()"
    lines = run("-c", script).stderr.splitlines()
    assert any("manager.started" in line and "address=" in line for line in lines)
    settings = {"address": str(private_directory() / "s"), "budget": {}, "log_level": "info", "log_json": True}
    settings |= {"encoding": "estimate", "private_directory": True, "parent_pid": os.getpid()}

    def encode(lifeline_fd: int) -> str:
        return json.dumps(settings | {"lifeline_fd": lifeline_fd})

    reader, writer = os.pipe()
    with open(reader) as log:  # noqa: PTH123
        manager = ChildProcess("stepwell.manager.process", encode, stderr=writer)
        os.close(writer)
        try:
            assert manager.socket.recv(10) == b"{}\n"
            manager.disconnect()
            events = [json.loads(line)["event"] for line in log]
        finally:
            assert manager.end(time.monotonic() + limits.MANAGER_END_SECONDS_MAX) == 0
            manager.close()
    assert events == ["manager.started", "manager.draining", "manager.stopped"]


@pytest.mark.usefixtures("measured")
def test_start_removes_what_killed_managers_left() -> None:
    """The socket directory of a manager that was killed is gone after the next start, and that of a live one is not."""
    dead = private_directory()
    listen(str(dead / "manager.sock")).close()
    with sw.Runtime.start(workers=0) as first, sw.Runtime.start(workers=0):
        assert not dead.exists()
        first.client().close()

"""No command lets data act on a terminal. A pipe gets them as they are."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import stepwell as sw
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.telemetry import LogLevel
from tests.support.cli.processes import COMMAND, PATIENCE_SECONDS
from tests.support.cli.terminal import on_terminal

UNSAFE = ("\x1b]0;", "\x1b[6n", "\x1bc", "\x07", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff")
"""Sequences that set a title, make the terminal type, reset it, ring, or hide or turn text: none is of our own."""

HOSTILE = "pwn" + "pwn".join(UNSAFE) + "pwn"
IN_ONE_LINE = HOSTILE.replace("\u2028", "")
PROJECT = "p"


class World(NamedTuple):
    """A manager with hostile texts in it, files with hostile names, and the plans and paths that commands name."""

    address: str
    files: Path
    data_dir: Path
    evaluation: Path
    plan_id: str
    new_plan_id: str
    parent_id: str
    before: str
    after: str
    environment: dict[str, str]


@contextmanager
def worker(address: str) -> Iterator[None]:
    """Have a worker for the duration of the block. No test leaves one behind, even if it was replaced meanwhile."""
    pool = BackgroundPool(PoolSettings(address=address, workers=1, log_level=LogLevel.ERROR))
    try:
        yield
    finally:
        pool.close()


def worker_for(world: World, command: str) -> AbstractContextManager[None]:
    """Return a block that has a worker, if the command asks strategies of the manager or has it read files.

    Without one, `ingest` would wait for more than a minute before it reads the files itself.
    """
    needs_worker = "{address} --project p --strategies" in command or command.startswith("ingest {files}")
    return worker(world.address) if needs_worker else nullcontext()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("terminal")
    files = root / f"tree {IN_ONE_LINE}"
    files.mkdir()
    (files / f"{IN_ONE_LINE}.txt").write_text(f"words about wells {HOSTILE}\n")
    (files / f"{IN_ONE_LINE}.bin").write_bytes(b"\0")
    (files / f"{IN_ONE_LINE}.pem").write_text("key")
    evaluation = root / f"{IN_ONE_LINE}.jsonl"
    evaluation.write_text("{}\n")
    data_dir = root / f"data {IN_ONE_LINE}"
    with sw.Runtime.start(workers=0, log_level="error") as runtime, runtime.client() as client:
        client.ingest(files, project=PROJECT)
        with worker(runtime.address):
            before, after = (
                client.assemble(sw.ContextRequest(projects=[PROJECT], query=query), strategies=["keyword"]).receipt_id
                for query in ("nothing", "wells")
            )
        plan_id = _plan(client)
        new_plan_id = client.plans.use_action("local/a", projects=[PROJECT]).plan_id
        parent_id = _parent(client)
        with sw.Runtime.start(workers=0, data_dir=data_dir, log_level="error"):
            pass
        environment = {"XDG_CACHE_HOME": str(root / "cache")}
        yield World(
            runtime.address, files, data_dir, evaluation, plan_id, new_plan_id, parent_id, before, after, environment
        )


def _plan(client: sw.Client) -> str:
    """Return the id of a plan whose every text is hostile, and that has changed a file with a hostile name."""
    client.plans.create_action(
        "local/a", description=f"x {HOSTILE}", definition_of_done=HOSTILE, strategy_actor="a/b", execution_actor="a/b"
    )
    plan = client.plans.use_action("local/a", projects=[PROJECT])
    client.plans.start_strategize(plan.plan_id)
    client.plans.proceed(plan.plan_id)
    context = client.execution(plan.plan_id)
    changeset_id = context.start_changeset()
    path = IN_ONE_LINE.replace("\x1b]0;", "")
    context.record_change(sw.Change(path=f"{path}.txt", before=None, after=f"{HOSTILE}\n".encode()))
    context.close_changeset(changeset_id)
    client.plans.fail_execute(plan.plan_id, HOSTILE)
    return plan.plan_id


def _parent(client: sw.Client) -> str:
    """Return the id of a plan with a child whose error is hostile."""
    plan_id = client.plans.use_action("local/a", projects=[PROJECT]).plan_id
    client.plans.start_strategize(plan_id)
    client.plans.proceed(plan_id)
    client.plans.declare_subplans(plan_id, [sw.subplan("local/a", alias="child")])
    child = client.plans.start_ready(plan_id, straight=True).plan
    assert child is not None
    client.plans.fail_execute(child.plan_id, HOSTILE)
    return plan_id


COMMANDS: dict[str, str] = {
    "assemble": "assemble wells {files} --strategies keyword --budget 500",
    "assemble, explained": "assemble wells --connect {address} --project p --strategies keyword --explain",
    "assemble, unknown focus": "assemble wells --connect {address} --project p --strategies keyword --focus {hostile}",
    "assemble, as JSON": "assemble wells --connect {address} --project p --strategies keyword --json",
    "ask": "ask wells --address {address} --project p --strategies keyword",
    "ask, as JSON": "ask wells --address {address} --project p --strategies keyword --json",
    "ask, nowhere": "ask wells --address {files}/{hostile} --project p",
    "why": "why {source} --connect {address} --project p",
    "why, as JSON": "why {source} --connect {address} --project p --json",
    "why, unknown": "why {hostile} --connect {address} --project p",
    "diff": "diff {before} {after} --connect {address} --project p",
    "diff, as JSON": "diff {before} {after} --connect {address} --project p --json",
    "eval": "eval {evaluation}",
    "ingest": "ingest {files} --address {address} --project q",
    "ingest, as JSON": "ingest {files} --address {address} --project q --json",
    "ingest, missing": "ingest {files}/{hostile} --address {address}",
    "action create": "action create local/b --description {hostile} --address {address} --json",
    "action list": "action list --address {files}/{hostile}",
    "plan new": "plan new local/{hostile} --project p --address {address}",
    "plan list": "plan list --address {files}/{hostile}",
    "plan show": "plan show {plan_id} --address {address}",
    "plan show, as JSON": "plan show {plan_id} --address {address} --json",
    "plan subplans": "plan subplans {parent_id} --address {address}",
    "plan diff": "plan diff {plan_id} --address {address}",
    "plan diff, counted": "plan diff {plan_id} --stat --address {address}",
    "plan cancel": "plan cancel {plan_id} --address {files}/{hostile}",
    "plan apply": "plan apply {plan_id} --root {files} --address {address}",
    "plan record": "plan record {new_plan_id} --root {files} --address {address} -- {files}/{hostile}",
    "status": "status --address {files}/{hostile}",
    "doctor": "doctor --data-dir {data_dir}",
    "doctor, as JSON": "doctor --data-dir {data_dir} --json",
    "backup": "backup --data-dir {data_dir} {data_dir}/copy",
    "serve": "serve --address {files}/{hostile}/{hostile} --workers 0",
    "workers": "workers --connect {hostile} --workers 1 --log-level debug",
    "wrong command": "{hostile}",
    "wrong option": "status --{hostile}",
    "wrong argument": "status {hostile}",
    "wrong subcommand": "plan {hostile}",
    "wrong choice": "serve --durability {hostile}",
    "wrong number": "serve --workers {hostile}",
}
"""Commands that print texts of others: of files, of the manager, or of their own arguments."""

MEASURED = frozenset({"assemble", "ask", "plan list", "plan show", "workers"})
"""Commands whose coverage is measured here. Other tests measure the same code of all others, at half the cost."""

IMPATIENT = """
import sys
from stepwell import limits
from stepwell.cli.main import main
limits.RECONNECT_SECONDS_MAX = 0.1
sys.exit(main(sys.argv[1:]))
"""
"""The command line, except that it hardly waits for a manager that is not there."""


def program(command: str) -> tuple[str, ...]:
    """Return the program that runs a command: `workers` would wait half a minute for its manager."""
    return (*COMMAND[:1], "-c", IMPATIENT) if command.startswith("workers ") else COMMAND


def arguments(world: World, command: str) -> list[str]:
    """Return the words of a command; what stands for a text of the world is one word, or a part of one."""
    values = {**world._asdict(), "hostile": HOSTILE, "source": f"{IN_ONE_LINE}.txt"}
    return [word.format(**values) for word in command.split(" ")]


def json_of(written: bytes) -> dict[str, object]:
    """Return the JSON object that a command has printed; sequences of a progress bar may stand before it."""
    (line,) = (line for line in written.split(b"\r\n") if b'{"' in line)
    found: dict[str, object] = json.loads(line[line.index(b'{"') :])
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_data_do_not_act_on_a_terminal(world: World, name: str, request: pytest.FixtureRequest) -> None:
    """Everything that a command prints on a terminal is escaped, on stdout and on stderr."""
    if name not in MEASURED:
        request.getfixturevalue("unmeasured")
    command = COMMANDS[name]
    words = arguments(world, command)
    with worker_for(world, command), on_terminal(words, world.environment, program(command)) as terminal:
        written = terminal.read_to_end()
    assert [each for each in UNSAFE if each.encode() in written] == []
    assert b"pwn" in written, "the command printed no text of others: it would prove nothing"
    assert b"Traceback" not in written
    if "--json" in command:
        assert json_of(written)


@pytest.mark.usefixtures("unmeasured")
def test_serve_on_a_terminal(world: World, tmp_path: Path) -> None:
    """A server announces its paths and logs, escaped; colours of the log are still there."""
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    data_dir = tmp_path / f"d {IN_ONE_LINE}"
    words = ["serve", "--address", f"{directory}/\u202epwn\x1bc", "--data-dir", str(data_dir), "--workers", "0"]
    with on_terminal([*words, "--log-level", "debug"], world.environment) as terminal:
        terminal.read_until(b"keeping everything in")
        terminal.process.send_signal(signal.SIGINT)
        written = terminal.read_to_end()
    assert [each for each in UNSAFE if each.encode() in written] == []
    assert b"pwn" in written
    assert b"\x1b[" in written, "the log is coloured"


@pytest.mark.usefixtures("unmeasured")
def test_json_on_a_terminal_has_the_same_value(world: World) -> None:
    """The escapes of JSON, not those of Python: a program that reads the terminal gets the text itself."""
    command = arguments(world, COMMANDS["assemble, as JSON"])
    with worker(world.address), on_terminal(command, world.environment) as terminal:
        written = terminal.read_to_end()
    assert HOSTILE in str(json_of(written)["text"])


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", ["assemble", "why", "diff", "ask"])
def test_a_pipe_gets_the_text_as_it_is(world: World, name: str) -> None:
    """Byte for byte: another program reads it."""
    with worker_for(world, COMMANDS[name]):
        done = subprocess.run(
            [*COMMAND, *arguments(world, COMMANDS[name])],
            capture_output=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            env={**os.environ, **world.environment},
        )
    whole = HOSTILE if name == "assemble" else "\u202e"
    assert whole.encode() in done.stdout, done


def test_a_name_that_is_not_utf8(world: World) -> None:
    """A surrogate stands for each byte of an argument that is not UTF-8: it is escaped, on a terminal and elsewhere."""
    with on_terminal([b"ingest", b"/nowhere\xff", b"--address", world.address.encode()], world.environment) as terminal:
        assert b"\\udcff" in terminal.read_to_end()


def test_a_defect_on_a_terminal(tmp_path: Path) -> None:
    """The traceback of a defect is escaped, too."""
    defective = "import sys; from stepwell.cli import main, command_line\n"
    defective += f"def run(_): raise RuntimeError({HOSTILE!r})\ncommand_line.run = run\nsys.exit(main.main([]))\n"
    (tmp_path / "program.py").write_text(defective)
    with on_terminal([str(tmp_path / "program.py")], command=COMMAND[:1]) as terminal:
        written = terminal.read_to_end()
    assert b"RuntimeError: pwn" in written
    assert [each for each in UNSAFE if each.encode() in written] == []

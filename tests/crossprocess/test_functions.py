"""Functions of whole programs: they work wherever they are written, and no worker outlives its program."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import is_alive, kill
from tests.support.wait import eventually, promptly

ORPHAN_SECONDS = 2.0
"""No worker outlives its program by more than this, and no Ctrl-C takes longer."""

SNIPPET = """
import dataclasses, enum, os
from stepwell.pool.functions.executor import FunctionExecutor

class Colour(enum.Enum):
    RED = "red"

@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED
    def moved(self):
        return Point(self.x + STEP)

class Oops(Exception):
    pass

STEP = 2

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def fail(point):
    raise Oops(point)

with FunctionExecutor(2) as executor:
    assert executor.submit(os.getpid).result() != os.getpid()
    assert [*executor.map(even, range(4), chunksize=2)] == [True, False, True, False]
    point = executor.submit(Point.moved, Point(1)).result()
    assert point == Point(3) and point.colour is Colour.RED
    STEP = 3
    assert executor.submit(lambda: Point(1)).result() == Point(1)
    try:
        executor.submit(fail, point).result()
    except Oops as error:
        assert error.args == (point,)
print("done")
"""


def run(*arguments: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], input=stdin, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def check_done(finished: subprocess.CompletedProcess[str]) -> None:
    """It ran once, to its end, and nobody complained."""
    assert (finished.stdout, finished.stderr, finished.returncode) == ("done\n", "", 0)


# Wherever they are written.


def test_functions_of_an_unguarded_script(tmp_path: Path) -> None:
    """The user's `__main__` is not run again: it prints once."""
    script = tmp_path / "script.py"
    script.write_text(SNIPPET)
    check_done(run(str(script)))


def test_functions_from_standard_input(tmp_path: Path) -> None:
    """`python -` has no file that anybody could import."""
    check_done(run("-", stdin=SNIPPET, cwd=tmp_path))


def test_functions_of_a_notebook() -> None:
    """An interpreter inside a program runs it cell by cell."""
    check_done(run("-c", f"import code; code.InteractiveInterpreter().runsource({SNIPPET!r}, symbol='exec')"))


def test_functions_that_import_what_lies_beside_them(tmp_path: Path) -> None:
    """Beside the script, and in the directory of `python -`; the standard library is not shadowed for our own sake."""
    (tmp_path / "beside.py").write_text("def f():\n    return 3\n")
    (tmp_path / "structlog.py").write_text("raise SystemExit(7)\n")
    program = (
        "import sys\nhere = sys.path.pop(0)\nimport stepwell\nsys.path.insert(0, here)\n"
        "from stepwell.pool.functions.executor import FunctionExecutor\nimport beside\n"
        "def local():\n    import beside\n    return beside.f()\n"
        "with FunctionExecutor(1) as executor:\n"
        "    assert executor.submit(beside.f).result() == executor.submit(local).result() == 3\n"
        "print('done')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    check_done(run(str(script)))
    check_done(run("-", stdin=program, cwd=tmp_path))


def test_workers_have_workers() -> None:
    """A function may use an executor of its own; its classes come home through both."""
    program = (
        "from stepwell.pool.functions.executor import FunctionExecutor\n"
        "class Point: pass\n"
        "def inner(point):\n    assert type(point) is Point\n    return point\n"
        "def outer(point):\n"
        "    with FunctionExecutor(1) as executor:\n"
        "        found = executor.submit(inner, point).result()\n"
        "    assert type(found) is Point\n    return found\n"
        "with FunctionExecutor(1) as executor:\n"
        "    assert type(executor.submit(outer, Point()).result()) is Point\n"
        "print('done')\n"
    )
    check_done(run("-c", program))


# However the program ends.


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import stepwell
from stepwell.pool.functions.executor import FunctionExecutor

def tell(file, pid):
    Path(file + "~").write_text(str(pid))
    os.rename(file + "~", file)  # whoever sees it can read it

def compute(file):
    tell(file, os.getpid())
    return sum(range(10**12))  # one long call, in C

def quick():
    return os.getpid()
"""

PLAIN = """
executor = FunctionExecutor(1)
executor.submit(compute, sys.argv[1]).result()
"""

BLOCK = """
with FunctionExecutor(1) as executor:
    executor.submit(compute, sys.argv[1]).result()
"""

BLOCK_END = """
with FunctionExecutor(1) as executor:
    executor.submit(compute, sys.argv[1])
"""

PROGRAM_END = """
FunctionExecutor(1).submit(compute, sys.argv[1])
"""

RUNTIME = """
with stepwell.Runtime.start(workers=0) as runtime:
    runtime.executor(1).submit(compute, sys.argv[1]).result()
"""


@contextmanager
def running(tmp_path: Path, rest: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program, and its worker that is in the middle of a long call."""
    told = tmp_path / "worker"
    command = [sys.executable, "-c", PROGRAM + rest, str(told)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            eventually(told.exists, 60)
            yield program, int(told.read_text())
        finally:
            program.kill()


def test_killed_program_leaves_no_worker(tmp_path: Path) -> None:
    """Not even one that is inside a long call in C, and looks at nothing."""
    with running(tmp_path, BLOCK) as (program, worker):
        kill(program.pid)
        program.wait(60)
        promptly(lambda: not is_alive(worker), ORPHAN_SECONDS)


@pytest.mark.parametrize("ending", ["os._exit(4)", "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"])
def test_program_that_ends_abruptly_leaves_no_worker(tmp_path: Path, ending: str) -> None:
    """Whatever it was that ended it."""
    rest = (
        "future = FunctionExecutor(1).submit(compute, sys.argv[1])\n"
        "while not os.path.exists(sys.argv[1]): pass\n"
        f"{ending}"
    )
    with running(tmp_path, rest) as (program, worker):
        program.wait(60)
        promptly(lambda: not is_alive(worker), ORPHAN_SECONDS)


@pytest.mark.parametrize("rest", [PLAIN, BLOCK, BLOCK_END, PROGRAM_END, RUNTIME])
def test_ctrl_c_ends_the_program(tmp_path: Path, rest: str) -> None:
    """At once, with one traceback at most, and nothing stays; wherever it waits at that moment."""
    with running(tmp_path, rest) as (program, worker):
        os.killpg(program.pid, signal.SIGINT)
        promptly(lambda: program.poll() is not None, ORPHAN_SECONDS)
        _, told = program.communicate()
        promptly(lambda: not is_alive(worker), ORPHAN_SECONDS)
    assert told.count("Traceback") <= 1
    assert (program.returncode, "KeyboardInterrupt" in told) == ((0, False) if rest is PROGRAM_END else (-2, True))


def test_ctrl_c_is_for_the_program_alone(tmp_path: Path) -> None:
    """Whoever catches it finds the worker at work."""
    rest = """
executor = FunctionExecutor(1)
pid = executor.submit(quick).result()
try:
    tell(sys.argv[1], pid)
    while True:  # `signal.pause` would sleep through a signal that comes just before it
        time.sleep(0.05)
except KeyboardInterrupt:
    sys.exit(0 if executor.submit(quick).result() == pid else 9)
"""
    with running(tmp_path, rest) as (program, worker):
        os.killpg(program.pid, signal.SIGINT)
        _, told = program.communicate(timeout=60)
        assert (program.returncode, told) == (0, "")
        assert not is_alive(worker)


def test_program_finishes_what_was_submitted() -> None:
    """As with any executor, and however it was dropped; then it ends by itself."""
    program = (
        "from stepwell.pool.functions.executor import FunctionExecutor\n"
        "executor = FunctionExecutor(1)\n"
        "for word in 'one', 'two':\n    executor.submit(print, word, flush=True)\n"
        "FunctionExecutor(1).submit(str)\n"
    )
    done = run("-c", program)
    assert (done.stdout, done.stderr, done.returncode) == ("one\ntwo\n", "", 0)


def test_program_with_an_error_ends() -> None:
    """With its own traceback and exit code."""
    program = (
        "from stepwell.pool.functions.executor import FunctionExecutor\n"
        "with FunctionExecutor(1) as executor:\n    executor.submit(str).result()\n    1 / 0\n"
    )
    done = run("-c", program)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1


def test_forked_child_of_a_program_ends_alone() -> None:
    """Its end is not that of its parent's executor."""
    program = (
        "import os, sys\nfrom stepwell.pool.functions.executor import FunctionExecutor\n"
        "executor = FunctionExecutor(1)\npid = executor.submit(os.getpid).result()\n"
        "if os.fork() == 0:\n    sys.exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 3\n"
        "assert executor.submit(os.getpid).result() == pid\nprint('done')\n"
    )
    check_done(run("-W", "ignore::DeprecationWarning", "-c", program))


def test_child_that_a_worker_left_behind_holds_up_nobody(tmp_path: Path) -> None:
    """It has the worker's socket: the death is seen all the same, and the program ends."""
    rest = """
def leave_child(file):
    pid = os.fork()
    if pid == 0:
        os.closerange(0, 3)
        signal.pause()
    tell(file, pid)
    os._exit(3)

with FunctionExecutor(1) as executor:
    error = executor.submit(leave_child, sys.argv[1]).exception()
    assert isinstance(error, stepwell.WorkerDied), error
    assert executor.submit(abs, -3).result() == 3
"""
    with running(tmp_path, rest) as (program, child):
        _, told = program.communicate(timeout=60)
        assert (program.returncode, told) == (0, "")
        assert is_alive(child)
        kill(child)


def test_idle_executor_uses_no_processor(tmp_path: Path) -> None:
    """Neither the program's thread nor its worker looks for work that is not there."""
    rest = """
executor = FunctionExecutor(1)
worker = executor.submit(os.getpid).result()
tell(sys.argv[1], worker)
signal.pause()
"""
    with running(tmp_path, rest) as (program, worker):

        def are_idle() -> bool:
            """A second later they have used no time; on a busy machine they may still be on their way to their rest."""
            before = [_ticks(program.pid), _ticks(worker)]
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(1)
            after = [_ticks(program.pid), _ticks(worker)]
            return all(late - early <= 1 for late, early in zip(after, before, strict=True))

        eventually(are_idle)
        kill(program.pid)
        promptly(lambda: not is_alive(worker), ORPHAN_SECONDS)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])

"""`nox` runs everything that a change has to pass; `nox --list` names the parts."""

import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "typecheck", "unit_tests", "integration_tests", "simulator"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
COVERAGE_DATA = Path(".coverage-data")
WIDER = {"tests": ("tests", "typecheck")}  # groups that have all of a group
installed: dict[str, str] = {}  # by group, where it was installed in this run

# One more than there are cores, because tests also wait: for processes, and for the disk. More would cost more, because
# each process collects all tests first.
PARALLEL = f"--numprocesses={min((os.cpu_count() or 1) + 1, 8)}"

# Tests that use no shared memory to speak of, and so may run beside tests that measure that of the whole machine.
PURE = (
    *("apply_queue", "changesets", "circuit_breaker", "fast_path", "incremental_index", "logs", "packing", "plans"),
    *("prove", "receipts", "split", "strategies", "tasks", "tier_options", "tiers", "tokens", "trees"),
)
WITHOUT_MANAGER = ("tests/architecture", *(f"tests/property/test_{name}.py" for name in PURE))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and the import rule."""
    prepare(session, "lint")
    run(session, ["ruff", "check", *session.posargs])
    run(session, ["ruff", "format", "--check"])
    run(session, ["lint-imports", "--no-cache"], env={"PYTHONPATH": "src"})  # which reads the package as text


@nox.session
def typecheck(session: nox.Session) -> None:
    """Mypy and pyright, which find different things."""
    prepare(session, "typecheck")
    paths = session.posargs or existing(PYPROJECT["tool"]["mypy"]["files"])
    # On a new checkout, each of the workers of pytest would compile all modules and rewrite all tests for itself.
    compiling = [] if session.posargs else [["pytest", "--collect-only", "--quiet", "tests/unit"]]
    side_by_side(session, ["mypy", *paths], ["pyright", *session.posargs], *compiling)


@nox.session
def unit_tests(session: nox.Session) -> None:
    """Unit tests and features; or what pytest is told after `--`."""
    prepare(session, "tests")
    if session.posargs:
        run(session, ["pytest", *session.posargs])
        return
    side_by_side(session, all_unit_tests(), ["behave", "features"])


@nox.session
def integration_tests(session: nox.Session) -> None:
    """Real processes, faults, properties, examples and the architecture; or what pytest is told after `--`."""
    prepare(session, "tests")
    if session.posargs:
        run(session, ["pytest", *session.posargs])
        return
    # The pools that the benchmark is compared with have semaphores with names, which everybody's leak check would see
    # and wait for; and how much shared memory the machine has, which the tests of memory look at, is everybody's.
    alone = [f"tests/crossprocess/test_{name}.py" for name in ("benchmarks", "memory")]
    # In one run, because each run imports and collects everything in each of its processes. Of the first day of use the
    # snippets of the README; the session `first_day` runs all of it.
    together = ("crossprocess", "faults", "doubles", "examples", "first_day/test_readme.py", "property")
    apart = [f"--ignore={path}" for path in (*alone, *WITHOUT_MANAGER)]
    run(session, ["pytest", PARALLEL, *(f"tests/{name}" for name in together), *apart])
    side_by_side(session, ["pytest", *alone], ["pytest", *WITHOUT_MANAGER])


@nox.session
def coverage_report(session: nox.Session) -> None:
    """Branch coverage by the unit tests, and by the managers that they start: measuring takes as long as running."""
    prepare(session, "tests")
    shutil.rmtree(COVERAGE_DATA, ignore_errors=True)
    (COVERAGE_DATA / "unit_tests").mkdir(parents=True)
    data = f"--data-file={COVERAGE_DATA / 'unit_tests' / 'coverage'}"
    run(session, ["coverage", "run", data, "-m", *all_unit_tests()])
    run(session, ["coverage", "combine", "--keep", "--quiet", str(COVERAGE_DATA / "unit_tests")])
    run(session, ["coverage", "report", *session.posargs])


@nox.session(python=False)
@nox.parametrize("version", ["3.12", "3.13", "3.14"])
def first_day(session: nox.Session, version: str) -> None:
    """README, examples and careless use, with the package installed for another interpreter, where there is one."""
    interpreter = shutil.which(f"python{version}")
    if interpreter is None or subprocess.run([interpreter, "-c", ""], check=False).returncode:
        session.skip(f"there is no python{version} on PATH that starts")
    environment = Path(".nox") / f"first_day-{version}"
    session.run(interpreter, "-m", "venv", "--clear", str(environment))
    python = str(environment / "bin" / "python")
    group = nox.project.dependency_groups(PYPROJECT, "first-day")
    session.run(python, "-m", "pip", "install", "--quiet", ".", *group)
    session.run(python, "-m", "pytest", *(session.posargs or ["tests/first_day"]))


@nox.session
def soak(session: nox.Session) -> None:
    """What has no natural end, for an hour: examples, commands, kills of managers and workers; or what follows `--`."""
    prepare(session, "tests")
    soaked = ("applying", "kills", "memory", "read_index", "storm", "subplans", "workers")
    paths = ["tests/property", *(f"tests/crossprocess/test_{name}.py" for name in soaked)]
    long = {"STEPWELL_HYPOTHESIS_PROFILE": "long"}
    run(session, ["pytest", "-o", "faulthandler_timeout=0", *(session.posargs or paths)], env=long)


@nox.session
def simulator(session: nox.Session) -> None:
    """The real manager and clients on a simulated machine: 200 seeds; or what follows `--` (`--seeds 100000`)."""
    prepare(session, "tests")
    run(session, ["python", "-m", "tests.simulator", *(session.posargs or ["--seeds", "200"])])


@nox.session
def promises(session: nox.Session) -> None:
    """Break the promises one at a time in a copy, and expect the listed tests to fail; or what follows `--`."""
    prepare(session, "tests")
    run(session, ["python", "-m", "tests.promises", *session.posargs])


@nox.session
def histories(session: nox.Session) -> None:
    """10,000 short histories of real runs, all legal, and 1,000 mutated ones, all rejected; or what follows `--`."""
    prepare(session, "tests")
    run(session, ["python", "-m", "tests.support.prove.histories", *session.posargs])


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, strictly: a link, a name or a page that is not there fails the build."""
    prepare(session, "docs")
    run(session, ["mkdocs", "build", "--strict", "--quiet", *session.posargs], env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def release(session: nox.Session) -> None:
    """Build sdist and wheel, check them, and ask the README's first question with the wheel in an empty environment."""
    prepare(session, "release")
    shutil.rmtree("dist", ignore_errors=True)
    run(session, ["python", "-m", "build", "--outdir", "dist"])
    built = [str(path) for path in sorted(Path("dist").iterdir())]
    run(session, ["twine", "check", "--strict", *built])
    (wheel,) = (str(Path(path).resolve()) for path in built if path.endswith(".whl"))
    (line,) = (line for line in Path("README.md").read_text().splitlines() if ".venv/bin/stepwell assemble" in line)
    place = Path(session.create_tmp())  # the command makes its environment there, and asks about this repository
    shutil.rmtree(place / ".venv", ignore_errors=True)
    command = line.replace("--quiet .", f"--quiet {shlex.quote(wheel)}")
    command = command.replace(" . ", f" {shlex.quote(str(Path.cwd()))} ")
    with session.chdir(place):
        session.run("bash", "-euo", "pipefail", "-c", command, external=True)


@nox.session
def benchmark(session: nox.Session) -> None:
    """Time the peers side by side, and hold us to our goals; the figures of README and docs come from here."""
    prepare(session, "benchmark")
    for contender in nox.project.dependency_groups(PYPROJECT, "contenders"):
        session.install(contender, success_codes=[0, 1, 2])  # the benchmark says who is absent
    run(session, ["python", "-m", "benchmarks", *session.posargs])


def prepare(session: nox.Session, group: str) -> None:
    """Have what a group names: in an environment of this run that has it all, or else in the session's own."""
    # The tests start many interpreters. Where the machine forbids bytecode files, each would compile the whole package.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    for wider in WIDER.get(group, ()):
        if wider in installed:
            session.env["PATH"] = f"{installed[wider]}{os.pathsep}{os.environ['PATH']}"
            return
    package = [] if group in {"docs", "lint", "release"} else ["--editable", "."]
    # Most modules are never imported: each is compiled when it is.
    session.install("--no-compile", *package, *nox.project.dependency_groups(PYPROJECT, group))
    installed[group] = session.bin


def run(session: nox.Session, command: list[str], *, silent: bool = False, env: dict[str, str] | None = None) -> None:
    """Run what `prepare` has made sure of."""
    paths = session.env.get("PATH") or session.bin
    program = shutil.which(command[0], path=paths)
    session.run(program or command[0], *command[1:], silent=silent, env=env, external=True)


def all_unit_tests() -> list[str]:
    """Return the command that runs them."""
    # A file stays together, so that what its tests share is started once; and the slow come first, so that nobody
    # waits for one of them at the end.
    slow = [f"tests/unit/{name}" for name in ("pool", "test_runtime.py", "cli", "client")]
    return ["pytest", PARALLEL, "--dist=loadfile", "--no-loadscope-reorder", *slow, "tests/unit"]


def side_by_side(session: nox.Session, *commands: list[str]) -> None:
    """Each leaves a core to the other. What the later ones print is only seen if they fail."""
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(run, session, command, silent=number > 0) for number, command in enumerate(commands)]
    for each in runs:
        each.result()


def existing(paths: list[str]) -> list[str]:
    """The paths at which there is something to check."""
    return [path for path in paths if Path(path).is_file() or any(Path(path).rglob("*.*"))]

"""`nox` runs everything that a change has to pass; `nox --list` names the parts."""

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "typecheck", "unit_tests", "integration_tests", "coverage_report"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
COVERAGE_DATA = Path(".coverage-data")
# Tests mostly wait: for processes to start, and for the disk.
PARALLEL = f"--numprocesses={min(2 * (os.cpu_count() or 1), 8)}"
SUITES = {
    "unit_tests": ["tests/unit", "tests/architecture", "features"],
    "integration_tests": ["tests/crossprocess", "tests/faults"],
}


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and the import rule."""
    install(session, "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Mypy and pyright, which find different things."""
    install(session, "typecheck")
    paths = session.posargs or existing(PYPROJECT["tool"]["mypy"]["files"])
    session.run("mypy", *paths)
    session.run("pyright", *session.posargs)


@nox.session
def unit_tests(session: nox.Session) -> None:
    """Unit, property and architecture tests, and the features; or what pytest is told after `--`."""
    test(session)
    if not session.posargs:
        session.run("pytest", PARALLEL, "tests/property")  # by the thousand: measuring takes longer than running


@nox.session
def integration_tests(session: nox.Session) -> None:
    """Real processes, and faults done to them; or what pytest is told after `--`."""
    test(session)


@nox.session
def coverage_report(session: nox.Session) -> None:
    """Branch coverage of both suites, managers and workers included; measures what is not yet measured."""
    install(session, "tests")
    for suite in SUITES:
        if not is_measured(suite):
            measure(session, suite)
    session.run("coverage", "combine", "--keep", "--quiet", *(str(COVERAGE_DATA / suite) for suite in SUITES))
    session.run("coverage", "report", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Many more examples, and 200 kills of the manager under load; or what pytest is told after `--`."""
    install(session, "tests")
    paths = ["tests/property", "tests/crossprocess/test_kills.py", "tests/crossprocess/test_memory.py"]
    long = {"STEPWELL_HYPOTHESIS_PROFILE": "long"}
    session.run("pytest", "-o", "faulthandler_timeout=0", *(session.posargs or paths), env=long)


@nox.session
def benchmark(session: nox.Session) -> None:
    """Time the peers side by side; the README's figures come from here."""
    install(session, "benchmark")
    session.run("python", "-m", "benchmarks", *session.posargs)


def install(session: nox.Session, group: str) -> None:
    session.install("--editable", ".", *nox.project.dependency_groups(PYPROJECT, group))


def test(session: nox.Session) -> None:
    """A selection is run as it is: its coverage would pass for that of the whole suite."""
    install(session, "tests")
    if session.posargs:
        session.run("pytest", *session.posargs)
    else:
        measure(session, session.name)


def measure(session: nox.Session, suite: str) -> None:
    data = COVERAGE_DATA / suite
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    run = ("coverage", "run", f"--data-file={data / 'coverage'}", "-m")
    paths = existing(SUITES[suite])
    if tests := [path for path in paths if path.startswith("tests")]:
        session.run(*run, "pytest", PARALLEL, *tests)
    if features := [path for path in paths if path not in tests]:
        session.run(*run, "behave", *features)


def is_measured(suite: str) -> bool:
    """Whether there are data, and none older than the code that they speak of."""
    measured_at = [path.stat().st_mtime for path in COVERAGE_DATA.glob(f"{suite}/*")]
    changed_at = [path.stat().st_mtime for path in Path("src").rglob("*.py")]
    return bool(measured_at) and min(measured_at) > max(changed_at)


def existing(paths: list[str]) -> list[str]:
    """The paths at which there is something to check."""
    return [path for path in paths if Path(path).is_file() or any(Path(path).rglob("*.*"))]

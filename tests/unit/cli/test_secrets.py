"""Secrets and the command line: `ingest` and `assemble` say what they leave out and redact, and no cache has it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.directory_index.cache import cache_directory
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.testing import LocalRuntime
from tests.support.ingest import write
from tests.support.secrets import GITHUB, MARK, contents, repository

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

LEFT_OUT = (
    "stepwell: left out 11 secret files: .aws/credentials (credentials of AWS), .env (environment variables), "
    ".env.production (environment variables), and 8 more; --include-secrets includes them\n"
)
REDACTED = (
    "stepwell: redacted 1 place in this answer: settings.py: GitHub token (line 2); --include-secrets shows them\n"
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = repository(tmp_path / "root")
    write(root, {"settings.py": f"# the password of the robot\nTOKEN = '{GITHUB}'\n"})
    return root


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


def sources(runtime: LocalRuntime) -> set[str]:
    with runtime.client(projects=["root"]) as client:
        return {row.source for row in client.tiers.scoped()}


def test_ingest(runtime: LocalRuntime, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The note is on stderr, once, also with `--json`; the option includes all of them."""
    assert main(["ingest", str(root), "--address", runtime.address]) == 0
    told = capsys.readouterr()
    assert told.err == LEFT_OUT
    assert ", 1 secret redacted (" in told.out
    assert sources(runtime) == {"code.py", "settings.py"}
    assert main(["ingest", str(root), "--address", runtime.address, "--json"]) == 0
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert (len(facts["secrets"]), facts["secrets_count"], facts["redacted"]) == (11, 11, 1)
    assert told.err == LEFT_OUT
    assert main(["ingest", str(root), "--address", runtime.address, "--include-secrets"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert len(sources(runtime)) == 13
    assert main(["ingest", str(root), "--address", runtime.address, "--redact-entropy"]) == 0
    assert sources(runtime) == {"code.py", "settings.py"}


def test_one_of_each(runtime: LocalRuntime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The note is a sentence for one file, too."""
    write(tmp_path / "one", {"a.pem": "x"})
    assert main(["ingest", str(tmp_path / "one"), "--address", runtime.address]) == 0
    expected = "left out 1 secret file: a.pem (key or certificate); --include-secrets includes them\n"
    assert capsys.readouterr().err == f"stepwell: {expected}"


def test_options_exclude_each_other(runtime: LocalRuntime, root: Path) -> None:
    assert main(["ingest", str(root), "--address", runtime.address, "--include-secrets", "--redact-entropy"]) == 2


def test_assemble_and_its_cache(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Secrets are in neither answer, cache, nor explanation; on request they are, in another cache."""
    question = ["assemble", "password of the robot", str(root), "--strategies", "keyword"]
    assert main(question) == 0
    told = capsys.readouterr()
    assert told.err == LEFT_OUT + REDACTED
    assert MARK not in told.out
    assert "[redacted: GitHub token]" in told.out
    assert main(["why", "settings.py", str(root)]) == 0
    assert "  redacted in it: GitHub token (line 2)\n" in capsys.readouterr().out
    assert not {each for each in (MARK, GITHUB) if each.encode() in contents(tmp_path / "cache")}

    assert main([*question, "--include-secrets"]) == 0
    told = capsys.readouterr()
    assert GITHUB in told.out
    assert told.err == ""
    assert main(["why", ".env", str(root), "--include-secrets"]) == 0
    default, including = cache_directory(root).path, cache_directory(root, SecretPolicy.INCLUDE).path
    assert (default.exists(), including.exists()) == (True, True)
    assert b".env" in contents(including)
    assert main(question) == 0
    assert GITHUB not in capsys.readouterr().out
    assert not {each for each in (MARK, GITHUB, ".env") if each.encode() in contents(default)}


def test_cache_of_an_earlier_version(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier version wrote its cache without redaction, under another name: that cache is deleted."""
    old = tmp_path / "cache" / "stepwell" / cache_directory(root).path.name.removesuffix("-redact")
    with sw.Runtime.start(workers=0, data_dir=old / "state") as runtime, runtime.client(projects=["root"]) as client:
        client.ingest(root, include_secrets=True)
    (old / "command.lock").touch()
    assert MARK.encode() in contents(old)
    assert main(["assemble", "password", str(root), "--strategies", "keyword"]) == 0
    assert not old.exists()
    assert not {each for each in (MARK, GITHUB) if each.encode() in contents(tmp_path / "cache")}
    capsys.readouterr()

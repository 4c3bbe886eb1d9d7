"""`client.ingest` and secrets: secret files are left out, known secrets are redacted, and both are said."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell.assembly.explain import why
from stepwell.domain.tiers.source_outline import RedactedPlace, redacted_of
from stepwell.ingest.report import IngestReport
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.ingest.split import VERSION
from stepwell.testing import LocalRuntime
from tests.support.ingest import BODY, FILLER, all_rows, git, write
from tests.support.secrets import GITHUB, KEY_LINE, MARK, PRIVATE_KEY, SECRET_FILES, contents, repository

RANDOM = "q8Zr2LxV7nB4kT9mWc3HyPj6SdF1gUaE"


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


@pytest.fixture
def client(runtime: LocalRuntime) -> Iterator[sw.Client]:
    with runtime.client(projects=["p"]) as client:
        yield client


def sources(client: sw.Client) -> set[str]:
    return {row.source for row in all_rows(client)}


def texts(client: sw.Client) -> str:
    """All bodies of the project."""
    return "\n".join(each.text for each in client.view())


def test_secret_files_are_left_out(client: sw.Client, tmp_path: Path) -> None:
    """None of eleven is in any fragment, and the report names each."""
    report = client.ingest(repository(tmp_path))
    assert sources(client) == {"code.py"}
    assert MARK not in texts(client)
    assert {*report.secrets} == {*SECRET_FILES}
    assert (report.secrets_count, report.skipped_count, report.added) == (11, 0, 1)
    assert report.secrets[".env"] == "environment variables"


def test_secrets_on_disk(tmp_path: Path) -> None:
    """Neither a secret file nor a redacted secret is in the bytes of a data directory."""
    root = repository(tmp_path / "root")
    write(root, {"settings.py": f'TOKEN = "{GITHUB}"\nKEY = """{PRIVATE_KEY}"""\n'})
    with LocalRuntime(data_dir=tmp_path / "data") as runtime, runtime.client(projects=["p"]) as client:
        client.ingest(root)
        request = sw.ContextRequest(projects=["p"], query="password token key")
        assert client.assemble(request, strategies=["keyword"]).receipt_id
    found = contents(tmp_path / "data")
    assert b"a password, a token and a key" in found, "the search finds what is there"
    assert b"[redacted: GitHub token]" in found
    assert [each for each in (MARK, GITHUB, KEY_LINE) if each.encode() in found] == []


def test_secrets_are_included_on_request(client: sw.Client, tmp_path: Path) -> None:
    """And go again, and come again, when the option changes."""
    root = repository(tmp_path)
    write(root, {"a.py": f'TOKEN = "{GITHUB}"\n'})
    report = client.ingest(root, include_secrets=True)
    assert (report.secrets, report.secrets_count, report.redacted) == ({}, 0, 0)
    assert {*SECRET_FILES} <= sources(client)
    assert GITHUB in texts(client)
    report = client.ingest(root)
    assert (report.deleted, report.redacted) == (11, 1)
    assert MARK not in texts(client)
    assert GITHUB not in texts(client)
    report = client.ingest(root)
    assert (report.changed, report.deleted, report.redacted) == (0, 0, 1), "unchanged files count, too"
    assert client.ingest(root, include_secrets=True).added == 11
    assert GITHUB in texts(client)


def test_a_file_that_becomes_a_secret_one(client: sw.Client, tmp_path: Path) -> None:
    """Is gone after the next ingest; and a secret one that becomes another comes."""
    write(tmp_path, {"env": f"x={MARK}\n", "server.pem": "certificate\n"})
    client.ingest(tmp_path)
    assert sources(client) == {"env"}
    (tmp_path / "env").rename(tmp_path / "prod.env")
    (tmp_path / "server.pem").rename(tmp_path / "server.txt")
    report = client.ingest(tmp_path)
    assert (report.added, report.deleted, report.secrets) == (1, 1, {"prod.env": "environment variables"})
    assert sources(client) == {"server.txt"}


def test_one_secret_file(client: sw.Client, tmp_path: Path) -> None:
    """A secret file that is named itself is left out, also behind a link; and what was stored of it goes."""
    write(tmp_path, {"id_rsa": MARK, "notes.txt": "notes", "plain": MARK})
    (tmp_path / "harmless").symlink_to(tmp_path / "id_rsa")
    (tmp_path / ".netrc").symlink_to(tmp_path / "plain")
    client.ingest(tmp_path, include_secrets=True)
    report = client.ingest(tmp_path / "harmless")
    assert (report.deleted, {*report.secrets}) == (1, {"id_rsa"})
    assert sources(client) == {"notes.txt", "plain"}
    assert client.ingest(tmp_path / ".netrc").secrets == {"plain": "passwords"}
    assert client.ingest(tmp_path / "notes.txt").secrets == {}


def test_a_secret_directory_itself(client: sw.Client, tmp_path: Path) -> None:
    """The name of the root counts: `credentials` is secret in `.aws`."""
    write(tmp_path / ".aws", {"credentials": MARK, "notes": "x"})
    assert client.ingest(tmp_path / ".aws").secrets == {"credentials": "credentials of AWS"}


def test_lines_stay_where_they_are(client: sw.Client, tmp_path: Path) -> None:
    """A redacted text has the lines of the file, and the fragment says where something was redacted."""
    code = f'def first():\n{BODY}\n\nKEY = """{PRIVATE_KEY}"""\n\n\ndef second():\n{BODY}\nTOKEN = "{GITHUB}"\n'
    write(tmp_path, {"a.py": code})
    report = client.ingest(tmp_path)
    assert report.redacted == 2
    rows = {row.fragment_id: row for row in all_rows(client)}
    assert [row.metadata["lines"] for row in rows.values() if "a.py#second" in row.fragment_id] == ["11-14"]
    places = {place for row in rows.values() for place in redacted_of(row.metadata) if row.kind != "file"}
    assert places == {RedactedPlace("private key", (5, 8)), RedactedPlace("GitHub token", (14, 14))}
    assert KEY_LINE not in texts(client)


def test_a_secret_across_parts(client: sw.Client, tmp_path: Path) -> None:
    """A key with blank lines, which is longer than a part, is found, because the whole file is redacted."""
    lines = "\n\n".join([KEY_LINE] * 400)
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"
    write(tmp_path, {"a.txt": f"{FILLER}\n\n{key}\n\n{FILLER}\n"})
    client.ingest(tmp_path)
    assert KEY_LINE not in texts(client)
    assert texts(client).count(FILLER) == 2


def test_entropy_only_on_request(client: sw.Client, tmp_path: Path) -> None:
    write(tmp_path, {"a.py": f'password = "{RANDOM}"\nname = "a_name_that_is_long_and_dull"\n'})
    assert client.ingest(tmp_path).redacted == 0
    assert client.ingest(tmp_path, redact_entropy=True).redacted == 1
    assert "[redacted: random text]" in texts(client)
    assert "a_name_that_is_long_and_dull" in texts(client)
    assert client.ingest(tmp_path).redacted == 0
    with pytest.raises(sw.InvalidArgument, match="include_secrets turns redaction off"):
        client.ingest(tmp_path, include_secrets=True, redact_entropy=True)


def test_files_of_an_earlier_version(client: sw.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were stored before there was redaction are read again, although they have not changed."""
    write(tmp_path, {"a.py": f'TOKEN = "{GITHUB}"\n'})
    client.ingest(tmp_path, include_secrets=True)
    (row,) = client.tiers.scoped(kind="file")
    assert (row.metadata["version"], "redacted" in row.metadata) == (VERSION, False), "as an earlier version wrote it"
    client.ingest(tmp_path)
    assert GITHUB not in texts(client)
    monkeypatch.setattr("stepwell.ingest.secret_policy._PATTERNS_VERSION", "next")
    assert client.ingest(tmp_path).changed == 1, "new formats are looked for in old files"


def test_callers_own_texts_are_theirs(client: sw.Client, tmp_path: Path) -> None:
    """Nothing is redacted in fragments that a client stores, in changes that a plan records, or in captures."""
    client.tiers.store(sw.Fragment(fragment_id="own", body=GITHUB))
    assert client.tiers.get("own").text == GITHUB
    client.plans.create_action(
        "local/change", description="x", definition_of_done="x", strategy_actor="a/b", execution_actor="a/b"
    )
    plan = client.plans.use_action("local/change", projects=["p"])
    client.plans.start_strategize(plan.plan_id)
    client.plans.proceed(plan.plan_id)
    context = client.execution(plan.plan_id)
    write(tmp_path, {".env": "old\n"})
    with context.capture(tmp_path, tool="test"):
        write(tmp_path, {".env": f"TOKEN={GITHUB}\n"})
    (changeset,) = context.changesets()
    assert f"+TOKEN={GITHUB}" in context.diff(changeset.changeset_id)


def test_receipt_names_the_place(tmp_path: Path) -> None:
    """The answer, its receipt and the explanation say what was redacted where, and never the secret."""
    write(tmp_path, {"settings.py": f"# the token of the robot\nTOKEN = '{GITHUB}'\n"})
    with LocalRuntime() as runtime, runtime.client(projects=["p"]) as client:
        client.ingest(tmp_path)
        request = sw.ContextRequest(projects=["p"], query="token of the robot")
        answer = client.assemble(request, strategies=["keyword"])
        receipt = client.receipt(answer.receipt_id)
    (fragment,) = answer.fragments
    (entry,) = receipt.entries
    assert fragment.redacted == entry.redacted == (RedactedPlace("GitHub token", (2, 2)),)
    assert answer.redacted == ("settings.py: GitHub token (line 2)",)
    assert "  redacted in it: GitHub token (line 2)" in why(receipt, entry.fragment_id).splitlines()
    assert GITHUB.encode() not in msgspec.json.encode(answer)


def test_report_is_bounded(client: sw.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.limits.INGEST_SKIPPED_MAX", 2)
    write(tmp_path, {f"{number}.pem": "x" for number in range(4)})
    report = client.ingest(tmp_path)
    assert (len(report.secrets), report.secrets_count) == (2, 4)
    assert msgspec.json.decode(msgspec.json.encode(report), type=IngestReport) == report


def test_ignored_by_git_is_not_reported(client: sw.Client, tmp_path: Path) -> None:
    """A secret file that git ignores is not looked at."""
    write(tmp_path, {".env": MARK, ".gitignore": ".env\n"})
    git(tmp_path, "init")
    assert client.ingest(tmp_path).secrets == {}


def test_policy() -> None:
    """Each combination of options is a policy with rules of its own; those that include everything are the old ones."""
    versions = {policy.rules_version for policy in SecretPolicy}
    assert len(versions) == len(SecretPolicy)
    assert SecretPolicy.INCLUDE.rules_version == VERSION

"""Names of secret files: those of the table, at any depth and in any case, and no others."""

import pytest

from stepwell.ingest.secret_files import EXAMPLES, SECRET_FILES, secret_kind


@pytest.mark.parametrize("pattern, kind", SECRET_FILES)
def test_each_pattern(pattern: str, kind: str) -> None:
    """A name of each pattern is recognised at the root, deeper, and in capitals."""
    name = pattern.replace("*", "x") + ("deep/name" if pattern.endswith("/") else "")
    for path in (f"/{name}", f"/home/user/project/deep/{name}", f"/project/{name.upper()}"):
        assert secret_kind(path), path
    assert kind
    assert pattern == pattern.lower(), "a pattern in other letters would never match"


@pytest.mark.parametrize(
    "path",
    [
        "/p/keys.py",
        "/p/credentials.py",
        "/p/secrets.py",
        "/p/secrets.md",
        "/p/environment.md",
        "/p/.environment",
        "/p/src/env.py",
        "/p/id_rsa.pub",
        "/p/server.pub",
        "/p/key",
        "/p/keyboard",
        "/p/config",
        "/p/docker/config.json",
        "/p/credentials",
        "/p/aws/credentials",
        "/p/my.aws/credentials",
        "/p/not.ssh/config",
        "/p/.sshd",
        "/p/netrc.c",
        "/p/package.json",
        "/p/monkey.keys",
        "/p/a.pem/b.txt",
    ],
)
def test_other_names(path: str) -> None:
    """Source code about secrets, public keys and names that only resemble a pattern are read."""
    assert secret_kind(path) == ""


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_examples(pattern: str) -> None:
    """Examples of settings are there to be read."""
    assert secret_kind(f"/p/{pattern.replace('*', 'production')}") == ""
    assert secret_kind("/p/.env.production")


def test_names_with_line_breaks() -> None:
    """A name is compared as a whole, whatever it contains."""
    assert secret_kind("/p/a\nb.pem")
    assert secret_kind("/p/.env\n") == ""

"""The names of well-known secret files, which are left out of an ingest by default.

The table is data: a pattern, and what the file is. A pattern is compared without regard to case, with the end of the
absolute path, so that `.aws/credentials` is recognised when `.aws` itself is ingested. `*` stands for any characters
within one name. A pattern that ends with a slash stands for everything below that directory.

A name decides, not the contents: `tests/server.pem` is left out, too. Source code about secrets (`keys.py`,
`credentials.py`), public keys (`*.pub`) and examples (`.env.example`) are not secret files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import re2

SECRET_FILES: Final[tuple[tuple[str, str], ...]] = (
    # Settings of programs.
    (".env", "environment variables"),
    (".env.*", "environment variables"),
    (".env-*", "environment variables"),
    ("*.env", "environment variables"),
    (".envrc", "environment variables"),
    ("secrets.json", "secrets of an application"),
    ("secrets.toml", "secrets of an application"),
    ("secrets.yml", "secrets of an application"),
    ("secrets.yaml", "secrets of an application"),
    ("local.settings.json", "secrets of an application"),
    ("wp-config.php", "settings of WordPress"),
    ("localsettings.php", "settings of MediaWiki"),
    ("*.tfstate", "state of Terraform"),
    ("*.tfstate.backup", "state of Terraform"),
    (".vault_pass", "password"),
    (".vault_pass.txt", "password"),
    (".vault-token", "token of Vault"),
    # Private keys.
    ("id_rsa", "private key"),
    ("id_dsa", "private key"),
    ("id_ecdsa", "private key"),
    ("id_ed25519", "private key"),
    ("id_ecdsa_sk", "private key"),
    ("id_ed25519_sk", "private key"),
    ("*.pem", "key or certificate"),
    ("*.key", "private key"),
    ("*.p8", "private key"),
    ("*.pk8", "private key"),
    ("*.ppk", "private key"),
    ("*.p12", "private key"),
    ("*.pfx", "private key"),
    ("*.pkcs12", "private key"),
    ("secring.gpg", "private key"),
    ("*.jks", "key store"),
    ("*.jceks", "key store"),
    ("*.bcfks", "key store"),
    ("*.keystore", "key store"),
    ("*.keytab", "keys of Kerberos"),
    ("*.kdb", "passwords"),
    ("*.kdbx", "passwords"),
    ("*.keychain", "passwords"),
    ("*.keychain-db", "passwords"),
    ("*.ovpn", "settings of a VPN"),
    (".ssh/", "keys and settings of SSH"),
    (".gnupg/", "keys of GnuPG"),
    # Passwords and tokens of single programs.
    (".netrc", "passwords"),
    ("_netrc", "passwords"),
    (".authinfo", "passwords"),
    (".pgpass", "passwords of PostgreSQL"),
    ("pgpass.conf", "passwords of PostgreSQL"),
    (".my.cnf", "passwords of MySQL"),
    (".mylogin.cnf", "passwords of MySQL"),
    (".htpasswd", "passwords"),
    (".git-credentials", "passwords of git"),
    (".config/git/credentials", "passwords of git"),
    (".config/gh/hosts.yml", "token of GitHub"),
    (".npmrc", "token of npm"),
    (".pypirc", "token of PyPI"),
    (".gem/credentials", "token of RubyGems"),
    (".cargo/credentials", "token of crates.io"),
    (".cargo/credentials.toml", "token of crates.io"),
    (".composer/auth.json", "token of Composer"),
    (".m2/settings.xml", "passwords of Maven"),
    ("settings-security.xml", "passwords of Maven"),
    (".dockercfg", "passwords of Docker"),
    (".docker/config.json", "passwords of Docker"),
    (".kube/config", "credentials of Kubernetes"),
    ("kubeconfig", "credentials of Kubernetes"),
    ("*.kubeconfig", "credentials of Kubernetes"),
    (".terraformrc", "token of Terraform"),
    ("credentials.tfrc.json", "token of Terraform"),
    ("rclone.conf", "passwords of rclone"),
    ("sftp-config.json", "password"),
    (".vscode/sftp.json", "password"),
    (".ftpconfig", "password"),
    ("sitemanager.xml", "passwords of FileZilla"),
    # Credentials of clouds.
    (".aws/credentials", "credentials of AWS"),
    (".aws/config", "credentials of AWS"),
    (".aws/sso/", "credentials of AWS"),
    (".aws/cli/cache/", "credentials of AWS"),
    (".s3cfg", "credentials of AWS"),
    (".boto", "credentials of a cloud"),
    (".azure/", "credentials of Azure"),
    (".oci/config", "credentials of Oracle"),
    (".config/gcloud/", "credentials of Google"),
    ("application_default_credentials.json", "credentials of Google"),
    ("*service-account*.json", "credentials of Google"),
    ("*service_account*.json", "credentials of Google"),
    ("*serviceaccount*.json", "credentials of Google"),
    ("client_secret*.json", "credentials of Google"),
    ("gcloud-key*.json", "credentials of Google"),
    # What was typed.
    (".bash_history", "typed commands"),
    (".zsh_history", "typed commands"),
    (".psql_history", "typed commands"),
    (".mysql_history", "typed commands"),
    (".python_history", "typed commands"),
)
"""Patterns in lower case, and what such a file has. The first pattern that matches gives the reason."""

EXAMPLES: Final = (
    ".env.example",
    ".env.*.example",
    ".env.sample",
    ".env.*.sample",
    ".env.template",
    ".env.*.template",
    ".env.dist",
    ".env.*.dist",
    ".env.defaults",
    ".env-example",
    ".env-sample",
    ".env-template",
    "example.env",
    "sample.env",
    "template.env",
)
"""Patterns of files that are there to be read, although the table has their names."""


def _pattern(globs: Iterable[str]) -> str:
    """Return an expression for the end of a path; each glob is a group of its own."""
    return "|".join(f"({_expression(glob)})" for glob in globs)


def _expression(glob: str) -> str:
    """Return the expression of one glob, which begins at a slash."""
    escaped = "[^/]*".join(re2.escape(each) for each in glob.split("*"))
    return f"/{escaped}" if glob.endswith("/") else f"/{escaped}$"


_SECRET: Final = re2.compile(f"(?s){_pattern(pattern for pattern, _ in SECRET_FILES)}")
_EXAMPLE: Final = re2.compile(f"(?s){_pattern(EXAMPLES)}")


def secret_kind(path: str) -> str:
    """Return what a file with this absolute path has that should stay secret; empty for other files."""
    lowered = path.lower()
    found = _SECRET.search(lowered)
    if found is None or _EXAMPLE.search(lowered):
        return ""
    assert found.lastindex is not None, "each pattern is a group"
    return SECRET_FILES[found.lastindex - 1][1]

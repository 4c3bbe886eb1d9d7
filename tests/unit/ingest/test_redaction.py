"""Redaction: secrets of known formats are found, whatever surrounds them, and lines stay where they are."""

from collections.abc import Callable

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.domain.tiers.source_outline import RedactedPlace
from stepwell.ingest.redaction import RANDOM, find_secrets, redact, redacted_places
from stepwell.ingest.secret_formats import FORMATS
from stepwell.ingest.secret_policy import SecretPolicy
from tests.support.measurement import untraced
from tests.support.secrets import AWS, GITHUB, KEY_LINE, PRIVATE_KEY

# No token stands here as a whole, so that no scanner of secrets takes this file for a leak.
WORDS = "aB3dE6gH9jK2mN5pQ8sT"
HEX = "0a1b2c3d4e5f6789"
JWT = f"eyJ{WORDS}.eyJ{WORDS}.{WORDS}"
BASE64 = f"{WORDS * 4}Wx/+12=="

# A text with one secret, the secret, and its kind.
SAMPLES: list[tuple[str, str, str]] = [
    (f"{PRIVATE_KEY}\n", PRIVATE_KEY, "private key"),
    ("k: AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 5, "AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 5, "private key"),
    (f"PrivateKey = {(WORDS * 3)[:43]}=\n", f"{(WORDS * 3)[:43]}=", "private key"),
    (f"id = {AWS}\n", AWS, "AWS access key"),
    (f"aws_secret_access_key = {WORDS * 2}\n", WORDS * 2, "AWS secret key"),
    (f'"SecretAccessKey": "{WORDS * 2}",', WORDS * 2, "AWS secret key"),
    (f"export AWS_SECRET_KEY={WORDS * 2}", WORDS * 2, "AWS secret key"),
    (f"aws_session_token={WORDS * 6}", WORDS * 6, "AWS session token"),
    (f"git clone https://{GITHUB}", GITHUB, "GitHub token"),
    (f"x github_pat_{WORDS}_{WORDS} y", f"github_pat_{WORDS}_{WORDS}", "GitHub token"),
    (f"glpat-{WORDS}", f"glpat-{WORDS}", "GitLab token"),
    (f"xoxb-123-{WORDS}", f"xoxb-123-{WORDS}", "Slack token"),
    (f"xapp-1-A0-{WORDS}", f"xapp-1-A0-{WORDS}", "Slack token"),
    (f"https://hooks.slack.com/services/T0/B0/{WORDS}", f"T0/B0/{WORDS}", "Slack webhook"),
    (f"https://discord.com/api/webhooks/1234567890/{WORDS * 3}", f"1234567890/{WORDS * 3}", "Discord webhook"),
    (f"bot 123456789:AA{(WORDS * 2)[:33]} x", f":AA{(WORDS * 2)[:33]}", "Telegram token"),
    (f"sk_live_{WORDS}", f"sk_live_{WORDS}", "Stripe key"),
    (f"whsec_{WORDS}{WORDS}", f"whsec_{WORDS}{WORDS}", "Stripe key"),
    (f"sk-ant-api03-{WORDS}", f"sk-ant-api03-{WORDS}", "Anthropic key"),
    (f"sk-proj-{WORDS}-{WORDS}", f"sk-proj-{WORDS}-{WORDS}", "OpenAI key"),
    (f"sk-or-v1-{WORDS}", f"sk-or-v1-{WORDS}", "OpenRouter key"),
    (f"sk-{WORDS}{WORDS}", f"sk-{WORDS}{WORDS}", "OpenAI key"),
    (f"gsk_{(WORDS * 3)[:52]}", f"gsk_{(WORDS * 3)[:52]}", "Groq key"),
    (f"xai-{WORDS * 4}", f"xai-{WORDS * 4}", "xAI key"),
    (f"hf_{(WORDS * 2)[:34]}", f"hf_{(WORDS * 2)[:34]}", "Hugging Face token"),
    (f"AIza{(WORDS * 2)[:35]}", f"AIza{(WORDS * 2)[:35]}", "Google key"),
    (f"GOCSPX-{WORDS}", f"GOCSPX-{WORDS}", "Google secret"),
    (f"ya29.{WORDS}", f"ya29.{WORDS}", "Google token"),
    (f"npm_{(WORDS * 2)[:36]}", f"npm_{(WORDS * 2)[:36]}", "npm token"),
    (f"//registry/:_authToken={WORDS}", WORDS, "npm token"),
    (f"pypi-AgEIcHlwaS5vcmc{WORDS}", f"pypi-AgEIcHlwaS5vcmc{WORDS}", "PyPI token"),
    (f"rubygems_{HEX * 3}", f"rubygems_{HEX * 3}", "RubyGems token"),
    (f"dckr_pat_{WORDS}", f"dckr_pat_{WORDS}", "Docker token"),
    (f"dop_v1_{HEX * 4}", f"dop_v1_{HEX * 4}", "DigitalOcean token"),
    (f"shpat_{HEX * 2}", f"shpat_{HEX * 2}", "Shopify token"),
    (f"SG.{WORDS}.{WORDS}{WORDS}", f"SG.{WORDS}.{WORDS}{WORDS}", "SendGrid key"),
    (f"SK{HEX * 2}", f"SK{HEX * 2}", "Twilio key"),
    (f"key-{HEX * 2}", f"key-{HEX * 2}", "Mailgun key"),
    (f"AccountName=a;AccountKey={BASE64};", BASE64, "Azure key"),
    (f"dapi{HEX * 2}", f"dapi{HEX * 2}", "Databricks token"),
    (f"hvs.{WORDS}{WORDS}", f"hvs.{WORDS}{WORDS}", "Vault token"),
    (f"ATATT3{WORDS * 6}", f"ATATT3{WORDS * 6}", "Atlassian token"),
    (f"glsa_{WORDS}{WORDS}", f"glsa_{WORDS}{WORDS}", "Grafana token"),
    (f"sntrys_{WORDS}{WORDS}", f"sntrys_{WORDS}{WORDS}", "Sentry token"),
    (f"lin_api_{WORDS}{WORDS}", f"lin_api_{WORDS}{WORDS}", "Linear key"),
    (f"ntn_{WORDS}{WORDS}", f"ntn_{WORDS}{WORDS}", "Notion token"),
    (f"PMAK-{HEX}{HEX[:8]}-{HEX * 2}00", f"PMAK-{HEX}{HEX[:8]}-{HEX * 2}00", "Postman key"),
    (f"sbp_{HEX * 2}{HEX[:8]}", f"sbp_{HEX * 2}{HEX[:8]}", "Supabase token"),
    (f"tskey-auth-{WORDS}", f"tskey-auth-{WORDS}", "Tailscale key"),
    (f'token = "{JWT}"', JWT, "JSON web token"),
    ('{"Authorization": "Basic dXNlcjpwYXNz"}', "dXNlcjpwYXNz", "password in an authorization"),
    (f"curl -H 'authorization: bearer {WORDS}'", WORDS, "password in an authorization"),
    (f"send Bearer {WORDS}{WORDS}", f"{WORDS}{WORDS}", "bearer token"),
    ("postgresql://user:hunter2@host/db", "hunter2", "password in a URL"),
    ("redis://:hunter2@host", "hunter2", "password in a URL"),
    ("Server=s;User Id=u;Password=hunter2;", "hunter2", "password in a connection string"),
]


def found(text: str, policy: SecretPolicy = SecretPolicy.REDACT) -> list[tuple[str, str]]:
    """Return the secrets of a text, each with its kind."""
    data = text.encode()
    return [(data[each.start : each.end].decode(), each.kind) for each in find_secrets(data, policy)]


def redacted(text: str) -> str:
    data = text.encode()
    return redact(data, find_secrets(data, SecretPolicy.REDACT)).decode()


@pytest.mark.parametrize("text, secret, kind", SAMPLES, ids=[f"{kind}-{at}" for at, (_, _, kind) in enumerate(SAMPLES)])
def test_sample(text: str, secret: str, kind: str) -> None:
    """Exactly the secret is replaced, at the beginning, in the middle and at the end of a text that is not ASCII."""
    assert found(text) == [(secret, kind)]
    for around in ("{}", "ä\n{}", "{}\nö", "\t# {}\r\nü"):
        whole = around.format(text)
        shown = redacted(whole)
        line_ends = "\n" * secret.count("\n")
        assert shown == whole.replace(secret, f"[redacted: {kind}]{line_ends}")
        assert redacted(shown) == shown, "nothing is found in what was redacted"
        assert find_secrets(whole.encode(), SecretPolicy.INCLUDE) == ()


def test_every_format_has_a_sample() -> None:
    """A format without one might never match. Each has one group."""
    for each in FORMATS:
        pattern = re2.compile(each.expression)
        assert pattern.groups == 1, "the group is the secret"
        assert any(pattern.search(text) for text, _, _ in SAMPLES), each


@pytest.mark.parametrize(
    "text",
    [
        "a task-list-of-things-that-are-long-and-many",
        "disk-abcdefghijklmnopqrstuvwxyz0123456789",
        'if "-----BEGIN PRIVATE KEY-----" in text:\n    return parse(text)\n',
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQsw\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC KEY-----",
        "f'postgres://{user}:{password}@{host}/db'",
        "postgres://user:$PASSWORD@host/db postgres://user:<password>@host",
        "https://example.org:8080/path@2x http://[::1]:80/ https://user@host/",
        "Authorization: Bearer $TOKEN",
        "'Authorization': f'Bearer {token}'",
        "the bearer authentication scheme",
        "secret_access_key = os.environ['SECRET_ACCESS_KEY']",
        "commit 0a1b2c3d4e5f67890a1b2c3d4e5f67890a1b2c3d",
        "AKIAtoo-short ghp_short npm_install hf_hub_download sk_test eyJ",
    ],
)
def test_no_secret(text: str) -> None:
    """Code that handles secrets, templates, public keys and hashes stay as they are."""
    assert redacted(text) == text


@pytest.mark.parametrize(
    "form",
    [
        lambda key: key.replace("\n", "\r\n"),
        lambda key: key.replace("\n", "\n    "),
        lambda key: key.replace("\n", "\\n"),
        lambda key: key.replace("\n", "\\\\n"),
        lambda key: '"' + key.replace("\n", '\\n" +\n"') + '"',
        lambda key: "# " + key.replace("\n", "\n# "),
        lambda key: key.replace("RSA ", "").replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"),
        lambda key: key.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA\n\n", 1),
        lambda key: key.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK").replace(
            "BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v2.0.22 (GNU/Linux)\nComment: a -b\n\n", 1
        ),
        lambda key: key.replace("-----BEGIN", "---- BEGIN").replace("KEY-----\n", "KEY ----\n", 1),
        lambda key: key.partition("-----END")[0],
        lambda key: key.replace(KEY_LINE, "not so long"),
    ],
    ids=[
        "line ends of Windows",
        "indented",
        "escaped",
        "escaped twice",
        "concatenated",
        "commented",
        "encrypted",
        "with headers",
        "GnuPG",
        "SSH2",
        "cut off",
        "short",
    ],
)
def test_private_keys(form: Callable[[str], str]) -> None:
    """A key is found in any notation: indented, quoted, escaped, commented, encrypted, cut off, and short."""
    text = f"before\n{form(PRIVATE_KEY)}\nafter"
    shown = redacted(text)
    assert "[redacted: private key]" in shown
    assert KEY_LINE not in shown
    assert "not so long" not in shown
    assert len(shown.splitlines()) == len(text.splitlines())
    assert shown.startswith("before\n")
    assert shown.endswith("\nafter")


def test_places() -> None:
    """Lines are counted as the splitters count them: with each of the three line ends, from 1."""
    data = f"a\rb\r\n{GITHUB}\n{PRIVATE_KEY}\n{AWS}".encode()
    places = redacted_places(data, find_secrets(data, SecretPolicy.REDACT))
    expected = [("GitHub token", (3, 3)), ("private key", (4, 7)), ("AWS access key", (8, 8))]
    assert places == tuple(RedactedPlace(*each) for each in expected)
    assert redacted_places(b"", ()) == ()


def test_longer_than_the_window() -> None:
    """A token that is longer than what is looked at is replaced to its end."""
    token = f"eyJ{WORDS}.eyJ{WORDS}.{'x' * 2 * limits.SECRET_BYTES_MAX}"
    assert redacted(f'"{token}" and more') == '"[redacted: JSON web token]" and more'
    assert redacted(f"x {token}") == "x [redacted: JSON web token]"


HOSTILE = [
    b"-----BEGIN PRIVATE KEY-----",
    b"-----BEGIN PRIVATE KEY-----\n",
    b"abc: -----BEGIN PRIVATE KEY-----\n",
    b"-----BEGIN PRIVATE KEY-----\nabc: ",
    b"-----BEGIN PRIVATE KEY-----" + b"- " * 500,
    b"-eyJ",
    b"-eyJ" * 250 + b".eyJ" + b"a" * 60_000,
    b"eyJaaaaaaaaaaaaa.",
    b"://a:",
    b"Authorization: ",
    b"sessiontoken=",
    b" sk-",
    b'="',
    b"A",
    "é".encode(),
]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
@untraced()
def test_hostile_text(piece: bytes) -> None:
    """A megabyte of anchors without secrets ends: in quadratic time, each would take hours."""
    size = 1 << 20
    data = (piece * (size // len(piece) + 1))[:size].decode(errors="ignore").encode()
    assert all(each.start < each.end <= len(data) for each in find_secrets(data, SecretPolicy.REDACT_ENTROPY))


def test_entropy() -> None:
    """Texts that look random are found if they are quoted or assigned, and only with the option."""
    random = "q8Zr2LxV7nB4kT9mWc3HyPj6SdF1gUaE"
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
    text = f'a = "{random}" {GITHUB} b: {digest} c="{"ab" * 20}" d = "a_rather_long_name_of_a_thing" {random}'
    assert found(text) == [(GITHUB, "GitHub token")]
    assert found(text, SecretPolicy.REDACT_ENTROPY) == [
        (random, RANDOM),
        (GITHUB, "GitHub token"),
        (digest, RANDOM),
    ]


PIECES = st.sampled_from(
    [text for text, _, _ in SAMPLES] + ["a", "\n", "\r\n", " ", "ö", '"', "-----BEGIN ", "://", "="]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=12), st.sampled_from(SecretPolicy))
def test_any_text(pieces: list[str], policy: SecretPolicy) -> None:
    """Places are in order and apart, the text stays UTF-8, and it has the same lines outside of the places."""
    data = "".join(pieces).encode(errors="replace")
    redactions = find_secrets(data, policy)
    ends = [0, *(each.end for each in redactions)]
    assert all(end <= each.start < each.end for end, each in zip(ends, redactions, strict=False))
    shown = redact(data, redactions)
    shown.decode()
    touched = {n for place in redacted_places(data, redactions) for n in range(place.lines[0], place.lines[1] + 1)}
    for number, (before, after) in enumerate(zip(data.splitlines(), shown.splitlines(), strict=True), 1):
        assert before == after or number in touched

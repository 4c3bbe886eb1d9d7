"""The formats of secrets that are recognised inside of files: private keys, tokens, passwords in addresses.

The table is data. Each format has a kind, as it is named to users, and two expressions of RE2: `anchor` is the short
beginning by which it is found, and `rest` is matched behind that. If `rest` has a group, only the group is secret, and
the text around it stays. The prefixes are those that the issuers document, so that a token can be recognised; a secret
without a format of its own is found only with `redact_entropy`.

`redaction` searches for all anchors at once, so that a text is read once, however many formats there are. An anchor is
short and has a bounded length. That keeps the search linear.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

_GROUP: Final = re.compile(r"\((?!\?)")


class SecretFormat(Struct, frozen=True):
    """One format: a name for users, the beginning by which it is found, and the rest."""

    kind: str
    anchor: str
    rest: str

    @property
    def expression(self) -> str:
        """The whole expression. It has one group, which is the secret."""
        has_group = _GROUP.search(self.rest) is not None
        return f"(?:{self.anchor}){self.rest}" if has_group else f"((?:{self.anchor}){self.rest})"


_ASSIGNED: Final = r"""["']?[ \t]{0,8}(?:=>|[:=,>])[ \t]{0,8}["']?"""
"""Text between a name and its value, in code, JSON, YAML, XML, or a file of settings."""

_GAP: Final = r"""(?:[\s"'+,;#*>|]|\\+[nrt]?)"""
"""Characters between two lines of a key: line breaks, indentation, quotes, escaped line breaks, signs of comments."""

_BODY: Final = r"""(?:[A-Za-z0-9+/=\s\\"'#*>|:,._]|-[^-])*?"""
"""Characters between the first and the last line of a key. Code has others."""

_HEADERS: Final = rf"""(?:{_GAP}*[A-Za-z-]{{3,20}}: (?:-?[^\r\n\\-]){{0,200}})*"""
"""Headers inside of a key, such as `Proc-Type: 4,ENCRYPTED`."""

_PRIVATE_KEY: Final = (
    r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-----?"
    rf"{_HEADERS}(?:{_BODY}-----? ?END[A-Z0-9 ]{{0,50}}-----?"  # up to its last line
    rf"|(?:{_GAP}+[A-Za-z0-9+/=]{{20,}})+)"  # or, without one, as far as it looks like a key
)

FORMATS: Final[tuple[SecretFormat, ...]] = (
    SecretFormat("private key", r"-----? ?BEGIN ", _PRIVATE_KEY),
    SecretFormat("private key", r"AGE-SECRET-KEY-1", r"[A-Z0-9]{40,80}"),
    SecretFormat("private key", r"(?i:\bprivate_?key\b)", rf"{_ASSIGNED}([A-Za-z0-9+/]{{43}}=)"),
    SecretFormat("AWS access key", r"\b(?:AKIA|ASIA|ABIA|ACCA)", r"[A-Z0-9]{16}\b"),
    SecretFormat(
        "AWS secret key", r"(?i:secret_?access_?key)", rf"{_ASSIGNED}([A-Za-z0-9/+]{{40}})(?:[^A-Za-z0-9/+]|$)"
    ),
    SecretFormat("AWS secret key", r"(?i:aws_?secret_?key)", rf"{_ASSIGNED}([A-Za-z0-9/+]{{40}})(?:[^A-Za-z0-9/+]|$)"),
    SecretFormat("AWS session token", r"(?i:session_?token)", rf"{_ASSIGNED}([A-Za-z0-9/+=]{{100,}})"),
    SecretFormat("GitHub token", r"\bgh[pousr]_", r"[A-Za-z0-9]{36,255}"),
    SecretFormat("GitHub token", r"\bgithub_pat_", r"[A-Za-z0-9_]{22,255}"),
    SecretFormat(
        "GitLab token", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-", r"[A-Za-z0-9_=.-]{20,300}"
    ),
    SecretFormat("Slack token", r"\bxox[abeoprs]-", r"[A-Za-z0-9-]{10,250}"),
    SecretFormat("Slack token", r"\bxapp-", r"[0-9]-[A-Za-z0-9-]{20,250}"),
    SecretFormat(
        "Slack webhook", r"\bhooks\.slack\.com/", r"(?:services|workflows|triggers)/([A-Za-z0-9+/_-]{20,100})"
    ),
    SecretFormat("Discord webhook", r"\bdiscord(?:app)?\.com/api/webhooks/", r"([0-9]{10,25}/[A-Za-z0-9_-]{40,100})"),
    SecretFormat("Telegram token", r":AA", r"[A-Za-z0-9_-]{33}\b"),
    SecretFormat("Stripe key", r"\b[rs]k_(?:live|test|prod)_", r"[A-Za-z0-9]{10,250}"),
    SecretFormat("Stripe key", r"\bwhsec_", r"[A-Za-z0-9+/=]{24,100}"),
    SecretFormat("Anthropic key", r"\bsk-ant-", r"[A-Za-z0-9_-]{20,300}"),
    SecretFormat("OpenAI key", r"\bsk-(?:proj|svcacct|admin)-", r"[A-Za-z0-9_-]{20,300}"),
    SecretFormat("OpenRouter key", r"\bsk-or-", r"[A-Za-z0-9-]{20,300}"),
    SecretFormat("OpenAI key", r"\bsk-", r"[A-Za-z0-9]{32,64}\b"),
    SecretFormat("Groq key", r"\bgsk_", r"[A-Za-z0-9]{40,60}\b"),
    SecretFormat("xAI key", r"\bxai-", r"[A-Za-z0-9]{60,100}\b"),
    SecretFormat("Hugging Face token", r"\bhf_", r"[A-Za-z0-9]{34}\b"),
    SecretFormat("Google key", r"\bAIza", r"[A-Za-z0-9_-]{35}"),
    SecretFormat("Google secret", r"\bGOCSPX-", r"[A-Za-z0-9_-]{20,40}"),
    SecretFormat("Google token", r"\bya29\.", r"[A-Za-z0-9_-]{20,1000}"),
    SecretFormat("npm token", r"\bnpm_", r"[A-Za-z0-9]{36}\b"),
    SecretFormat("npm token", r"_authToken", r"""[ \t]{0,8}=[ \t]{0,8}["']?([^\s"'$<{\[]{8,300})"""),
    SecretFormat("PyPI token", r"\bpypi-AgE", r"[A-Za-z0-9_-]{30,1000}"),
    SecretFormat("RubyGems token", r"\brubygems_", r"[a-f0-9]{48}\b"),
    SecretFormat("Docker token", r"\bdckr_(?:pat|oat)_", r"[A-Za-z0-9_-]{20,100}"),
    SecretFormat("DigitalOcean token", r"\bdo[opr]_v1_", r"[a-f0-9]{64}\b"),
    SecretFormat("Shopify token", r"\bshp(?:at|ca|pa|ss)_", r"[A-Fa-f0-9]{32}\b"),
    SecretFormat("SendGrid key", r"\bSG\.", r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,64}"),
    SecretFormat("Twilio key", r"\bSK", r"[0-9a-f]{32}\b"),
    SecretFormat("Mailgun key", r"\bkey-", r"[0-9a-f]{32}\b"),
    SecretFormat("Azure key", r"\b(?:AccountKey|SharedAccessKey)=", r"([A-Za-z0-9+/]{42,86}={1,2})"),
    SecretFormat("Databricks token", r"\bdapi", r"[a-f0-9]{32}(?:-[0-9])?\b"),
    SecretFormat("Vault token", r"\bhv[sb]\.", r"[A-Za-z0-9_-]{24,300}"),
    SecretFormat("Atlassian token", r"\bATATT3", r"[A-Za-z0-9_=-]{100,300}"),
    SecretFormat("Grafana token", r"\bgls?[ac]_", r"[A-Za-z0-9+/=_]{32,400}"),
    SecretFormat("Sentry token", r"\bsntr[ysu]{1,3}_", r"[A-Za-z0-9+/=_]{40,400}"),
    SecretFormat("Linear key", r"\blin_api_", r"[A-Za-z0-9]{32,64}\b"),
    SecretFormat("Notion token", r"\bntn_", r"[A-Za-z0-9]{40,64}\b"),
    SecretFormat("Postman key", r"\bPMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}\b"),
    SecretFormat("Supabase token", r"\bsbp_", r"[a-f0-9]{40}\b"),
    SecretFormat("Tailscale key", r"\btskey-", r"[A-Za-z0-9-]{16,100}"),
    SecretFormat("JSON web token", r"\beyJ", r"[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    SecretFormat(
        "password in an authorization",
        r"(?i:\bauthorization)",
        rf"{_ASSIGNED}(?i:bearer|basic|token)[ \t]{{1,8}}([A-Za-z0-9._~+/=-]{{8,}})",
    ),
    SecretFormat("bearer token", r"\b[Bb]earer[ \t]", r"[ \t]{0,8}([A-Za-z0-9._~+/=-]{24,})"),
    SecretFormat(
        "password in a URL", r"://", r"""[^\s:/?#@"'<>{}\\]{0,100}:([^\s/@"'<>{}\\$%*\[][^\s/@"'<>{}\\]{0,200})@"""
    ),
    SecretFormat("password in a connection string", r"(?i:;[ ]?(?:password|pwd)=)", r"""([^\s;"'<>{}$%*\[]{1,200})"""),
)
"""All formats. Where two of them match, the first one in the table is taken."""

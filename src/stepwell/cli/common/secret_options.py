"""The options about secrets in files, and the notes about what was left out or redacted because of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Protocol

from stepwell import limits
from stepwell.cli.common.output import print_error
from stepwell.cli.common.parameters import flag
from stepwell.errors import InvalidArgument
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.text import plural

IncludeSecrets = Annotated[
    bool,
    flag(
        "--include-secrets",
        "read secret files such as .env and id_rsa too, and redact nothing (default: leave them out, and redact "
        "private keys, tokens and passwords of known formats)",
    ),
]
RedactEntropy = Annotated[
    bool, flag("--redact-entropy", "also redact quoted or assigned texts that look random; not with --include-secrets")
]


def secret_policy(*, include_secrets: bool, redact_entropy: bool) -> SecretPolicy:
    """Return the policy that the options name. Both together are refused, because redaction is off when secrets are
    included.
    """
    if include_secrets and redact_entropy:
        raise InvalidArgument("--include-secrets turns redaction off: leave out --redact-entropy, or --include-secrets")
    return SecretPolicy.of(include_secrets=include_secrets, redact_entropy=redact_entropy)


class LeftOut(Protocol):
    """The files that were left out, as both ways to read a directory report them."""

    @property
    def skipped(self) -> dict[str, str]: ...
    @property
    def skipped_count(self) -> int: ...
    @property
    def secrets(self) -> dict[str, str]: ...
    @property
    def secrets_count(self) -> int: ...


def report_left_out(report: LeftOut) -> None:
    """Say how many secret files were left out, name a few, and say how to include them."""
    if report.secrets_count:
        named = (f"{source} ({kind})" for source, kind in report.secrets.items())
        count = plural(report.secrets_count, "secret file")
        print_error(f"left out {count}: {_first(named, report.secrets_count)}; --include-secrets includes them")


def report_redacted(places: tuple[str, ...]) -> None:
    """Say how many secrets are redacted in an answer, and where the first ones are."""
    if places:
        count = plural(len(places), "place")
        print_error(f"redacted {count} in this answer: {_first(places, len(places))}; --include-secrets shows them")


def _first(texts: Iterable[str], count: int) -> str:
    """Return the first texts, and the number of the others."""
    shown = [text for text, _ in zip(texts, range(limits.SECRETS_SHOWN), strict=False)]
    others = [f"and {count - len(shown):,} more"] if count > len(shown) else []
    return ", ".join([*shown, *others])

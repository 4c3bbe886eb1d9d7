"""The options about secrets in files, and the notes about what was left out or redacted because of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from stepwell import limits
from stepwell.cli.common.output import print_error
from stepwell.client.workflows.ingest import IngestReport
from stepwell.ingest.secret_policy import SecretPolicy


def add_secret_options(parser: argparse.ArgumentParser) -> None:
    """Add the options. They exclude each other, because redaction is off when secrets are included."""
    options = parser.add_mutually_exclusive_group()
    options.add_argument(
        "--include-secrets",
        action="store_true",
        help="read secret files such as .env and id_rsa too, and redact nothing (default: leave them out, and redact "
        "private keys, tokens and passwords of known formats)",
    )
    options.add_argument(
        "--redact-entropy", action="store_true", help="also redact quoted or assigned texts that look random"
    )


def secret_policy(arguments: argparse.Namespace) -> SecretPolicy:
    """Return the policy that the options name."""
    return SecretPolicy.of(include_secrets=arguments.include_secrets, redact_entropy=arguments.redact_entropy)


def report_left_out(report: IngestReport) -> None:
    """Say how many secret files were left out, name a few, and say how to include them."""
    if report.secrets_count:
        named = (f"{source} ({kind})" for source, kind in report.secrets.items())
        count = "1 secret file" if report.secrets_count == 1 else f"{report.secrets_count:,} secret files"
        print_error(f"left out {count}: {_first(named, report.secrets_count)}; --include-secrets includes them")


def report_redacted(places: tuple[str, ...]) -> None:
    """Say how many secrets are redacted in an answer, and where the first ones are."""
    if places:
        count = "1 place" if len(places) == 1 else f"{len(places):,} places"
        print_error(f"redacted {count} in this answer: {_first(places, len(places))}; --include-secrets shows them")


def _first(texts: Iterable[str], count: int) -> str:
    """Return the first texts, and the number of the others."""
    shown = [text for text, _ in zip(texts, range(limits.SECRETS_SHOWN), strict=False)]
    others = [f"and {count - len(shown):,} more"] if count > len(shown) else []
    return ", ".join([*shown, *others])

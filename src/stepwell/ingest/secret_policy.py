"""The handling of secrets during an ingest, and its part in the identity of a stored file.

The policy is stored with each file's row, as a part of the version of the rules. So a file that was ingested under
another policy, or before there was one, is read again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from stepwell.errors import InvalidArgument
from stepwell.ingest.split import VERSION

_PATTERNS_VERSION: Final = "1"
"""The version of the table of formats. It is raised when a format is added or changed; then all files are read anew."""


class SecretPolicy(StrEnum):
    """The handling of secrets in one ingest.

    `REDACT` leaves out secret files and redacts known formats in others. `REDACT_ENTROPY` redacts random-looking texts
    as well. `INCLUDE` stores everything as it is.
    """

    REDACT = "redact"
    REDACT_ENTROPY = "redact-entropy"
    INCLUDE = "include"

    @classmethod
    def of(cls, *, include_secrets: bool, redact_entropy: bool) -> SecretPolicy:
        """Return the policy that two options name. Raise `InvalidArgument` if they contradict each other."""
        if include_secrets and redact_entropy:
            raise InvalidArgument("include_secrets turns redaction off: leave out redact_entropy, or include_secrets")
        if include_secrets:
            return cls.INCLUDE
        return cls.REDACT_ENTROPY if redact_entropy else cls.REDACT

    @property
    def rules_version(self) -> str:
        """The version of the rules by which a file is split under this policy.

        Files that were stored before there was a policy have the version of `INCLUDE`, because nothing was redacted.
        """
        return VERSION if self is SecretPolicy.INCLUDE else f"{VERSION} {self.value} {_PATTERNS_VERSION}"

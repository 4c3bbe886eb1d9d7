"""`stepwell pool create NAME --tokens N`: make a budget of tokens that agents share."""

from __future__ import annotations

from typing import Annotated, Final, cast

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import argument, choice, json_flag, option, whole_number
from stepwell.client.api.pools import PERIODS_MS, Period
from stepwell.client.client import connect

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: Annotated[str, argument("NAME", "such as team")],
    tokens: Annotated[int, option("--tokens", metavar="N", about="tokens of the pool", parse=whole_number)],
    per: Annotated[
        str | None, choice("--per", values=PERIODS_MS, about="refill by as many tokens in this time; without it, never")
    ] = None,
    soft: Annotated[
        int,
        option("--soft", metavar="PERCENT", about="warn when more is spent or leased", parse=whole_number),
    ] = limits.POOL_SOFT_PERCENT,
    address: Address = None,
    json: Annotated[bool, json_flag("`pool`, with the fields of `stepwell.types.TokenPool` by name")] = False,
) -> int:
    """A name that exists is refused. `stepwell pool resize` changes the number of its tokens."""
    with connect(resolve_address(address)) as client:
        pool = client.pools.create(name, tokens=tokens, per=cast("Period | None", per), soft_percent=soft)
    if json:
        print_json({"pool": to_json_value(pool)})
    else:
        print_result(f"created {pool.name}: {pool.tokens:,} tokens{f' per {per}' if per else ''}")
    return 0

"""`stepwell pool resize NAME --tokens N`: change the number of tokens of a pool."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import argument, json_flag, option, whole_number
from stepwell.client.client import connect

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: Annotated[str, argument("NAME", "as in `stepwell pool list`")],
    tokens: Annotated[int, option("--tokens", metavar="N", about="tokens of the pool", parse=whole_number)],
    address: Address = None,
    json: Annotated[bool, json_flag("`pool`, with the fields of `stepwell.types.TokenPool` by name")] = False,
) -> int:
    """The tokens that are spent or leased stay so."""
    with connect(resolve_address(address)) as client:
        pool = client.pools.resize(name, tokens=tokens)
    if json:
        print_json({"pool": to_json_value(pool)})
    else:
        print_result(f"resized {pool.name}: {pool.tokens:,} tokens, {max(0, pool.free):,} of them free")
    return 0

"""`stepwell pool list`: print one line for each pool, with what is spent, leased and free."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.common.tables.pools import all_pools, pool_table
from stepwell.client.client import connect

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    address: Address = None,
    json: Annotated[bool, json_flag("`pools`, a list, each with the fields of `stepwell.types.TokenPool`")] = False,
) -> int:
    """If there are none, a line on stderr says how to make one."""
    with connect(resolve_address(address)) as client:
        found = all_pools(client)
    if json:
        print_json({"pools": to_json_value(found)})
    elif found:
        result_console().print(pool_table(found))
    else:
        print_error("there are no pools: make one with `stepwell pool create NAME --tokens N`")
    return 0

"""The words of generated texts: a few real ones, and as many pronounceable ones as a text needs."""

from __future__ import annotations

from typing import Final


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS: Final = _listed(
    """
    account address archive article balance basket batch budget cache campaign carrier cart catalogue category channel
    charge client clock column comment config contract counter coupon currency customer deadline delivery deposit
    digest discount document draft entry event export feature filter folder gateway group handler header history image
    imprint index invoice item job journal key label ledger lease limit line link listing lock margin market member
    message method metric model module network note notice offer option order owner package page parcel parser partner
    payment period plan policy pool price process product profile project promotion provider queue quota rate receipt
    record refund region registry release report request response result review role route rule sale sample schedule
    schema score section segment series server service session setting shipment signal snapshot source stage state
    statement status step stock storage stream subscription summary supplier table task tax template tenant thread
    threshold ticket token topic total trace transfer tree trigger unit update upload user value vendor version view
    voucher warehouse webhook window worker
    """
)
VERBS: Final = _listed(
    """
    accept add allocate apply approve archive assign attach book build calculate cancel charge check clean close
    collect compare complete compute confirm convert copy count create decode defer delete deliver detach disable
    discard dispatch enable encode expire export extend fetch find flush format freeze gather group import insert
    issue join list load lock mark match measure merge migrate move normalise notify open parse pick prepare print
    publish purge read rebuild receive record refresh refund register reject release remove rename render repair
    replace report reserve reset resolve restore retry return revoke rotate round save scan schedule select send
    settle sort split start stop store submit sum trim undo unlock update upload validate verify wait withdraw write
    """
)
ADJECTIVES: Final = _listed(
    """
    active annual archived available blocked cached closed current daily damaged default delayed disabled double draft
    duplicate early empty expired external failed final first foreign former free global hidden idle initial internal
    invalid large last late local locked lost manual merged missing monthly nested new next old open optional outdated
    paid partial pending permanent present previous primary private public raw recent regional rejected remaining
    remote required reserved running scheduled secondary shared short single small sorted stale temporary total
    trusted unique unknown unpaid unused valid visible weekly
    """
)


def spelled(number: int) -> str:
    """Return a pronounceable word, a different one for each number."""
    word = ""
    while True:
        number, part = divmod(number, 80)
        word += "bcdfglmnprstvzkh"[part // 5] + "aeiou"[part % 5]
        if not number:
            return word + "n"

"""Two processes share context: one stores a decision, the other reads it, and neither sends the body."""

import os

import stepwell as sw


def agent(address: str) -> int:
    """Run in a process of its own: it needs nothing but the address."""
    with sw.connect(address, projects=["shop"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="decision", body="Round to cents, half to even."))
        return os.getpid()


with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["shop"]) as client:
    pid = runtime.executor(1).submit(agent, runtime.address).result()
    decision = client.tiers.get("decision")
    print("another process:", pid != os.getpid())
    print("read:", decision.text)
    print("tier, tokens, revision:", decision.tier, decision.tokens, decision.revision)

    # Compare-and-set: a writer that has not seen the last revision is refused, and nothing is changed.
    client.tiers.store(sw.Fragment(fragment_id="decision", body="Round down."), expected_revision=decision.revision)
    try:
        client.tiers.store(sw.Fragment(fragment_id="decision", body="Round up."), expected_revision=decision.revision)
    except sw.Conflict as conflict:
        print("refused:", type(conflict).__name__, "at revision", conflict.details["actual"])
    print("kept:", client.tiers.get("decision").text)

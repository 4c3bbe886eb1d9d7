"""`stepwell plan cancel`, `retry` and `revert`."""

import stepwell as sw
from tests.support.cli.plans import Shell, executing, new


def test_cancel(shell: Shell, client: sw.Client) -> None:
    """For good, with the reason that was given; a second time is refused."""
    plan_id = new(client)
    told = shell("plan", "cancel", plan_id, "--reason", "not needed")
    assert (told.code, told.out) == (0, f"cancelled {plan_id}: strategize/cancelled, attempt 1\n")
    assert client.plans.get_plan(plan_id).errors[-1].message == "not needed"
    again = shell("plan", "cancel", plan_id)
    assert again.code == 1
    assert "it has ended" in again.err


def test_retry(shell: Shell, client: sw.Client) -> None:
    """What ended in an error is queued, as another attempt; what did not is left alone, and that is said."""
    plan_id = executing(client)
    told = shell("plan", "retry", plan_id)
    assert told.code == 1
    assert "retry_plan is not legal" in told.err
    client.plans.fail_execute(plan_id, "broken")
    facts = shell("plan", "retry", plan_id, "--json").json
    assert (facts["plan.phase"], facts["plan.state"], facts["plan.attempt"]) == ("execute", "queued", 2)


def test_revert(shell: Shell, client: sw.Client) -> None:
    """Back to the beginning, and whoever worked on it has lost it. Without a reason it says whence it came."""
    plan_id = executing(client)
    told = shell("plan", "revert", plan_id)
    assert (told.code, told.out) == (0, f"reverted {plan_id}: strategize/queued, attempt 2\n")
    assert client.plans.get_plan(plan_id).errors[-1].message == "reverted: from the command line"


def test_an_error_for_machines(shell: Shell, client: sw.Client) -> None:
    """On stdout as an object, and on stderr as ever."""
    told = shell("plan", "revert", new(client), "--json")
    assert told.code == 1
    assert told.json["error.kind"] == "PlanNotReady"
    assert told.err == f"stepwell: {told.json['error.message']}\n"
    assert told.json["error.details.phase"] == "strategize"

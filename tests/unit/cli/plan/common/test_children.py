"""The children of a plan."""

import stepwell as sw
from stepwell.cli.plan.common.children import child_nodes, render_tree
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import ACTION, PROJECT, executing


def test_one_that_is_not_to_be_found(runtime: LocalRuntime, client: sw.Client) -> None:
    """Forgotten, or of a project that is not ours: its place is kept."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias="a", projects=["other"])])
    scoped = runtime.client([PROJECT])
    (child,) = child_nodes(scoped, scoped.plans.get_plan(parent))
    assert (child.alias, child.phase, child.state, child.children) == ("a", None, None, ())
    assert str(render_tree("children", [child]).children[0].label).split() == ["a", child.plan_id, "forgotten"]


def test_a_plan_without_any(client: sw.Client) -> None:
    assert child_nodes(client, client.plans.get_plan(executing(client))) == ()

"""Control: what users, operators and the system decide over a run's head.

Invariants:
- A control event takes effect whatever the proposer knew; the superseding ones raise
  ``control_revision``, which fences what was decided before them.
"""

from foldlog.core import lifecycle, tasks
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.state import Draft


def supersede(draft: Draft) -> None:
    """Fence what was decided before this revision: a lower expectation is SUPERSEDED."""
    draft.note(control_revision=draft.header.revision)


def change_goal(draft: Draft, event: Event, ctx: Context) -> None:
    """``GoalChanged``: supersedes, and invalidates the open tasks out of the new scope."""
    goal = lifecycle.goal_value(event["goal"])
    supersede(draft)
    draft.set("goal", goal)
    tasks.invalidate_outside(draft, goal["scope"])


def cancel_run(draft: Draft, event: Event, ctx: Context) -> None:
    """``RunCancelled``: supersedes, and ends the run from any status."""
    supersede(draft)
    lifecycle.cancel(draft, event, ctx)


def revoke_permission(draft: Draft, event: Event, ctx: Context) -> None:
    """``PermissionRevoked``: supersedes, also where the permission was revoked already."""
    supersede(draft)
    if draft.get("permission", event["permission"]) is None:
        draft.put("permission", event["permission"], True)
        draft.count(permissions_count=1)


def restore_permission(draft: Draft, event: Event, ctx: Context) -> None:
    """Remove exactly that string; nothing happens if it is not there."""
    if draft.get("permission", event["permission"]) is not None:
        draft.remove("permission", event["permission"])
        draft.count(permissions_count=-1)


def change_agent_version(draft: Draft, event: Event, ctx: Context) -> None:
    """``AgentVersionChanged``: the given mapping takes the place of the old one."""
    draft.set("agent_version", event["agent_version"])


def activate_rules(draft: Draft, event: Event, ctx: Context) -> None:
    """``RulesActivated``: these rules decide from the next proposal on."""
    draft.set("rules", event["rules_version"])


def check_release(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``RunReleased``: there is a quarantine to end."""
    return None if draft.quarantine is not None else invalid("the run is not quarantined")


def release(draft: Draft, event: Event, ctx: Context) -> None:
    """``RunReleased``: the run takes proposals again."""
    draft.quarantine = None


def move_workspace(draft: Draft, event: Event, ctx: Context) -> None:
    """``WorkspaceMoved``: the given workspace takes the place of the old one."""
    draft.set("workspace", lifecycle.workspace_value(event["workspace"]))

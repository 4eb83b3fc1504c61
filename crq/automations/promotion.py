"""
Pure: what stands in the way of going live.

Asked twice: when somebody promotes, and again at every live run, since what held then need not hold
now: a type may be uninstalled, a configuration edited, a token taken away.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Evidence:
    """
    The observe run that a promotion rests on.
    """

    run_id: int
    config_revision: int
    would_count: int


@frozen
class Obstacle:
    """
    A reason why an automation may not act.

    :ivar precondition: ``type``, ``evidence``, ``cap`` or ``authority``.
    """

    precondition: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


@frozen
class Standing:
    """
    What an automation brings for going live.

    :ivar acts: whether its type can act; None: the type is not installed.
    :ivar revision: of the configuration that is to act.
    :ivar evidence: the observe run that completed last with this revision.
    :ivar authority: what speaks against whoever promotes or promoted; None: nothing.
    """

    type: str
    acts: bool | None
    revision: int
    max_changes_per_run: int
    evidence: Evidence | None
    authority: str | None


def obstacles(standing: Standing) -> tuple[Obstacle, ...]:
    """
    What stands in the way of going live, at promotion and again at every live run; none: nothing.
    """
    found: list[Obstacle] = []
    if standing.acts is None:
        problem = f"the type {standing.type!r} is not installed"
        found.append(Obstacle("type", problem, "install the package that has it, and restart"))
    elif not standing.acts:
        problem = f"the type {standing.type!r} only reports"
        found.append(Obstacle("type", problem, "leave it in observe"))
    evidence = standing.evidence
    if evidence is None or evidence.config_revision != standing.revision:
        problem = f"no observe run of revision {standing.revision} has completed"
        found.append(Obstacle("evidence", problem, "let it observe once to the end"))
    elif evidence.would_count > standing.max_changes_per_run:
        problem = (
            f"run {evidence.run_id} would have changed {evidence.would_count} records, the cap is"
            f" {standing.max_changes_per_run}"
        )
        found.append(
            Obstacle("cap", problem, "narrow the rule, or raise the cap and observe again")
        )
    if standing.authority is not None:
        found.append(Obstacle("authority", standing.authority, "promote with a token that may"))
    return tuple(found)

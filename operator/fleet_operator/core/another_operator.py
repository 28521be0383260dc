"""The problem of a fleet that another operator should drive, while it is not known whether that one lives."""

from __future__ import annotations

from fleet_operator.core.problems import Problem
from rlfleet_resources.reasons import ConditionReason


def unknown_driver(*, own: str, other: str, lease: str, why: str, fleet: str) -> Problem:
    """Returns the problem.

    Args:
        own: The Lease of this operator, as `namespace/name`.
        other: That of the operator that the status names.
        lease: Name and namespace of the other operator's heartbeat.
        why: The error of reading it.
        fleet: Name of the fleet.
    """
    return Problem(
        part="driver",
        reason=ConditionReason.DRIVEN_BY_ANOTHER_OPERATOR,
        message=(
            f"the status names the operator with Lease {other}, and the operator with Lease {own} cannot "
            f"learn whether it lives: it cannot read Lease {lease} ({why}). Possibly no operator drives the "
            f"fleet. Grant the verb get on that Lease. Or, if the operator with Lease {other} is gone: kubectl "
            f"patch inferencefleet {fleet} --subresource=status --type=merge "
            """-p '{"status":{"operator":null}}'"""
        ),
        concerns_weights=True,
    )

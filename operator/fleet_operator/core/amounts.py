"""Numbers that may be given as a share of the replicas."""

from __future__ import annotations


def at_most(amount: int | str, replicas: int) -> int:
    """How many of the replicas an amount allows: rounded down, but never none.

    `amount`: a number, or a percentage such as `25%`.
    Source: Kubernetes apps/v1 RollingUpdateDeployment, `maxUnavailable`.
    """
    if isinstance(amount, str):
        return max(1, replicas * int(amount.removesuffix("%")) // 100)
    return max(1, amount)

"""Numbers that may be given as a share of the replicas, such as `25%`.

Source: Kubernetes apps/v1 RollingUpdateDeployment: what may be missing is rounded down, what is
added is rounded up.
"""

from __future__ import annotations

from fleet_operator.api.fleet import Update


def at_most(amount: int | str, replicas: int) -> int:
    """How many workers may be away at a time: rounded down, but never none."""
    return max(1, rounded_down(amount, replicas))


def at_least(amount: int | str, replicas: int) -> int:
    """How many workers are chosen: rounded up, but never none."""
    return max(1, rounded_up(amount, replicas))


def rounded_down(amount: int | str, replicas: int) -> int:
    """The number that an amount stands for; a share of a small fleet may be 0."""
    return amount if isinstance(amount, int) else replicas * _percent(amount) // 100


def rounded_up(amount: int | str, replicas: int) -> int:
    """The number that an amount stands for; a share is 0 only if it is 0% or of no replicas."""
    return amount if isinstance(amount, int) else -(-replicas * _percent(amount) // 100)


def unavailable_and_surge(update: Update, replicas: int) -> tuple[int, int]:
    """How many workers an update may take away, and how many it may add. If both shares come to 0,
    one may be away.

    Source: Kubernetes `ResolveFenceposts` of apps/v1 Deployments.
    """
    surge = rounded_up(update.max_surge, replicas)
    unavailable = rounded_down(update.max_unavailable, replicas)
    return (1 if unavailable == surge == 0 else unavailable), surge


def _percent(amount: str) -> int:
    return int(amount.removesuffix("%"))

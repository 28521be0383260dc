"""Numbers of workers that may be a percentage of the replicas, such as `25%`.

Rounding follows Kubernetes apps/v1 RollingUpdateDeployment: unavailable is rounded down, surge up.
"""

from __future__ import annotations

from fleet_operator.api.fleet import Update


def at_most(amount: int | str, replicas: int) -> int:
    """Rounds down, to at least 1: how many workers may be unavailable at a time."""
    return max(1, rounded_down(amount, replicas))


def at_least(amount: int | str, replicas: int) -> int:
    """Rounds up, to at least 1: how many workers are chosen."""
    return max(1, rounded_up(amount, replicas))


def rounded_down(amount: int | str, replicas: int) -> int:
    """Rounds down; a percentage of a small fleet may be 0."""
    return amount if isinstance(amount, int) else replicas * _percent(amount) // 100


def rounded_up(amount: int | str, replicas: int) -> int:
    """Rounds up; 0 only for 0% or without replicas."""
    return amount if isinstance(amount, int) else -(-replicas * _percent(amount) // 100)


def unavailable_and_surge(update: Update, replicas: int) -> tuple[int, int]:
    """Returns how many workers an update may make unavailable, and how many it may add. If both are
    0, one worker may be unavailable.

    Source: Kubernetes `ResolveFenceposts` of apps/v1 Deployments.
    """
    surge = rounded_up(update.max_surge, replicas)
    unavailable = rounded_down(update.max_unavailable, replicas)
    return (1 if unavailable == surge == 0 else unavailable), surge


def _percent(amount: str) -> int:
    return int(amount.removesuffix("%"))

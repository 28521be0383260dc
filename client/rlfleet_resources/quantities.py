"""Kubernetes quantities as numbers.

Source: Kubernetes apimachinery, `resource.Quantity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, DecimalException, InvalidOperation, localcontext
from typing import Any

_BINARY = {f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", start=1)}
_LARGE = {letter: Decimal(1000**power) for power, letter in enumerate("kMGTPE", start=1)}
_SMALL = {letter: Decimal(1).scaleb(-3 * power) for power, letter in enumerate("mun", start=1)}
_UNITS = _BINARY | _LARGE | _SMALL
_DIGITS = 100
"""More digits than any quantity of the API server has."""


def bytes_of(quantity: int | str) -> int:
    """Bytes of a quantity such as `64Gi`, `1.5G` or `1024`, rounded up.

    Errors: decimal.InvalidOperation for an invalid quantity.
    """
    return int(amount_of(quantity).to_integral_value(ROUND_CEILING))


def comparable(quantity: Any) -> Any:
    """The same text for all notations of an amount, such as `1Gi` and `1024Mi`, or 1 and `1`.

    An invalid quantity is returned unchanged.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        return quantity
    try:
        with localcontext(prec=_DIGITS):
            return str(amount_of(quantity).normalize())
    except DecimalException:
        return quantity


def comparable_resources(resources: Any) -> Any:
    """Resources of a container with comparable amounts. Source: core/v1 ResourceRequirements."""
    if not isinstance(resources, Mapping):
        return resources
    made = dict(resources)
    for kind in ("limits", "requests"):
        if isinstance(amounts := made.get(kind), Mapping):
            made[kind] = {name: comparable(amount) for name, amount in amounts.items()}
    return made


def amount_of(quantity: int | str) -> Decimal:
    """The number of a quantity. Errors: decimal.InvalidOperation for an invalid one."""
    text = str(quantity)
    unit = next((u for u in _UNITS if text.endswith(u)), "")
    with localcontext(prec=_DIGITS):
        amount = Decimal(text.removesuffix(unit)) * _UNITS.get(unit, 1)
    if not amount.is_finite():
        raise InvalidOperation(f"invalid quantity: {text}")
    return amount

"""Quantities of Kubernetes as numbers.

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
"""More than any quantity of the API server has."""


def bytes_of(quantity: int | str) -> int:
    """Bytes of a quantity such as `64Gi`, `1.5G` or `1024`; a part of a byte counts as one.

    Errors: decimal.InvalidOperation for a text that is no such quantity.
    """
    return int(_amount_of(quantity).to_integral_value(ROUND_CEILING))


def comparable(quantity: Any) -> Any:
    """A text that is the same for every way of writing an amount: `1Gi` and `1024Mi`, 1 and `1`.
    What is no quantity is given back as it is.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | str):
        return quantity
    try:
        with localcontext(prec=_DIGITS):
            return str(_amount_of(quantity).normalize())
    except DecimalException:
        return quantity


def comparable_resources(resources: Any) -> Any:
    """Resources of a container with amounts that can be compared. Source: core/v1 ResourceRequirements."""
    if not isinstance(resources, Mapping):
        return resources
    made = dict(resources)
    for kind in ("limits", "requests"):
        if isinstance(amounts := made.get(kind), Mapping):
            made[kind] = {name: comparable(amount) for name, amount in amounts.items()}
    return made


def _amount_of(quantity: int | str) -> Decimal:
    text = str(quantity)
    unit = next((u for u in _UNITS if text.endswith(u)), "")
    with localcontext(prec=_DIGITS):
        amount = Decimal(text.removesuffix(unit)) * _UNITS.get(unit, 1)
    if not amount.is_finite():
        raise InvalidOperation(f"{text} is no amount")
    return amount

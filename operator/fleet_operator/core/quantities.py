"""Quantities of Kubernetes as numbers.

Source: Kubernetes apimachinery, `resource.Quantity`.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTPE", start=1)}
_UNITS = _BINARY | _DECIMAL


def bytes_of(quantity: int | str) -> int:
    """Bytes of a quantity such as `64Gi`, `1.5G` or `1024`; a part of a byte counts as one.

    Errors: decimal.InvalidOperation for a text that is no such quantity.
    """
    if isinstance(quantity, int):
        return quantity
    unit = next((u for u in _UNITS if quantity.endswith(u)), "")
    number = Decimal(quantity.removesuffix(unit)) * _UNITS.get(unit, 1)
    return int(number.to_integral_value(ROUND_CEILING))

"""Maps of any content have a limit of depth: beyond it they cannot be written as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.builders import make_spec

from fleet_operator.api.depth import DEEPEST


def nested(levels: int) -> dict[str, Any]:
    """Maps nested this deep."""
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


@pytest.mark.parametrize("field", ["nodeAffinity", "podAffinity", "podAntiAffinity"])
def test_an_affinity_beyond_the_limit_of_depth_is_an_invalid_field(field: str) -> None:
    limit = nested(DEEPEST - 1)
    assert make_spec(pod={"affinity": {field: limit}}).pod.affinity == {field: limit}

    for levels in (DEEPEST, 9000):
        with pytest.raises(ValidationError) as refused:
            make_spec(pod={"affinity": {field: nested(levels)}})
        (error,) = refused.value.errors(include_input=False)
        assert error["loc"] == ("pod", "affinity")

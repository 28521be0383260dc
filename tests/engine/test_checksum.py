"""Names of weights without a name, computed by the real torch in the real engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.engine.scripts import ENGINE, output_of

pytestmark = pytest.mark.xdist_group("checksum")
_TENSORS = """
import json, torch
from fleet_worker.engine import parameters
from fleet_worker.engine.parameters import checksum_of

def of(tensor, name="w"):
    return checksum_of([(name, tensor)])

plain = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4) / 7
swapped = plain.clone()
swapped[0, 0], swapped[2, 3] = plain[2, 3].clone(), plain[0, 0].clone()
flipped = plain.clone()
flipped.view(torch.int32)[1, 2] ^= 1
negative_zero = torch.zeros(4)
negative_zero[1] = -0.0
kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
         torch.int64, torch.int8, torch.bool]
routes = torch.arange(5)
of(routes)
found = {
    "unchanged": routes.tolist() == [0, 1, 2, 3, 4],
    "again": of(plain) == of(plain.clone()),
    "by its layout": of(plain.t()) == of(plain.t().contiguous()),
    "of the order of parameters": checksum_of([("a", plain), ("b", swapped)])
        == checksum_of([("b", swapped), ("a", plain)]),
    "two that changed places": of(plain) == of(swapped),
    "one bit": of(plain) == of(flipped),
    "the sign of nothing": of(torch.zeros(4)) == of(negative_zero),
    "another name": of(plain) == of(plain, "v"),
    "swapped names": checksum_of([("a", plain), ("b", swapped)])
        == checksum_of([("a", swapped), ("b", plain)]),
    "kinds": len({of(torch.ones(9).to(kind)) for kind in kinds}),
    "empty": of(torch.empty(0)) == of(torch.zeros(1)),
}
whole = of(plain)
parameters._ELEMENTS_AT_ONCE = 5
found["in pieces"] = of(plain) == whole
print("result", json.dumps(found))
"""

_MODEL = (
    ENGINE
    + """
import json
found = [engine.collective_rpc("rlfleet_checksum")]
for path in (other, one):
    engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
    found.append(engine.collective_rpc("rlfleet_checksum"))
print("result", json.dumps([[each["checksum"] for each in ranks] for ranks in found]))
"""
)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Any]:
    return dict(output_of(_TENSORS))


@pytest.mark.parametrize(
    "what", ["again", "by its layout", "of the order of parameters", "in pieces"]
)
def test_the_same_weights_have_one_checksum(tensors: dict[str, Any], what: str) -> None:
    assert tensors[what]


def test_a_checksum_does_not_change_the_weights(tensors: dict[str, Any]) -> None:
    assert tensors["unchanged"]


@pytest.mark.parametrize(
    "what",
    [
        "two that changed places",
        "one bit",
        "the sign of nothing",
        "another name",
        "swapped names",
        "empty",
    ],
)
def test_other_weights_have_another(tensors: dict[str, Any], what: str) -> None:
    assert not tensors[what]


def test_weights_of_every_type_have_distinct_checksums(tensors: dict[str, Any]) -> None:
    assert tensors["kinds"] >= 6  # ones of some types are the same bits in as many bytes


@pytest.mark.long
def test_the_engines_model_is_recognised_when_it_has_its_weights_again(weights: Weights) -> None:
    one, other, again = output_of(_MODEL, str(weights.a), str(weights.b))

    assert one == again != other
    assert all(len(checksum) == 64 for checksum in one)

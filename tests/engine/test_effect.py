"""The effect of a load, compared by the real torch, and by the real engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.engine.scripts import ENGINE, LOADS, output_of

pytestmark = pytest.mark.xdist_group("effect")
_PARAMETERS = """
import json
from types import SimpleNamespace
import torch
from fleet_worker.engine.parameters import Memory
from fleet_worker.engine.effect import combined

CONFIG = SimpleNamespace(parallel_config=SimpleNamespace(enable_eplb=False))

def model(**tensors):
    made = torch.nn.Module()
    for name, tensor in tensors.items():
        made.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return made

def effect(made, change, *, config=CONFIG, sample=1 << 18):
    memory = Memory(made, config, sample=sample)
    change(made)
    seen = combined([memory.compared(made)])
    return [seen.changed_share, seen.unchanged, seen.compared_elements, seen.elements, seen.why_not]

def nothing(made):
    pass

def step(size):
    def change(made):
        made.w.data.copy_((made.w.float() + size).to(made.w.dtype))
    return change

def flip(name, place):
    def change(made):
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[getattr(made, name).element_size()]
        getattr(made, name).data.view(-1).view(bits)[place] ^= 1
    return change

def share(part):
    def change(made):
        made.w.data.view(-1)[: int(made.w.numel() * part)] += 1
    return change

ones = lambda kind: model(w=torch.ones(64, 32).to(kind), b=torch.ones(5))
large = lambda: model(w=torch.zeros(3000, 1000), b=torch.zeros(7))
found = {}
for kind in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8):
    found["nothing " + str(kind)] = effect(ones(kind), nothing)
    found["one bit " + str(kind)] = effect(ones(kind), flip("w", 11))
found["vanishes"] = effect(ones(torch.bfloat16), step(1e-4))
found["does not vanish"] = effect(ones(torch.bfloat16), step(1e-2))
found["vanishes in 8 bits"] = effect(ones(torch.float8_e4m3fn), step(1e-2))
found["a quarter"] = effect(large(), share(0.25), sample=1 << 16)
found["one of millions"] = effect(large(), flip("w", 1234567), sample=1 << 10)
found["a small one"] = effect(large(), flip("b", 3), sample=1 << 10)
found["turned round"] = effect(model(w=torch.ones(8, 4).t()), nothing)
found["with gaps"] = effect(model(w=torch.ones(8, 6)[:, :4]), nothing)
found["packed away"] = effect(model(w=torch.ones(4), x=torch.empty(0)), nothing)
found["packed away, changed"] = effect(model(w=torch.ones(4), x=torch.empty(0)), flip("w", 0))

def other_shape(made):
    made.w = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
found["other shape"] = effect(model(w=torch.ones(4)), other_shape)

def other_storage(made):
    made.w = torch.nn.Parameter(made.w.data.clone(), requires_grad=False)
found["other memory"] = effect(model(w=torch.ones(4)), other_storage)

padded = model(w=torch.ones(4))
experts = model(w13_weight=torch.ones(6))
experts.moe_config = SimpleNamespace(hidden_dim=8, hidden_dim_unpadded=6)
padded.experts = experts
found["padded experts"] = effect(padded, nothing)
experts.moe_config = SimpleNamespace(hidden_dim=8, hidden_dim_unpadded=8)
found["experts"] = effect(padded, nothing)
balanced = SimpleNamespace(parallel_config=SimpleNamespace(enable_eplb=True))
found["rebalanced"] = effect(ones(torch.float32), step(1), config=balanced)
scales = model(w=torch.ones(4))
scales.attn = model(_k_scale=torch.ones(()), v_scale=torch.ones(()))
def calibrate(made):
    made.attn.v_scale.data.fill_(3)
found["found out"] = effect(scales, calibrate)
print("result", json.dumps(found))
"""

_MODEL = (
    ENGINE
    + LOADS
    + """
import json
from fleet_worker.engine.effect import combined
found = []
for path in (one, other, other, one):
    (answer,) = engine.collective_rpc("rlfleet_load", kwargs=load_of(path))
    assert answer["ok"], answer
    seen = combined(engine.collective_rpc("rlfleet_effect"))
    found.append([seen.changed_share, seen.unchanged, seen.compared_elements, seen.why_not])
print("result", json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def parameters() -> dict[str, list[Any]]:
    return dict(json.loads(json.dumps(output_of(_PARAMETERS))))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_a_change_of_one_bit_is_found_in_every_type(
    parameters: dict[str, list[Any]], kind: str
) -> None:
    assert parameters[f"nothing torch.{kind}"] == [0.0, True, 2053, 2053, ""]
    share, unchanged, *_ = parameters[f"one bit torch.{kind}"]
    assert (share, unchanged) == (1 / 2053, False)


def test_an_update_that_vanishes_at_the_served_precision_is_unchanged(
    parameters: dict[str, list[Any]],
) -> None:
    assert parameters["vanishes"][:2] == [0.0, True]
    assert parameters["vanishes in 8 bits"][:2] == [0.0, True]
    assert parameters["does not vanish"][:2] == [2048 / 2053, False]


def test_a_large_model_is_sampled_and_the_share_comes_out(
    parameters: dict[str, list[Any]],
) -> None:
    share, unchanged, looked_at, elements, why_not = parameters["a quarter"]

    assert share == pytest.approx(0.25, abs=0.01)
    assert not unchanged
    assert (1 << 16) - 2 <= looked_at <= (1 << 16) + 64
    assert (elements, why_not) == (3_000_007, "")


def test_one_bit_that_no_sample_holds_is_still_a_change(
    parameters: dict[str, list[Any]],
) -> None:
    assert parameters["one of millions"][1] is False
    assert parameters["a small one"][1] is False
    assert parameters["a small one"][0] > 0


def test_incomparable_parameters_are_neither_equal_nor_different(
    parameters: dict[str, list[Any]],
) -> None:
    for name, words in {
        "with gaps": "gaps",
        "packed away": "kernel's own format",
        "other shape": "another type, shape",
        "padded experts": "padded experts",
        "rebalanced": "rebalancing",
    }.items():
        share, unchanged, *_, why_not = parameters[name]
        assert (share, unchanged) == (None, False), name
        assert words in why_not, name


def test_a_visible_change_is_reported_with_the_parameters_that_cannot_be_compared(
    parameters: dict[str, list[Any]],
) -> None:
    share, unchanged, _, elements, why_not = parameters["packed away, changed"]

    assert (share, unchanged, elements) == (0.25, False, 4)
    assert "1 of 2 parameters" in why_not


def test_layout_and_place_in_memory_do_not_count_as_changes(
    parameters: dict[str, list[Any]],
) -> None:
    for name in ("turned round", "other memory", "experts", "found out"):
        assert parameters[name][:2] == [0.0, True], name


@pytest.mark.long
def test_a_real_load_reports_what_it_changed_and_claims_nothing_of_what_it_cannot_see(
    weights: Weights,
) -> None:
    again, other, same, back = output_of(_MODEL, str(weights.a), str(weights.b))

    for share, unchanged, looked_at, _ in (other, back):
        assert 0.5 < share <= 1
        assert not unchanged
        assert looked_at > 1000
    for share, unchanged, _, why_not in (again, same):
        # Where oneDNN packs the linear layers, what is seen is equal, and the rest is not seen.
        packed = "kernel's own format" in why_not
        assert (share, unchanged) == ((None, False) if packed else (0.0, True))
        assert packed or why_not == ""

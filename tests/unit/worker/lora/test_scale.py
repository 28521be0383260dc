"""The scale of an adapter in a module, as PEFT and the engine compute it."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_worker.lora.scale import scale_of

Q0, Q1 = "model.layers.0.self_attn.q_proj", "model.layers.11.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "module", "scale"),
    [
        pytest.param({}, Q0, 2.0, id="alpha over rank"),
        pytest.param({"use_rslora": True}, Q0, 4.0, id="over the root of the rank"),
        pytest.param({"rank_pattern": {"q_proj": 2}}, Q0, 4.0, id="a rank of its own"),
        pytest.param({"alpha_pattern": {"q_proj": 1}}, Q0, 0.25, id="an alpha of its own"),
        pytest.param(
            {"rank_pattern": {"q_proj": 16}, "alpha_pattern": {"q_proj": 4}, "use_rslora": True},
            Q0,
            1.0,
            id="all at once",
        ),
        pytest.param({"rank_pattern": {"v_proj": 2}}, Q0, 2.0, id="of another module"),
        pytest.param({"rank_pattern": {"proj": 2}}, Q0, 2.0, id="a name begins after a dot"),
        pytest.param({"rank_pattern": {"self_attn": 2}}, Q0, 2.0, id="a name goes to the end"),
        pytest.param({"rank_pattern": {"1.self_attn.q_proj": 2}}, Q1, 2.0, id="11 is not 1"),
        pytest.param({"rank_pattern": {Q0: 2}}, Q0, 4.0, id="the whole name"),
        pytest.param(
            {"rank_pattern": {r"layers\.\d+\.self_attn\.q_proj": 2}}, Q1, 4.0, id="an expression"
        ),
        pytest.param({"rank_pattern": {"q_proj": 2, Q0: 8}}, Q0, 4.0, id="the first one that fits"),
        pytest.param({"rank_pattern": None, "alpha_pattern": {}}, Q0, 2.0, id="no patterns"),
    ],
)
def test_a_module_has_the_scale_that_peft_computes(
    config: dict[str, Any], module: str, scale: float
) -> None:
    assert scale_of({"r": 4, "lora_alpha": 8} | config, module) == scale

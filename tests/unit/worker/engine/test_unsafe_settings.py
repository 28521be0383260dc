"""Settings of vLLM under which a swap would leave something of the old weights.

The configuration is a fake here; `tests/engine/test_engine_contract.py` has vLLM make real ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_worker.engine import vllm_facts
from fleet_worker.engine.required_names import UnsupportedEngineError
from fleet_worker.engine.vllm_facts import unsafe_settings


def configuration(**changed: Any) -> SimpleNamespace:
    """vLLM's configuration without any flag, except for the given values."""
    usual = {
        "kv_transfer_config": None,
        "ec_transfer_config": None,
        "ec_manager_config": SimpleNamespace(encoder_cache_manager_cls=None),
        "parallel_config": SimpleNamespace(enable_eplb=False),
        "offload_config": offload(),
    }
    return SimpleNamespace(**(usual | changed))


def connector(name: str | None, module: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(kv_connector=name, kv_connector_module_path=module)


def offload(group_size: int = 0, gigabytes: float = 0) -> SimpleNamespace:
    return SimpleNamespace(
        prefetch=SimpleNamespace(offload_group_size=group_size),
        uva=SimpleNamespace(cpu_offload_gb=gigabytes),
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"kv_transfer_config": connector(None)},
        {"kv_transfer_config": connector("OffloadingConnector")},
        {"kv_transfer_config": connector("SimpleCPUOffloadConnector")},
        {"ec_transfer_config": SimpleNamespace(ec_connector=None)},
    ],
)
def test_settings_that_keep_nothing_of_old_weights_pass(changed: dict[str, Any]) -> None:
    assert unsafe_settings(configuration(**changed)) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kv_transfer_config": connector("LMCacheMPConnector")}, "LMCacheMPConnector"),
        ({"kv_transfer_config": connector("NixlConnector")}, "NixlConnector"),
        ({"kv_transfer_config": connector("OffloadingConnector", "theirs")}, "OffloadingConnector"),
        ({"ec_transfer_config": SimpleNamespace(ec_connector="ECExampleConnector")}, "ECExample"),
        (
            {"ec_manager_config": SimpleNamespace(encoder_cache_manager_cls="theirs.Manager")},
            "theirs.Manager",
        ),
        ({"parallel_config": SimpleNamespace(enable_eplb=True)}, "enable_eplb"),
        ({"offload_config": offload(group_size=8)}, "offload_group_size is 8"),
        ({"offload_config": offload(gigabytes=0.5)}, "cpu_offload_gb is 0.5"),
    ],
)
def test_a_setting_that_keeps_something_of_old_weights_is_refused_with_a_remedy(
    changed: dict[str, Any], named: str
) -> None:
    (sentence,) = unsafe_settings(configuration(**changed))

    assert named in sentence
    assert "remove" in sentence


@pytest.mark.parametrize(
    "field",
    [
        "kv_transfer_config",
        "ec_transfer_config",
        "ec_manager_config",
        "parallel_config",
        "offload_config",
    ],
)
def test_a_vllm_that_moved_a_setting_is_refused(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_facts, "supported_range", lambda: "<0.34,>=0.32")
    config = configuration()
    delattr(config, field)
    with pytest.raises(UnsupportedEngineError, match=field):
        unsafe_settings(config)

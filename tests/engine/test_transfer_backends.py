"""vLLM's own transfer engines on a machine without a GPU: up to the engine's door.

The worker starts and serves with each of them, and says that a transfer needs an accelerator. Not
played: a transfer itself, which needs GPUs on both sides; `sharded_rdt` and `modelexpress`, which vLLM
does not start without Ray and NIXL, or without a package of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.conftest import Weights
from tests.support.builders import build_pod
from tests.support.trainer import Trainer
from tests.support.worker import WorkerProcess

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.observed import FleetObserved


def options_of(backend: str) -> list[str]:
    """The options that a fleet with this backend gives its workers, as its pods have them."""
    weights = {"roots": ["/w"], "management": "External", "transfer": {"backend": backend}}
    model = {"name": "m", "source": {"path": "/models/base"}}
    spec = FleetSpec.model_validate({"model": model, "weights": weights})
    fleet = FleetObserved(name="policy", namespace="rl", uid="u", generation=1, spec=spec)
    arguments = build_pod(fleet, 0, "image", revision="")["spec"]["containers"][0]["args"]
    own = ("--weights-management", "--weight-transfer-backend")
    return [f"{option}={arguments[arguments.index(option) + 1]}" for option in own]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["nccl", "sparse_nccl", "nccl_m2n"])
def test_a_worker_serves_with_a_backend_and_says_that_a_transfer_needs_a_gpu(
    backend: str, weights: Weights, tmp_path: Path
) -> None:
    with WorkerProcess(
        tmp_path, model=weights.a, roots=[weights.root], options=options_of(backend)
    ) as worker:
        worker.wait_until_up()
        worker.must("admit", version="base")
        with Trainer(worker) as trainer:
            config = trainer.must_get("/server_info?config_format=json")["vllm_config"]
            reply = trainer.post("/init_weight_transfer_engine", init_info={"world_size": 2})

        assert config["weight_transfer_config"] == {"backend": backend}
        assert reply.status_code == 409
        assert "NotAvailable" in reply.text
        assert worker.state()["phase"] == "serving"

"""Each import contract of pyproject.toml is seen broken. `make lint` shows that the sources keep them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}
FOLDERS = {
    "fleet_api": "operator",
    "fleet_collector": "operator",
    "fleet_operator": "operator",
    "fleet_worker": "worker",
    "rlfleet": "client",
    "rlfleet_resources": "client",
}
"""Package → its source root."""

BREACHES = [
    (
        "operator-layers",
        "fleet_operator/core/percentages.py",
        "import fleet_operator.runtime.epochs",
    ),
    ("operator-layers", "fleet_operator/core/percentages.py", "import fleet_operator.ports"),
    ("operator-layers", "fleet_operator/api/fleet.py", "import fleet_operator.core.percentages"),
    ("operator-layers", "fleet_operator/errors.py", "import fleet_operator.ports"),
    ("operator-layers", "fleet_operator/stray.py", ""),
    ("operator-core-is-pure", "fleet_operator/core/strategies/choice.py", "import time"),
    ("operator-core-is-pure", "fleet_operator/core/percentages.py", "import kopf"),
    ("operator-core-is-pure", "fleet_operator/core/percentages.py", "from pydantic import Field"),
    ("kopf-in-triggers", "fleet_operator/runtime/store.py", "import kopf"),
    ("kopf-in-triggers", "fleet_operator/runtime/main.py", "from kopf import on"),
    (
        "api-calls-in-clients",
        "fleet_operator/runtime/lease.py",
        "from kubernetes.aio import client",
    ),
    ("api-calls-in-clients", "fleet_operator/runtime/dispatch.py", "import aiohttp"),
    (
        "clients-behind-ports",
        "fleet_operator/runtime/dispatch.py",
        "import fleet_operator.clients.kube",
    ),
    ("opentelemetry-in-tracing", "fleet_operator/runtime/dispatch.py", "import opentelemetry"),
    (
        "operator-knows-the-protocol",
        "fleet_operator/api/volumes.py",
        "import fleet_worker.lifecycle.states",
    ),
    (
        "operator-knows-the-protocol",
        "fleet_operator/core/manifests/pods.py",
        "from fleet_worker import errors",
    ),
    ("api-layers", "fleet_api/ttl_cache.py", "import fleet_api.calls"),
    ("api-layers", "fleet_api/stray.py", ""),
    ("api-decides-nothing", "fleet_api/state.py", "import fleet_operator.core.percentages"),
    ("api-decides-nothing", "fleet_api/main.py", "import fleet_operator.runtime.store"),
    ("api-decides-nothing", "fleet_api/workers.py", "import fleet_worker.trainer.dynamo"),
    ("operator-knows-the-protocol", "fleet_operator/errors.py", "import fleet_api.problems"),
    ("collector-layers", "fleet_collector/plan.py", "import fleet_collector.volume"),
    ("collector-stands-apart", "fleet_collector/main.py", "import fleet_operator.core.identity"),
    ("collector-plans-purely", "fleet_collector/plan.py", "import time"),
    (
        "worker-knows-no-operator",
        "fleet_worker/protocol/__init__.py",
        "import fleet_operator.errors",
    ),
    ("worker-layers", "fleet_worker/protocol/__init__.py", "import fleet_worker.errors"),
    ("worker-layers", "fleet_worker/lifecycle/states.py", "import fleet_worker.admin.api"),
    ("worker-layers", "fleet_worker/engine/port.py", "import fleet_worker.lora.slots"),
    ("worker-layers", "fleet_worker/gateway/gate.py", "import fleet_worker.trainer.driver"),
    ("worker-layers", "fleet_worker/stray.py", ""),
    (
        "worker-has-no-circle",
        "fleet_worker/checkpoint/format.py",
        "import fleet_worker.checkpoint.opening",
    ),
    ("vllm-behind-its-port", "fleet_worker/lifecycle/agent.py", "import fleet_worker.engine.vllm"),
    ("worker-ports-are-free", "fleet_worker/engine/port.py", "import fleet_worker.engine.limits"),
    (
        "worker-decisions-are-pure",
        "fleet_worker/lifecycle/authority.py",
        "from datetime import datetime",
    ),
    ("worker-decisions-are-pure", "fleet_worker/provenance/spans.py", "import asyncio"),
    ("engine-libraries-in-six-modules", "fleet_worker/lifecycle/agent.py", "import vllm"),
    ("engine-libraries-in-six-modules", "fleet_worker/engine/port.py", "import torch"),
    ("engine-libraries-in-six-modules", "fleet_worker/audit/judge.py", "import torch.nn"),
    (
        "engine-libraries-in-six-modules",
        "fleet_operator/core/manifests/pods.py",
        "import safetensors",
    ),
    (
        "stagers-are-small",
        "fleet_worker/checkpoint/pairs.py",
        "import fleet_worker.checkpoint.mapping",
    ),
    (
        "stagers-ask-stores",
        "fleet_worker/checkpoint/places.py",
        "import fleet_worker.checkpoint.object_requests",
    ),
    ("audit-stands-apart", "fleet_worker/audit/judge.py", "import fleet_worker.provenance.spans"),
    ("operator-knows-the-protocol", "fleet_operator/core/manifests/pods.py", "import rlfleet"),
    ("worker-knows-no-operator", "fleet_worker/lifecycle/authority.py", "import rlfleet.errors"),
    ("resources-stand-alone", "rlfleet_resources/reasons.py", "import rlfleet.errors"),
    ("resources-stand-alone", "rlfleet_resources/reasons.py", "import fleet_worker.protocol"),
    ("resources-stand-alone", "rlfleet_resources/reasons.py", "import time"),
    ("client-stands-apart", "rlfleet/resources.py", "import fleet_operator.api.weights"),
    ("client-stands-apart", "rlfleet/sampling.py", "import fleet_worker.protocol"),
    ("client-stands-apart", "rlfleet/callback.py", "import torch"),
    ("client-stands-apart", "rlfleet/kube.py", "import kubernetes"),
    ("client-layers", "rlfleet/async_weights.py", "import rlfleet.weights"),
    ("client-layers", "rlfleet/follow.py", "import rlfleet.kube"),
    ("client-layers", "rlfleet/stray.py", ""),
    ("client-core-is-pure", "rlfleet/rollout.py", "import time"),
    ("client-core-is-pure", "rlfleet/metrics.py", "import httpx"),
]


def test_a_breach_of_a_contract_is_reported(tmp_path: Path) -> None:
    for folder in sorted(set(FOLDERS.values())):
        no_bytecode = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=no_bytecode)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for _, file, line in BREACHES:
        with (tmp_path / FOLDERS[file.partition("/")[0]] / file).open("a") as target:
            target.write(f"\n{line}\n")

    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(f"{tmp_path}/{folder}" for folder in FOLDERS.values()),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    kept = [name for name in CONTRACTS.values() if f"{name} BROKEN" not in done.stdout]
    assert kept == [], done.stdout + done.stderr


def test_every_contract_has_a_breach() -> None:
    assert {contract for contract, _, _ in BREACHES} == set(CONTRACTS)

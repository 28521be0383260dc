"""The import contracts of pyproject.toml: kept by the sources, and broken by what they forbid."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = [
    contract["id"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
]

BREACHES = [
    ("operator-layers", "fleet_operator/core/amounts.py", "import fleet_operator.runtime.epochs"),
    ("operator-layers", "fleet_operator/core/amounts.py", "import fleet_operator.ports"),
    ("operator-layers", "fleet_operator/api/names.py", "import fleet_operator.core.amounts"),
    ("operator-layers", "fleet_operator/errors.py", "import fleet_operator.ports"),
    ("operator-layers", "fleet_operator/stray.py", ""),
    ("operator-core-is-pure", "fleet_operator/core/strategies/rolling.py", "import time"),
    ("operator-core-is-pure", "fleet_operator/core/amounts.py", "import kopf"),
    ("operator-core-is-pure", "fleet_operator/core/amounts.py", "from pydantic import Field"),
    ("kopf-in-triggers", "fleet_operator/runtime/store.py", "import kopf"),
    ("kopf-in-triggers", "fleet_operator/runtime/main.py", "from kopf import on"),
    ("clients-in-adapters", "fleet_operator/runtime/lease.py", "from kubernetes.aio import client"),
    ("clients-in-adapters", "fleet_operator/runtime/calls.py", "import aiohttp"),
    (
        "adapters-behind-ports",
        "fleet_operator/runtime/calls.py",
        "import fleet_operator.adapters.kube",
    ),
    (
        "operator-knows-the-protocol",
        "fleet_operator/api/source.py",
        "import fleet_worker.core.flags",
    ),
    ("operator-knows-the-protocol", "fleet_operator/core/pods.py", "from fleet_worker import core"),
    (
        "worker-knows-no-operator",
        "fleet_worker/protocol/__init__.py",
        "import fleet_operator.errors",
    ),
    ("worker-layers", "fleet_worker/protocol/__init__.py", "import fleet_worker.core.flags"),
    ("worker-layers", "fleet_worker/core/flags.py", "import fleet_worker.runtime.logs"),
    ("worker-layers", "fleet_worker/runtime/agent.py", "import fleet_worker.wire.asgi"),
    ("worker-core-is-pure", "fleet_worker/core/fencing.py", "from datetime import datetime"),
    ("engine-in-adapters", "fleet_worker/runtime/agent.py", "import vllm"),
    ("engine-in-adapters", "fleet_worker/audit/judge.py", "import torch.nn"),
    ("engine-in-adapters", "fleet_operator/core/pods.py", "import safetensors"),
    ("audit-stands-apart", "fleet_worker/audit/judge.py", "import fleet_worker.core.spans"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for folder in ("operator", "worker"):
        no_bytecode = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=no_bytecode)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def lint(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{root}/operator:{root}/worker"}
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sources_keep_every_contract(copy: Path) -> None:
    done = lint(copy)

    assert done.returncode == 0, done.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("contract", "file", "line"), BREACHES, ids=[f"{file}: {line}" for _, file, line in BREACHES]
)
def test_a_contract_is_broken_by(copy: Path, contract: str, file: str, line: str) -> None:
    package = copy / ("operator" if file.startswith("fleet_operator") else "worker")
    target = package / file
    before = target.read_text() if target.exists() else None
    target.write_text(f"{before or ''}\n{line}\n")
    try:
        done = lint(copy, "--contract", contract)
    finally:
        target.unlink() if before is None else target.write_text(before)

    assert done.returncode == 1, done.stdout + done.stderr


def test_every_contract_is_seen_broken() -> None:
    assert {contract for contract, _, _ in BREACHES} == set(CONTRACTS)

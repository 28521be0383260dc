"""The published CRD of InferencePool, installed for a part of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from tests.cluster.support.stage import FLEET, Json, Stage

FILE = Path(__file__).parents[2] / "contract/recorded/inferencepools_1.0.0.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOLS = "/apis/inference.networking.k8s.io/v1"
POOL = {"endpointPickerRef": {"name": "policy-epp"}}


@asynccontextmanager
async def installed_pools(stage: Stage) -> AsyncIterator[None]:
    """Installs the CRD, and waits at the end until it is gone with all pools."""
    crd = yaml.safe_load(FILE.read_text())
    path = f"{CRDS}/{crd['metadata']['name']}"
    await stage.admin.create(CRDS, crd)
    try:
        yield
    finally:
        await stage.admin.delete(path)

        async def gone() -> bool:
            return await stage.admin.get(path) is None

        await stage.until(gone, "the CRD is gone")


async def pool_of(stage: Stage) -> Json | None:
    """The fleet's pool, if there is one."""
    return (await stage.objects("inferencepools", root=POOLS)).get(FLEET)

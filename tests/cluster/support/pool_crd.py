"""The published CRD of InferencePool, installed for a part of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from tests.cluster.support.workspace import FLEET, Json, Workspace

FILE = Path(__file__).parents[2] / "contract/recorded/inferencepools_1.0.0.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOLS = "/apis/inference.networking.k8s.io/v1"
POOL = {"endpointPickerRef": {"name": "policy-epp"}}


@asynccontextmanager
async def installed_pools(workspace: Workspace) -> AsyncIterator[None]:
    """Installs the CRD, and waits at the end until it is gone with all pools."""
    crd = yaml.safe_load(FILE.read_text())
    path = f"{CRDS}/{crd['metadata']['name']}"
    await workspace.admin.create(CRDS, crd)
    try:
        yield
    finally:
        await workspace.admin.delete(path)

        async def gone() -> bool:
            return await workspace.admin.get(path) is None

        await workspace.until(gone, "the CRD is gone")


async def pool_of(workspace: Workspace) -> Json | None:
    """The fleet's pool, if there is one."""
    return (await workspace.objects("inferencepools", root=POOLS)).get(FLEET)

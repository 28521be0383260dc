"""A watch that delivers nothing any more, for example behind a proxy, hides a change for at most 30 s."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

from fleet_operator.runtime.child_watch import FOLLOWED
from rlfleet.follow import follow
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import load_access

LIMIT_SECONDS = 30
SPARE_SECONDS = 2
"""For the work after the new watch has begun, on a busy machine."""


@pytest.mark.long  # tests/unit has a silent stream of each client, on a clock that jumps
async def test_each_silent_watch_is_replaced_in_time(workspace: Workspace, tmp_path) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    seen: set[str] = set()
    kubeconfig = operator.proxy.kubeconfig(tmp_path, workspace.release.token)
    access = load_access(kubeconfig=kubeconfig, namespace=workspace.namespace)
    client = AsyncKube(access, "trainer")
    following = asyncio.create_task(note_versions(client, seen))

    async def has_seen(version: str) -> bool:
        return version in seen

    await workspace.until(lambda: has_seen("1"), "the client follows")
    quiet = operator.log_size
    clock = asyncio.get_running_loop().time

    muted, at = operator.proxy.mute_watches(), clock()
    before = len(operator.proxy.requests)
    await workspace.publish("2")
    published = clock()
    await workspace.applied("2", replicas=2, seconds=LIMIT_SECONDS + SPARE_SECONDS)
    try:
        left = LIMIT_SECONDS + SPARE_SECONDS - (clock() - published)
        await workspace.until(lambda: has_seen("2"), "the client sees version 2", seconds=left)
    finally:
        following.cancel()
        await asyncio.wait([following])
        await client.close()

    collections = {f"{GROUP}/inferencefleets", f"{GROUP}/weightversions"}
    collections |= {f"{root}/{plural}" for root, plural in FOLLOWED} | {"/api/v1/pods"}
    assert muted >= collections
    again = {
        path: min(
            (r.at for r in operator.proxy.requests[before:] if r.watches and r.path == path),
            default=float("inf"),
        )
        - at
        for path in muted
    }
    assert {p: seconds for p, seconds in again.items() if seconds > LIMIT_SECONDS} == {}
    assert "WARNING" not in operator.said(since=quiet)


@pytest.mark.parametrize(
    "path", [f"{GROUP}/weightversions", "/api/v1/pods"], ids=["custom resources", "pods"]
)
async def test_the_server_ends_a_quiet_watch_at_its_time(workspace: Workspace, path: str) -> None:
    """It may send no bookmark before, if nothing of the kind has changed."""
    page = await workspace.admin.get(f"{path}?limit=1")
    assert page is not None
    params = {
        "resourceVersion": page["metadata"]["resourceVersion"],
        "allowWatchBookmarks": "true",
        "labelSelector": "nothing=has-this",
        "timeoutSeconds": "5",
    }
    begun = asyncio.get_running_loop().time()

    kinds = {event["type"] async for event in workspace.admin.watch(path, params)}

    assert kinds <= {"BOOKMARK"}
    assert 4 < asyncio.get_running_loop().time() - begun < 5 + SPARE_SECONDS


async def note_versions(client: AsyncKube, seen: set[str]) -> None:
    """The desired versions of the fleet's WeightVersion."""
    async with aclosing(follow(client, FLEET)) as events:
        async for event in events:
            seen.add(event.weights.spec.version)

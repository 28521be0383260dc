"""Creates many copies of an object, or changes some all the time, in a process of its own, so that it does not slow
the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.cluster.support.admin import Json
from tests.cluster.support.workspace import Workspace

AT_ONCE = 10
_PROGRAM = """
import asyncio, base64, json, ssl, sys, aiohttp
plan = json.load(sys.stdin)
config = json.load(open(plan["kubeconfig"]))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
left = iter(range(plan["number"]))
async def some(http):
    for n in left:
        path = plan["paths"][n % len(plan["paths"])]
        body, method, kind = plan["body"], "POST", "application/json"
        own = {"name": f"flood-{n}"}
        if changes := plan["changes"]:
            round = n // len(plan["paths"])
            body, method, kind = changes[round % len(changes)], "PATCH", "application/merge-patch+json"
            own = {"annotations": {"n": str(n)}}
        data = json.dumps(body | {"metadata": body.get("metadata", {}) | own}).encode()
        headers = {"Content-Type": kind}
        async with http.request(method, cluster["server"] + path, data=data, headers=headers, ssl=tls) as reply:
            if reply.status >= 300:
                sys.exit(await reply.text())
        print(flush=True) if n == 0 else None
async def main():
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {user['token']}"}) as http:
        await asyncio.gather(*(some(http) for _ in range(plan["at_once"])))
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def flooded(
    workspace: Workspace,
    paths: Sequence[str],
    body: Json | None,
    *,
    number: int,
    changes: Sequence[Json] = ({},),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """While this lasts, copies of an object are created, in turn at each of the paths. Without one, the objects of
    these paths get the changes, each with another annotation, one after the other. Yields the process once it has
    begun. It ends by itself after the last request.
    """
    plan: dict[str, Any] = {
        "kubeconfig": str(workspace.cluster.kubeconfig),
        "paths": [*paths],
        "body": body,
        "changes": None if body else [*changes],
        "number": number,
        "at_once": AT_ONCE,
    }
    flood = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", _PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert flood.stdin is not None
    assert flood.stdout is not None
    flood.stdin.write(json.dumps(plan).encode())
    flood.stdin.close()
    try:
        await flood.stdout.readline()  # a start of Python takes seconds on a busy machine
        yield flood
        assert flood.returncode in {None, 0}, "the flood was refused"
    finally:
        if flood.returncode is None:
            flood.kill()
        await flood.wait()


async def everything(
    workspace: Workspace, paths: Sequence[str], body: Json, *, number: int
) -> None:
    """Create all of it."""
    async with flooded(workspace, paths, body, number=number) as flood:
        assert await flood.wait() == 0

"""The RL API as a process of its own, with the chart's account, on a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from tests.cluster.support.operator_process import KEPT
from tests.cluster.support.workspace import FLEET, Workspace
from tests.cluster.test_operator_chart import NAMESPACE, Rendered
from tests.support.waiting import eventually_async

from devcluster import Cluster
from free_ports import free_port

ROOT = Path(__file__).parents[3]
ACCOUNT = "rlfleet-api"
PARTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")


@pytest.fixture(scope="module")
def rl_api_chart(devcluster_api: Cluster) -> Rendered:
    return Rendered(devcluster_api, "api.enabled=true")


class RlApi:
    """The process, and requests to the fleet of a workspace."""

    def __init__(
        self,
        workspace: Workspace,
        http: aiohttp.ClientSession,
        port: int,
        kubeconfig: Path,
        process: asyncio.subprocess.Process,
    ) -> None:
        self.workspace = workspace
        self.kubeconfig = kubeconfig
        self.port = port
        self.process = process
        self._http = http
        self._root = f"http://127.0.0.1:{port}"

    async def send(
        self, method: str, path: str, token: str, body: Any = None
    ) -> tuple[int, dict[str, Any]]:
        url = f"{self._root}/fleets/{self.workspace.namespace}/{FLEET}{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._http.request(method, url, json=body, headers=headers) as reply:
            return reply.status, await reply.json(content_type=None)

    async def is_live(self) -> bool:
        try:
            async with self._http.get(f"{self._root}/livez") as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    async def _until_it_may(self, name: str, namespace: str, verb: str) -> None:
        """The API server learns of a new binding by a watch, and this API keeps a refusal for 5 s."""
        account = f"--as=system:serviceaccount:{namespace}:{name}"
        asked = ("-n", namespace, "auth", "can-i", verb, "weightversions.rlfleet.dev", account)

        async def may() -> bool:
            kubectl = self.workspace.cluster.kubectl
            return (await asyncio.to_thread(kubectl, *asked, check=False)).returncode == 0

        await eventually_async(may)

    async def account(self, name: str, namespace: str, *verbs: str) -> str:
        """A token of a new service account with these rights on WeightVersions, and `get` on fleets."""
        kubectl = self.workspace.cluster.kubectl
        call = ("-n", namespace, "create")
        await asyncio.to_thread(kubectl, *call, "serviceaccount", name)
        for role, resource, granted in (
            (f"{name}-fleet", "inferencefleets", ("get",)),
            (name, "weightversions", verbs),
        ):
            rights = (f"--verb={','.join(granted)}", f"--resource={resource}.rlfleet.dev")
            await asyncio.to_thread(kubectl, *call, "role", role, *rights)
            bound = (f"--role={role}", f"--serviceaccount={namespace}:{name}")
            await asyncio.to_thread(kubectl, *call, "rolebinding", role, *bound)
        await self._until_it_may(name, namespace, verbs[-1])
        made = await asyncio.to_thread(kubectl, *call, "token", name, "--audience=rlfleet")
        return made.stdout.strip()


@pytest_asyncio.fixture(loop_scope="session")
async def api(workspace: Workspace, rl_api_chart: Rendered, tmp_path: Path) -> AsyncIterator[RlApi]:
    parts = [
        o for o in rl_api_chart.objects if o["kind"] in PARTS and ACCOUNT in o["metadata"]["name"]
    ]
    file = tmp_path / "account.yaml"
    file.write_text(yaml.safe_dump_all(parts))
    kubectl = workspace.cluster.kubectl
    await asyncio.to_thread(kubectl, "-n", NAMESPACE, "apply", "-f", str(file))
    token = (
        await asyncio.to_thread(kubectl, "-n", NAMESPACE, "create", "token", ACCOUNT)
    ).stdout.strip()
    port = free_port()
    async with aiohttp.ClientSession() as http:
        kubeconfig = tmp_path / "kubeconfig-of-the-rl-api"
        workspace.write_kubeconfig(kubeconfig, token)
        environment = {k: os.environ[k] for k in KEPT if k in os.environ} | {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT}/client:{ROOT}/operator:{ROOT}/worker",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = (sys.executable, "-P", "-m", "fleet_api", "--host=127.0.0.1", f"--port={port}")
        process = await asyncio.create_subprocess_exec(
            *command, "--drain-seconds=0", env=environment, stderr=asyncio.subprocess.PIPE
        )
        made = RlApi(workspace, http, port, kubeconfig, process)
        await eventually_async(made.is_live, within_seconds=30)
        yield made
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
        lines = [json.loads(line) for line in log.decode().splitlines()]
        assert [line for line in lines if line["level"] == "ERROR"] == []

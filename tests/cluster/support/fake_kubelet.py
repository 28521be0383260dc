"""A node that is there for the API server and the scheduler, and runs fake workers for containers.

It writes a kubelet's part of the status: addresses, container states, readiness. The real scheduler
binds pods, the real controllers delete them, and this ends them. Each pod has an address of the
loopback network; endpoints of Services cannot hold such, so their controller reports errors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

from tests.cluster.support.admin import Admin, ApiError, Json
from tests.cluster.support.fake_admin_port import TICK_SECONDS, FakeAdminPort
from tests.model.fake_worker import FakeWorker

from fleet_worker import protocol
from rlfleet_resources import names

HELD_SECONDS = 600.0
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500"}
HEARTBEAT_SECONDS = 2.5
"""As the kubelets of the dev cluster. After 12 s without one, the node and its pods count as lost."""


class FakeKubelet:
    """One node. Fields: ports: admin ports of running workers by pod name."""

    def __init__(self, admin: Admin, *, engine_start_seconds: float = 0.2) -> None:
        self.node = f"fake-{secrets.token_hex(4)}"
        self.ports: dict[str, FakeAdminPort] = {}
        self.slow_seconds = 0.0
        self.bad_sources: set[str] = set()
        self._admin = admin
        self._starts_in = engine_start_seconds
        self._pods: dict[str, Json] = {}
        self._shown: dict[str, Json] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._network = secrets.randbelow(200) + 20
        self._addresses = 0

    async def __aenter__(self) -> Self:
        await self._admin.create("/api/v1/nodes", self._node())
        await self._beat()
        running = (self._heartbeat(), self._watch(), self._run())
        self._tasks = [asyncio.create_task(part) for part in running]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._tasks, *self._work.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._work.values(), return_exceptions=True)
        for pod in list(self._pods.values()):
            await self._end(pod)
        await self._admin.delete(f"/api/v1/nodes/{self.node}")

    def worker(self, pod: str) -> FakeWorker:
        """The worker that runs in a pod."""
        return self.ports[pod].worker

    @property
    def workers(self) -> list[FakeWorker]:
        """All workers that run, by name."""
        return [port.worker for _, port in sorted(self.ports.items())]

    def workers_in(self, namespace: str) -> list[FakeWorker]:
        """The workers of one namespace, by name."""
        uids = [u for u, p in self._pods.items() if p["metadata"]["namespace"] == namespace]
        return [worker for worker in self.workers if worker.uid in uids]

    async def kill(self, pod: str) -> None:
        """The container's process dies and is started again."""
        port = self.ports[pod]
        await port.close()
        await self._tell_start(port.worker, self._pods[port.worker.uid])
        port.worker.kill(_now())
        await port.open()

    # --- the node ---------------------------------------------------------------------------------

    def _node(self) -> Json:
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": self.node}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.node, "labels": labels},
        }

    async def _beat(self) -> None:
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "FakeKubelet",
            "message": "a fake kubelet of the tests",
            "lastHeartbeatTime": _time(),
            "lastTransitionTime": _time(),
        }
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}
        await self._admin.merge(f"/api/v1/nodes/{self.node}/status", {"status": status})

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with contextlib.suppress(ApiError, TimeoutError):
                await self._beat()

    # --- pods -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep `_pods` as the API server has them; list again whenever the stream ends."""
        chosen = {"fieldSelector": f"spec.nodeName={self.node}"}
        while True:
            with contextlib.suppress(Exception):
                page = await self._admin.get(
                    f"/api/v1/pods?fieldSelector={chosen['fieldSelector']}"
                )
                assert page is not None
                self._pods = {}
                for pod in page["items"]:
                    self._note(pod)
                since = {"resourceVersion": page["metadata"]["resourceVersion"]}
                async for event in self._admin.watch("/api/v1/pods", chosen | since):
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        self._pods.pop(uid, None)
                    else:
                        self._note(event["object"])
            await asyncio.sleep(0.2)

    def _note(self, pod: Json) -> None:
        """Keep a pod as the API server has it. Where another writer has changed the readiness, it is shown
        again, as a kubelet does. The node controller does so to the pods of a node that was halted.
        """
        uid = pod["metadata"]["uid"]
        self._pods[uid] = pod
        if uid in self._shown and _is_ready(pod["status"]) != _is_ready(self._shown[uid]):
            del self._shown[uid]

    async def _run(self) -> None:
        while True:
            for uid, pod in list(self._pods.items()):
                if uid not in self._work or self._work[uid].done():
                    self._work[uid] = asyncio.create_task(self._sync(pod))
            for name, port in list(self.ports.items()):
                if port.worker.uid not in self._pods:
                    await port.close()
                    del self.ports[name]
            await asyncio.sleep(TICK_SECONDS)

    async def _sync(self, pod: Json) -> None:
        metadata = pod["metadata"]
        with contextlib.suppress(ApiError, TimeoutError):
            if "deletionTimestamp" in metadata:
                await self._end(pod)
                return
            if names.LABEL_FLEET not in metadata.get("labels", {}):
                await self._run_other(pod)
                return
            port = self.ports.get(metadata["name"])
            if port is None or port.worker.uid != metadata["uid"]:
                port = await self._start(pod)
            if port is not None:
                port.worker.tick(_now())
                await self._show(pod, port)

    async def _run_other(self, pod: Json) -> None:
        """Show a pod that is not a worker as ready, such as that of a router."""
        if _is_ready(pod["status"]):
            return
        metadata = pod["metadata"]
        containers = [c["name"] for c in pod["spec"]["containers"]]
        status = _status("127.0.0.1", ready=True, restarts=0, containers=containers)
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        await self._admin.merge(path, {"metadata": {"uid": metadata["uid"]}, "status": status})

    async def _start(self, pod: Json) -> FakeAdminPort | None:
        """Start the container, once what it mounts is there."""
        metadata = pod["metadata"]
        labels, root = metadata["labels"], f"/api/v1/namespaces/{metadata['namespace']}"
        fleet = labels[names.LABEL_FLEET]
        secret = await self._admin.get(f"{root}/secrets/{names.admin_token_secret_name(fleet)}")
        if secret is None:
            return None
        worker = FakeWorker(
            metadata["uid"],
            int(labels[names.LABEL_ORDINAL]),
            labels[names.LABEL_REVISION],
            _now(),
            start_seconds=self._starts_in,
        )
        await self._tell_start(worker, pod)
        worker.start()
        worker.slow_seconds = self.slow_seconds
        worker.bad_sources = self.bad_sources
        self._addresses += 1
        address = f"127.{self._network}.{self._addresses // 250}.{self._addresses % 250 + 1}"
        token = base64.b64decode(secret["data"][names.ADMIN_TOKEN_KEY]).decode()
        (container,) = pod["spec"]["containers"]
        (number,) = (p["containerPort"] for p in container["ports"] if p["name"] == "admin")
        port = await FakeAdminPort(worker, address, number, token).open()
        self.ports[metadata["name"]] = port
        return port

    async def _tell_start(self, worker: FakeWorker, pod: Json) -> None:
        """Tell a worker what the container's variables and arguments name as weights to start on."""
        (container,) = pod["spec"]["containers"]
        arguments = container["args"]
        given: dict[str, str | None] = {
            protocol.ENV_START_RUN_ID: None,
            protocol.ENV_START_DIGEST: None,
            protocol.ENV_START_VERSION: arguments[arguments.index("--version") + 1],
            protocol.ENV_START_PATH: arguments[arguments.index("--model") + 1],
        }
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("configMapKeyRef")
            if reference is not None and variable["name"] in given:
                root = f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps"
                found = await self._admin.get(f"{root}/{reference['name']}")
                data = (found or {}).get("data", {})
                given[variable["name"]] = data.get(reference["key"], given[variable["name"]])
        worker.start_version = str(given[protocol.ENV_START_VERSION])
        worker.start_source = str(given[protocol.ENV_START_PATH])
        worker.start_run_id = given[protocol.ENV_START_RUN_ID]
        worker.start_digest = given[protocol.ENV_START_DIGEST]

    async def _show(self, pod: Json, port: FakeAdminPort) -> None:
        metadata, worker = pod["metadata"], port.worker
        ready = worker.admitted and worker.phase is not protocol.Phase.STARTING
        status = _status(port.address, ready=ready, restarts=worker.restarts)
        if self._shown.get(worker.uid) == status:
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        await self._admin.merge(path, {"metadata": {"uid": worker.uid}, "status": status})
        self._shown[worker.uid] = status

    async def _end(self, pod: Json) -> None:
        metadata = pod["metadata"]
        port = self.ports.get(metadata["name"])
        if port is not None and port.worker.uid == metadata["uid"]:
            await port.close()
            self.ports.pop(metadata["name"], None)
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        await self._admin.delete(path, **options)


def hold(workers: Sequence[FakeWorker]) -> None:
    """From now on no stage and no load of these workers ends, until `let_go`.

    A test that waits for a moment of a rollout may be halted for seconds. The moment must last as long.
    """
    for worker in workers:
        worker.slow_seconds = HELD_SECONDS


def let_stages_go(workers: Sequence[FakeWorker]) -> None:
    """End the stages that are held, and hold what comes after them."""
    for worker in workers:
        if worker.staging is not None:
            worker.staging.ends_at = worker.now


def let_go(workers: Sequence[FakeWorker], *, after_seconds: float) -> None:
    """End what is held after this time. From now on stages and loads take as long."""
    for worker in workers:
        worker.slow_seconds = after_seconds
        for ticket in (worker.staging, worker.work):
            if ticket is not None:
                ticket.ends_at = min(ticket.ends_at, _now() + after_seconds)


def _status(
    address: str,
    *,
    ready: bool,
    restarts: int,
    containers: Sequence[str] = (names.WORKER_CONTAINER,),
) -> dict[str, Any]:
    truth = "True" if ready else "False"
    shown = [
        {
            "name": name,
            "image": "fake",
            "imageID": "fake",
            "ready": ready,
            "started": True,
            "restartCount": restarts,
            "state": {"running": {}},
        }
        for name in containers
    ]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "containerStatuses": shown,
        "conditions": [{"type": t, "status": truth} for t in ("Ready", "ContainersReady")],
    }


def _is_ready(status: Json) -> bool:
    conditions = status.get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

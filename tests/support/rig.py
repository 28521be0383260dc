"""The operator's real runtime on a fake API server, fake workers and virtual time.

    async def story() -> None:
        async with Rig(replicas=3) as rig:
            rig.publish("2")
            await rig.until(lambda: rig.phase == "Applied")

    virtual_time.run(story())

Real are the planners, the queue, the worker cache, the calls, the informer, the Lease and the statuses.
Fake are the API server (`fake_kube`), the workers (`tests/model/fake_worker.py`) and the kubelet,
which is a loop in here: pods run at once, and are ready as their worker's latch says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Self
from unittest import mock
from urllib.parse import urlsplit

from tests.model.fake_state import kind_of
from tests.model.fake_worker import FakeWorker
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.virtual_time import now

from fleet_operator.core.actions import LoraCall, WorkerCall
from fleet_operator.ports import Addressee, Json, WorkerAnswer
from fleet_operator.runtime import reconcile
from fleet_operator.runtime.lease import Lease
from fleet_operator.runtime.operator_process import Operator
from fleet_operator.runtime.session import FleetSession
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.traces import RolloutTraces
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Epoch, Phase, Reason, WantedRequest
from rlfleet_resources import names

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/rl/leases"
LEASE_PATHS = (_LEASES, f"{_LEASES}/operator")
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
WEIGHTS_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/weightversions/policy"
PODS_PATH = "/api/v1/namespaces/rl/pods"
KUBELET_SECONDS = 0.1
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
"""The condition of a pod that waits for a node. Source: kube-scheduler."""
WRITES = frozenset({"POST", "PUT", "APPLY", "MERGE", "DELETE"})


@dataclass
class FakeWorkers:
    """The admin ports of all workers. Implements `ports.Workers`.

    Fields:
        latency_seconds: how long every answer takes.
        hanging: ordinals whose calls (not questions) never end.
        silent: ordinals that answer nothing.
        refusals: why calls of a kind are refused, by kind.
        admissions_take_seconds: how long an admission takes, also after its caller has left.
        denied: the API server refuses every token.
        asked: every call, as `kind version` and ordinal.
    """

    workers: dict[str, FakeWorker] = field(default_factory=dict)
    latency_seconds: float = 0.005
    hanging: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    refusals: dict[str, Reason] = field(default_factory=dict)
    admissions_take_seconds: float = 0.0
    late: set[asyncio.Task[WorkerAnswer]] = field(default_factory=set)
    token: str | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)

    async def state(self, worker: Addressee) -> WorkerAnswer:
        """Ask a worker for its state."""
        found = self._at(worker)
        if found is not None:
            self.questions.append(found.ordinal)
        await asyncio.sleep(self.latency_seconds)
        if found is None or found.ordinal in self.silent:
            return WorkerAnswer(silent=True, message="connection refused")
        if self.token is not None and worker.token != self.token:
            return WorkerAnswer(reason=Reason.UNAUTHORIZED, message="wrong token")
        return WorkerAnswer(state=found.state(now()))

    async def tell(self, worker: Addressee, wanted: WantedRequest) -> WorkerAnswer:
        """Name the desired versions, and ask for the state."""
        answer = await self.state(worker)
        found = self._at(worker)
        if found is None or answer.state is None:
            return answer
        try:
            found.hear(wanted)
        except Refusal as refusal:
            return replace(answer, reason=refusal.reason)
        return replace(answer, state=found.state(now()))

    async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
        found = self._at(worker)
        if found is None:
            return WorkerAnswer(silent=True, message="connection refused")
        return await self._act(found, action, epoch)

    async def _act(self, worker: FakeWorker, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        self.asked.append((str(action.work), worker.ordinal))
        await asyncio.sleep(self.latency_seconds)
        if worker.ordinal in self.hanging:
            await asyncio.get_running_loop().create_future()
        if worker.ordinal in self.silent:
            return WorkerAnswer(silent=True, message="connection refused")
        if refusal := self.refusals.get(action.kind):
            return WorkerAnswer(state=worker.state(now()), reason=refusal, message="injected")
        if action.kind == "admit" and self.admissions_take_seconds:
            late = asyncio.create_task(self._take_late(worker, action, epoch))
            self.late.add(late)
            return await asyncio.shield(late)
        return await self._take(worker, action, epoch)

    async def _take_late(
        self, worker: FakeWorker, action: WorkerCall, epoch: Epoch
    ) -> WorkerAnswer:
        await asyncio.sleep(self.admissions_take_seconds)
        return await self._take(worker, action, epoch)

    @staticmethod
    async def _take(worker: FakeWorker, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        if worker.resets_connection_of(kind_of(action.to_request(epoch))):
            return WorkerAnswer(silent=True, message="connection reset")
        adapter = action.adapter if isinstance(action, LoraCall) else ""
        ticket = worker.take(action.to_request(epoch), now(), adapter=adapter)
        restarts = worker.restarts
        while not ticket.done:
            await asyncio.sleep(0.01)
            worker.tick(now())
            if worker.restarts != restarts:
                return WorkerAnswer(silent=True, message="connection reset")
        message = "refused" if ticket.reason else ""
        return WorkerAnswer(state=worker.state(now()), reason=ticket.reason, message=message)

    def _at(self, worker: Addressee) -> FakeWorker | None:
        return self.workers.get(str(urlsplit(worker.base_url).hostname))


class VirtualWallClock(datetime):
    """The wall clock of the runtime: as fast as the loop's. `ahead_seconds`: how wrong it is."""

    ahead_seconds = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """The time of day."""
        return cls(2026, 1, 1, tzinfo=tz) + timedelta(seconds=now() + cls.ahead_seconds)


class Rig:
    """A fleet named `policy` in namespace `rl`, its WeightVersion, and an operator.

    Fields:
        without_node: ordinals whose pods wait for a node.
    """

    def __init__(self, *, replicas: int = 3, version: str = "1", **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.workers = FakeWorkers()
        self.default_image = "rlfleet/worker:1"
        self.traces: RolloutTraces | None = None
        self.has_weights = True
        self.namespaces: tuple[str, ...] = ("rl",)
        self._fleet: Json = {
            "kind": "InferenceFleet",
            "metadata": {"name": "policy", "namespace": "rl", "uid": "fleet-1", "generation": 1},
            "spec": {
                "replicas": replicas,
                "model": {"name": "m", "source": {"path": "/models/base"}},
                "weights": {"roots": ["/weights"]},
            }
            | spec,
        }
        self._weights: Json = {
            "kind": "WeightVersion",
            "metadata": {
                "name": "policy",
                "namespace": "rl",
                "uid": "weights-1",
                "generation": 1,
                "creationTimestamp": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
                "managedFields": [
                    {"manager": "trainer", "fieldsV1": {"f:spec": {"f:version": {}}}},
                ],
            },
            "spec": {
                "fleetRef": {"name": "policy"},
                "version": version,
                "source": {"path": "/weights/step_{version}"},
            },
        }
        self.resync_seconds = 30.0
        self.without_node: set[int] = set()
        self._adapters: list[str] = []
        self._addresses = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._clock = mock.patch.object(reconcile, "datetime", VirtualWallClock)
        self.kube: FakeKube
        self.operator: Operator

    async def __aenter__(self) -> Self:
        self._clock.start()
        VirtualWallClock.ahead_seconds = 0.0
        self.cluster.put(FLEET_PATH, self._fleet)
        if self.has_weights:
            self.cluster.put(WEIGHTS_PATH, self._weights)
        self._kubelet = asyncio.create_task(self._run_kubelet(), name="kubelet")
        await self.start_operator()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill_operator()
        self._kubelet.cancel()
        await asyncio.wait([self._kubelet])
        self._clock.stop()

    # --- the operator ---------------------------------------------------------------------------

    async def start_operator(self) -> None:
        """A new process: nothing in memory."""
        self.kube = self.cluster.client()
        self.kube.unguarded = LEASE_PATHS
        settings = Settings.model_construct(
            namespaces=self.namespaces,
            lease_namespace="rl",
            lease_name="operator",
            default_image=self.default_image,
            metrics_port=0,
            probe_port=0,
            fleet_metrics=True,
            secrets_of=(),
            log_format="text",
            log_level="INFO",
            resync_seconds=self.resync_seconds,
            identity=f"process-{now()}",
        )
        lease = Lease(
            self.kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=settings.identity,
            clock=now,
        )
        self.operator = Operator(settings, self.kube, self.workers, lease, self.traces)
        await self.operator.lease.acquire()
        self._tasks = [
            asyncio.create_task(self.operator.lease.keep_renewing(), name="lease"),
            asyncio.create_task(self.operator.pods.run(), name="pods"),
        ]
        await self.operator.pods.tried()
        self.operator.synced = True
        self.tell_operator()
        self._tasks.append(asyncio.create_task(self.operator._work(), name="queue"))
        self._tasks.append(asyncio.create_task(self.operator._sweep(), name="sweep"))
        self._tasks.append(asyncio.create_task(self.operator._raise_terms(), name="terms"))
        gone = self.operator.resources.keep_forgetting()
        self._tasks.append(asyncio.create_task(gone, name="gone"))

    async def kill_operator(self) -> None:
        """The process ends without releasing its Lease, which then expires."""
        for task in self._tasks:
            task.cancel()
        await self.operator.calls.stop()
        await self.operator.sessions.writing.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def restart_operator(self) -> None:
        """Killed, and another one leads."""
        await self.kill_operator()
        await self.start_operator()

    @property
    def session(self) -> FleetSession:
        """The operator's memory of the fleet."""
        found = self.operator.sessions.find(("rl", "policy"))
        assert found is not None
        return found

    def tell_operator(self) -> None:
        """The objects as its watches would bring them, with the stored statuses."""
        if FLEET_PATH in self.cluster.objects:
            self.operator.store.put_fleet(self._with_status(FLEET_PATH))
        for path in (WEIGHTS_PATH, *self._adapters):
            if path in self.cluster.objects:
                self.operator.store.put_weights(self._with_status(path))

    # --- users and trainers -------------------------------------------------------------------------

    def publish(self, version: str) -> None:
        """A trainer asks for a version."""
        self.change(WEIGHTS_PATH, version=version)

    def add_adapter(self, path: str, adapter: str, version: str) -> None:
        """A trainer makes a WeightVersion of a LoRA adapter."""
        body = self.cluster.objects[WEIGHTS_PATH]
        name = path.rpartition("/")[2]
        metadata = body["metadata"] | {"name": name, "uid": name, "generation": 1}
        spec = body["spec"] | {"version": version, "adapter": adapter}
        self._adapters.append(path)
        self.cluster.put(path, body | {"metadata": metadata, "spec": spec})
        self.tell_operator()

    def change(self, path: str, **spec: Any) -> None:
        """A user edits an object's spec."""
        body = self.cluster.objects[path]
        body["spec"] |= spec
        body["metadata"]["generation"] += 1
        self.cluster.put(path, body)
        self.tell_operator()

    # --- what can be seen ------------------------------------------------------------------------

    def status(self, path: str) -> Json:
        """The stored status of an object; empty before the first."""
        stored = self.cluster.objects.get(f"{path}/status", {})
        found: Json = stored.get("status", {})
        return found

    @property
    def fleet(self) -> Json:
        """The fleet's stored status."""
        return self.status(FLEET_PATH)

    @property
    def weights(self) -> Json:
        """The WeightVersion's stored status."""
        return self.status(WEIGHTS_PATH)

    @property
    def phase(self) -> str:
        """The phase of the WeightVersion, as stored."""
        return str(self.weights.get("phase", ""))

    def condition(self, kind: str, *, of: str = FLEET_PATH) -> Json | None:
        """A stored condition."""
        found = (c for c in self.status(of).get("conditions", ()) if c["type"] == kind)
        return next(found, None)

    @property
    def serving(self) -> list[str]:
        """The weights that the workers generate with, by ordinal."""
        by_ordinal = sorted(self.workers.workers.values(), key=lambda w: w.ordinal)
        return [w.weights for w in by_ordinal if w.generates]

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Requests of this operator that wrote something; its Lease is not counted."""
        return [r for r in self.kube.requests if r[0] in WRITES and "/leases" not in r[1]]

    def worker(self, ordinal: int) -> FakeWorker:
        """The newest worker of an ordinal."""
        return [w for w in self.workers.workers.values() if w.ordinal == ordinal][-1]

    async def until(
        self, condition: Callable[[], object], *, seconds: float = 120, what: str = ""
    ) -> float:
        """Wait until something holds. Returns: seconds that it took."""
        started = now()
        while not condition():
            if now() - started > seconds:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.story()}")
            await asyncio.sleep(0.01)
        return now() - started

    async def applied(self, version: str, *, seconds: float = 120) -> float:
        """Wait until a version is applied by the stored status."""
        return await self.until(
            lambda: self.phase == "Applied" and self.weights.get("appliedVersion") == version,
            seconds=seconds,
            what=f"version {version} applied",
        )

    def story(self) -> str:
        """The state of the fleet, for failures."""
        workers = "\n".join(
            f"  {w.name} {w.phase} admitted={w.admitted} label={w.label} staged={w.staged}"
            for w in self.workers.workers.values()
        )
        asked = "\n".join(f"  {key} on {n}" for key, n in self.workers.asked[-30:])
        return f"fleet {self.fleet}\nweights {self.weights}\nworkers\n{workers}\nasked\n{asked}"

    # --- the kubelet -----------------------------------------------------------------------------

    async def _run_kubelet(self) -> None:
        while True:
            pods = (o for p, o in self.cluster.objects.items() if p.startswith(PODS_PATH))
            there = {pod["metadata"]["uid"]: pod for pod in pods}
            known = {w.uid: ip for ip, w in self.workers.workers.items()}
            for uid in known.keys() - there.keys():
                del self.workers.workers[known[uid]]
            for uid, pod in there.items():
                if uid not in known:
                    self._start(pod)
            for ip, worker in list(self.workers.workers.items()):
                worker.tick(now())
                self._show(ip, worker)
            await asyncio.sleep(KUBELET_SECONDS)

    def _start(self, pod: Json) -> None:
        labels = pod["metadata"]["labels"]
        worker = FakeWorker(
            pod["metadata"]["uid"],
            int(labels[names.LABEL_ORDINAL]),
            labels[names.LABEL_REVISION],
            now(),
        )
        applied = self.cluster.objects.get(
            f"/api/v1/namespaces/rl/configmaps/{names.applied_config_map_name('policy')}"
        )
        if applied is not None and "path" in applied["data"]:
            data = applied["data"]
            worker.start_version, worker.start_source = data["version"], data["path"]
            worker.start_run_id, worker.start_digest = data.get("runID"), data.get("digest")
        worker.start()
        self._addresses += 1
        address = f"10.0.{self._addresses // 250}.{self._addresses % 250}"
        self.workers.workers[address] = worker

    def _show(self, ip: str, worker: FakeWorker) -> None:
        path = f"{PODS_PATH}/{worker.name}"
        pod = self.cluster.objects.get(path)
        if pod is None or pod["metadata"]["uid"] != worker.uid:
            return
        running = {
            "name": "worker",
            "state": {"running": {}},
            "started": worker.phase is not Phase.STARTING,
            "restartCount": worker.restarts,
        }
        ready = "True" if worker.admitted else "False"
        status = {
            "phase": "Running",
            "podIP": ip,
            "containerStatuses": [running],
            "conditions": [{"type": "Ready", "status": ready}],
        }
        if worker.ordinal in self.without_node:
            status = {"phase": "Pending", "conditions": [NO_NODE]}
        if pod.get("status") != status:
            self.cluster.put(path, pod | {"status": status})

    def _with_status(self, path: str) -> Json:
        return self.cluster.objects[path] | {"status": self.status(path)}

"""The setting of the operator's tests: a namespace, a fake node, operators behind proxies, one fleet.

    async with Workspace(cluster, release, folder) as workspace:
        operator = await workspace.start_operator()
        await workspace.make_fleet(replicas=3)
        await workspace.publish("2")
        await workspace.applied("2")

Real are the API server, its controllers and scheduler, the chart's account and rights, and the
operator's process. Fake are the kubelet and the workers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster.support.admin import Admin, Credentials, Json
from tests.cluster.support.api_proxy import ApiProxy
from tests.cluster.support.fake_kubelet import FakeKubelet
from tests.cluster.support.faults import Faults
from tests.cluster.support.operator_process import OperatorProcess
from tests.model.fake_worker import FakeWorker
from tests.support.waiting import eventually_async

from devcluster import Cluster
from free_ports import free_port
from stack.volumes import CLAIM, weights_volume

FLEET = "policy"
GROUP = "/apis/rlfleet.dev/v1alpha1"
LEASES = "/apis/coordination.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The chart as it was installed: where, the arguments of its operator, a token of its account."""

    name: str
    namespace: str
    arguments: tuple[str, ...]
    token: str


def operator_arguments(release: Release) -> list[str]:
    """The arguments of the chart's operator, outside of a pod."""
    return [*release.arguments, f"--lease-namespace={release.namespace}"]


class Workspace:
    """One test's part of the shared cluster."""

    def __init__(
        self, cluster: Cluster, release: Release, folder: Path, *, namespace: str = ""
    ) -> None:
        self.cluster = cluster
        self.release = release
        self.namespace = namespace or f"rl-{secrets.token_hex(4)}"
        self.operators: list[OperatorProcess] = []
        self.admin_port = free_port()
        self.admin: Admin
        self.kubelet: FakeKubelet
        self._folder = folder
        self._logs: list[tuple[OperatorProcess, int]] = []
        self.credentials = Credentials(cluster.kubeconfig)
        self._stack = AsyncExitStack()
        self._namespaces: list[str] = []

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self.admin = await self._stack.enter_async_context(Admin(self.credentials))
        await self.make_namespace(self.namespace)
        self.kubelet = await self._stack.enter_async_context(FakeKubelet(self.admin))
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.gather(*(o.stop() for o in self.operators))
        for namespace in self._namespaces:
            # At once, so that the next operator does not meet fleets in a namespace that is ending.
            for plural in ("inferencefleets", "weightversions"):
                await self.admin.delete(f"{GROUP}/namespaces/{namespace}/{plural}")
            await self.admin.delete(f"/api/v1/namespaces/{namespace}")
        await self._stack.__aexit__(*raised)

    # --- operators --------------------------------------------------------------------------------

    async def start_operator(
        self,
        *extra: str,
        faults: Faults | None = None,
        again: bool = False,
        token: str = "",
        renamed: dict[str, str] | None = None,
        leading: bool = True,
        direct: bool = False,
    ) -> OperatorProcess:
        """Start one more operator; by default wait until it leads. `direct`: without the proxy in between, which
        would be slower than the API server under a flood.
        """
        if not self.operators:
            await self._forget_lease()
        proxy = await self._stack.enter_async_context(ApiProxy(self.credentials, faults))
        proxy.renamed = renamed or {}
        kubeconfig = proxy.kubeconfig(self._folder, token or self.release.token)
        if direct:
            self.write_kubeconfig(kubeconfig, token or self.release.token)
        arguments = [*operator_arguments(self.release), *extra]
        operator = OperatorProcess(proxy, kubeconfig, arguments, again=again)
        self.operators.append(operator)
        self.watch_log(operator)
        await operator.start()
        if leading:
            await operator.leading()
        return operator

    def write_kubeconfig(self, file: Path, token: str) -> None:
        """Write a kubeconfig for the API server itself, with the identity of the token."""
        config = json.loads(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        file.write_text(json.dumps(config))

    def watch_log(self, operator: OperatorProcess) -> None:
        """From now on a defect in this operator's log fails the test."""
        self._logs.append((operator, operator.log_size))

    async def _forget_lease(self) -> None:
        """Delete the Lease of an operator that an earlier test has killed, so that no test waits for it."""
        root = f"{LEASES}/namespaces/{self.release.namespace}/leases"
        await self.admin.delete(f"{root}/{self.release.name}")

    # --- actions of users ---------------------------------------------------------------------------

    async def make_namespace(self, name: str) -> None:
        """A namespace with the claim that fleets mount, bound to a volume without a writer."""
        if await self.admin.get(f"/api/v1/namespaces/{name}") is None:
            await self.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._namespaces.append(name)
        volume, claim = weights_volume(Path("/nowhere"), name)
        await self.admin.create("/api/v1/persistentvolumes", volume)
        self._stack.push_async_callback(
            self.admin.delete, f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
        )
        await self.admin.create(f"/api/v1/namespaces/{name}/persistentvolumeclaims", claim)

    async def make_fleet(
        self, *, replicas: int = 3, version: str = "1", namespace: str = "", **spec: Any
    ) -> None:
        """An InferenceFleet and its WeightVersion, both named `policy`."""
        root = f"{GROUP}/namespaces/{namespace or self.namespace}"
        head = {"apiVersion": "rlfleet.dev/v1alpha1", "metadata": {"name": FLEET}}
        fleet = {
            "replicas": replicas,
            "model": {"name": "m", "source": {"path": "/weights/base"}},
            "weights": {
                "roots": ["/weights"],
                "volumes": [
                    {
                        "name": "weights",
                        "mountPath": "/weights",
                        "persistentVolumeClaim": {"claimName": CLAIM},
                    }
                ],
            },
            "serving": {"port": 8000, "adminPort": self.admin_port},
        }
        weights = {
            "fleetRef": {"name": FLEET},
            "version": version,
            "source": {"path": "/weights/step_{version}"},
        }
        kinds = (("inferencefleets", "InferenceFleet", fleet | spec),)
        kinds += (("weightversions", "WeightVersion", weights),)
        for plural, kind, wanted in kinds:
            await self.admin.create(f"{root}/{plural}", head | {"kind": kind, "spec": wanted})

    async def make_adapter(self, name: str, *, version: str) -> None:
        """A WeightVersion for an adapter of the fleet, named like it."""
        wanted = {
            "fleetRef": {"name": FLEET},
            "adapter": name,
            "version": version,
            "source": {"path": f"/weights/{name}_{{version}}"},
        }
        made = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "WeightVersion"}
        made |= {"metadata": {"name": name}, "spec": wanted}
        await self.admin.create(f"{GROUP}/namespaces/{self.namespace}/weightversions", made)

    async def publish(self, version: str, **spec: Any) -> None:
        """Do as a trainer does."""
        patch = {"spec": {"version": version, **spec}}
        await self.admin.merge(self.path("weightversions"), patch)

    async def change_fleet(self, **spec: Any) -> None:
        """Patch the fleet's spec."""
        await self.admin.merge(self.path("inferencefleets"), {"spec": spec})

    def path(self, plural: str) -> str:
        """The API path of the fleet or of the WeightVersion."""
        return f"{GROUP}/namespaces/{self.namespace}/{plural}/{FLEET}"

    async def kubectl(self, *arguments: str) -> str:
        """Our kubectl, in the namespace."""
        call = (self.cluster.kubectl, "-n", self.namespace, *arguments)
        return (await asyncio.to_thread(*call)).stdout

    # --- what is seen -----------------------------------------------------------------------------

    async def fleet(self) -> Json:
        """The fleet; empty without one."""
        return await self.admin.get(self.path("inferencefleets")) or {}

    async def weights(self) -> Json:
        """The WeightVersion; empty without one."""
        return await self.admin.get(self.path("weightversions")) or {}

    async def condition(self, kind: str, *, of: str = "weightversions") -> Json | None:
        """A condition of the current generation."""
        found = await self.admin.get(self.path(of)) or {}
        generation = found.get("metadata", {}).get("generation")
        for condition in found.get("status", {}).get("conditions", ()):
            if condition["type"] == kind and condition["observedGeneration"] == generation:
                return condition
        return None

    async def phase(self) -> str:
        """The phase of the WeightVersion."""
        return (await self.weights()).get("status", {}).get("phase", "")

    @property
    def own_workers(self) -> list[FakeWorker]:
        """The workers of the workspace's namespace, by name."""
        return self.kubelet.workers_in(self.namespace)

    @property
    def serving(self) -> list[str]:
        """The weights that the workers generate with, by name."""
        return [w.weights for w in self.kubelet.workers if w.generates]

    async def objects(self, plural: str, *, root: str = "/api/v1") -> dict[str, Json]:
        """Our objects of a kind in the namespace, by name."""
        page = await self.admin.get(f"{root}/namespaces/{self.namespace}/{plural}")
        items = (page or {}).get("items", ())
        ours = [i for i in items if "rlfleet.dev/fleet" in i["metadata"].get("labels", {})]
        return {item["metadata"]["name"]: item for item in ours}

    async def until(
        self, condition: Callable[[], Awaitable[Any]], what: str, *, seconds: float = 90
    ) -> Any:
        """Wait until something holds; returns it."""

        async def holds() -> Any:
            found = await condition()
            for operator, start in self._logs:
                said = operator.said(since=start)
                assert "defect" not in said, said
            return found

        try:
            return await eventually_async(holds, within_seconds=seconds, describe=lambda: what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.story()}") from None

    async def applied(
        self, version: str, *, replicas: int = 3, seconds: float = 90, weights: str = ""
    ) -> None:
        """Wait until the status reports that all workers serve a version, and they do. `weights`: as the fake
        workers name them; by default like the version.
        """

        async def is_it() -> bool:
            found = await self.weights()
            status, generation = found.get("status", {}), found["metadata"]["generation"]
            ready = await self.condition("Ready")
            return bool(
                status.get("phase") == "Applied"
                and status.get("appliedVersion") == version
                and status.get("observedGeneration") == generation
                and ready
                and ready["status"] == "True"
                and self.serving == [weights or version] * replicas
            )

        await self.until(is_it, f"version {version} is applied", seconds=seconds)

    async def story(self) -> str:
        """The state of the fleet, for failures."""
        workers = [
            f"{w.name} {w.phase} admitted={w.admitted} label={w.label} staged={w.staged}"
            for w in self.kubelet.workers
        ]
        statuses = [json.dumps(o.get("status")) for o in (await self.fleet(), await self.weights())]
        faults = [f"{o.probe_port}: {dict(o.proxy.faults.chosen)}" for o, _ in self._logs]
        logs = [f"--- operator on port {o.probe_port}\n{o.said(since=n)}" for o, n in self._logs]
        return "\n".join([*statuses, *workers, *faults, *logs])

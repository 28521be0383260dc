"""A fleet and its WeightVersion, as a user of kubectl sees them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from demo.sampler import Samples, sample
from devcluster import Cluster
from stack import operator
from stack.fleets import WEIGHTS_ROOT, weights_manifest

T = TypeVar("T")

NAMESPACE = "rl"
READY_SECONDS = 300
THINK_SECONDS = 0.4
"""Between two requests of a client: every token is recomputed in the end."""
_POLL_SECONDS = 0.05
_FIRST_REPLY_SECONDS = 120


class NotInTimeError(AssertionError):
    """A wait has run out. The message has the description and the logs of the cluster."""


@dataclass
class Fleet:
    """One fleet on a development cluster.

    Fields:
        weights: folder of checkpoints `step_<n>` on this machine.
        steps: numbers of the unused checkpoints in it.
    """

    cluster: Cluster
    weights: Path
    steps: Iterator[int]
    name: str = "policy"
    namespace: str = NAMESPACE
    _url: str = field(default="", repr=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> Any:
        """Run kubectl in the fleet's namespace. Returns: the completed process."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin, check=check)

    def get(self, what: str) -> dict[str, Any]:
        """An object as JSON."""
        found: dict[str, Any] = json.loads(self.kubectl("get", what, "-o", "json").stdout)
        return found

    def apply(self, *objects: dict[str, Any], options: tuple[str, ...] = ()) -> None:
        """Apply objects with `kubectl apply` in the fleet's namespace."""
        together = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", *options, "-f", "-", stdin=json.dumps(together))

    def pods(self) -> dict[str, dict[str, Any]]:
        """The fleet's pods by name."""
        chosen = f"rlfleet.dev/fleet={self.name}"
        found = json.loads(self.kubectl("get", "pods", "-l", chosen, "-o", "json").stdout)
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    def next_step(self) -> int:
        """Number of an unused checkpoint on the volume."""
        return next(self.steps)

    @property
    def source(self) -> str:
        """Where workers see the checkpoints `step_<n>`, as a WeightVersion names them."""
        return f"{WEIGHTS_ROOT}/step_{{version}}"

    def folder(self, step: int) -> Path:
        """The directory of a step on this machine."""
        return self.weights / f"step_{step}"

    def checkpoints(self) -> dict[str, Path]:
        """Name → folder of everything that may have been served, as the audit wants it.

        A version that another run has published again is named `run/version`.
        """
        steps = sorted(self.weights.glob("**/step_*"), key=lambda f: int(f.name[5:]))
        named = {"base": self.weights / "base"}
        for folder in steps:
            run = "" if folder.parent == self.weights else f"{folder.parent.name}/"
            named[run + folder.name[5:]] = folder
        return named

    def begin_run(self, version: str) -> str:
        """Recreate the WeightVersion for another run, whose weights of a version are others.

        Returns: the run.
        """
        step = self.next_step()
        run = f"run-{step}"
        shutil.copytree(self.folder(step), self.weights / run / f"step_{version}")
        self.kubectl("delete", "wv", self.name)
        made = weights_manifest(self.name, fleet=self.name, version=version)
        made["spec"] |= {
            "runID": run,
            "source": {"path": f"{WEIGHTS_ROOT}/{run}/step_{{version}}"},
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(made))
        return run

    def recreate(self) -> None:
        """Delete the WeightVersion and create it again, as it was."""
        spec = self.get(f"wv/{self.name}")["spec"]
        self.kubectl("delete", "wv", self.name)
        made = weights_manifest(self.name, fleet=self.name, version=spec["version"])
        self.kubectl("apply", "-f", "-", stdin=json.dumps(made | {"spec": spec}))

    def digest_of_applied(self) -> str:
        """Digest of the weights that all workers serve."""
        return str(self.get(f"ifl/{self.name}")["status"]["applied"]["digest"])

    def publish(self, version: str, **spec: Any) -> None:
        """Patch the WeightVersion, as trainers do."""
        self._patch("wv", {"spec": {"version": version, **spec}})

    def patch_fleet(self, patch: dict[str, Any]) -> None:
        """Patch the fleet, as a user does."""
        self._patch("ifl", patch)

    def _patch(self, kind: str, patch: dict[str, Any]) -> None:
        # The API server drops a field that the object does not have, with a warning only.
        chosen = ("--type=merge", "--warnings-as-errors", "-p", json.dumps(patch))
        self.kubectl("patch", kind, self.name, *chosen)

    def wait_ready(self, what: str = "", seconds: int = READY_SECONDS) -> None:
        """Wait for the condition Ready of the WeightVersion, or of another object.

        Errors: NotInTimeError with the output of `kubectl describe`.
        """
        target = what or f"wv/{self.name}"
        timeout = f"--timeout={seconds}s"
        waited = self.kubectl("wait", "--for=condition=Ready", target, timeout, check=False)
        if waited.returncode:
            raise NotInTimeError(f"not ready: {waited.stderr.strip()}\n{self._described()}")

    def wait_whole(self, seconds: int = READY_SECONDS) -> None:
        """Wait until the fleet and its WeightVersion are Ready."""
        self.wait_ready(seconds=seconds)
        self.wait_ready(f"ifl/{self.name}", seconds=seconds)

    def wait_served(self) -> None:
        """Wait until the Service knows the workers again, after nodes or the API server were gone."""
        self.wait_whole()
        self.cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=180s")
        chosen = ("pod", "-l", f"rlfleet.dev/fleet={self.name}", "--timeout=180s")
        self.kubectl("wait", "--for=condition=Ready", *chosen)

    def roll_out(self, step: int) -> dict[str, Any]:
        """Publish a good checkpoint and wait. Returns: the WeightVersion's status."""
        self.publish(str(step))
        self.wait_ready()
        found: dict[str, Any] = self.get(f"wv/{self.name}")["status"]
        return found

    def applied(self) -> str:
        """Version that all workers serve, or an empty string while they differ.

        Read from the object that `wait_ready` waits for. The operator writes the fleet's status at
        the same time, so that it may arrive later.
        """
        return str(self.get(f"wv/{self.name}")["status"].get("appliedVersion", ""))

    def reason(self, kind: str, what: str = "") -> str:
        """Reason of a condition; empty without one for the present generation."""
        found = self.condition(kind, what)
        return str(found["reason"]) if found else ""

    def events(self, what: str = "") -> str:
        """The Events of an object, as `kubectl describe` shows them. They arrive after the status."""
        described = self.kubectl("describe", *(what or f"wv/{self.name}").split("/")).stdout
        return str(described.partition("Events:")[2])

    def condition(self, kind: str, what: str = "") -> dict[str, Any] | None:
        """A condition, if it is for the present generation."""
        found = self.get(what or f"wv/{self.name}")
        conditions: list[dict[str, Any]] = found.get("status", {}).get("conditions", [])
        generation = found["metadata"]["generation"]
        return next(
            (c for c in conditions if c["type"] == kind and c["observedGeneration"] == generation),
            None,
        )

    def phase_of(self, pod: str) -> str:
        """A worker's phase by its own metrics; empty while it does not answer."""
        return self._label_of(pod, "rlfleet_worker_phase{", 'phase="')

    def version_of(self, pod: str) -> str:
        """Version in a worker's engine by its own metrics; empty while it does not answer."""
        return self._label_of(pod, "rlfleet_worker_version_info{", 'version="')

    def _label_of(self, pod: str, metric: str, label: str) -> str:
        lines = (line for line in self._page_of(pod) if line.startswith(metric))
        true = next((line for line in lines if line.rsplit(" ", 1)[1] == "1.0"), "")
        return true.partition(label)[2].partition('"')[0]

    def _page_of(self, pod: str) -> list[str]:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8000/proxy/metrics"
        return str(self.cluster.kubectl("get", "--raw", path, check=False).stdout).splitlines()

    def counted(self, pod: str, metric: str) -> float:
        """A counter of a worker by its own metrics; 0 while it does not answer."""
        lines = (line for line in self._page_of(pod) if line.startswith(f"{metric} "))
        return float(next(lines, "0").rsplit(" ", 1)[-1])

    def eventually(self, holds: Callable[[], T], what: str, seconds: float = 60) -> T:
        """Wait until `holds` returns something true, and return that.

        Errors: NotInTimeError with the output of `kubectl describe`.
        """
        limit = time.monotonic() + seconds
        while not (found := holds()):
            if time.monotonic() > limit:
                raise NotInTimeError(f"not within {seconds} s: {what}\n{self._described()}")
            time.sleep(_POLL_SECONDS)
        return found

    def _described(self) -> str:
        """Descriptions and logs of the cluster, for the report of a failure."""
        logs = f"logs -n {operator.NAMESPACE} -l app.kubernetes.io/instance={operator.RELEASE}"
        words = ("describe ifl,wv", "get pods -o wide", f"{logs} --prefix --tail=300")
        return "\n".join(str(self.kubectl(*w.split(), check=False).stdout) for w in words)

    def url(self) -> str:
        """The fleet's Service, from this machine."""
        if not self._url:
            port = self.cluster.forward(self.namespace, f"service/{self.name}", 8000)
            self._url = f"http://127.0.0.1:{port}"
        return self._url

    def while_sampling(
        self,
        file: Path,
        work: Callable[[], Any],
        *,
        model: str = "",
        think_seconds: float = THINK_SECONDS,
    ) -> Samples:
        """Do something while clients generate through the Service; keeps their replies.

        The work begins when the clients have a reply. `model`: what they name; the fleet's own if
        empty.
        """
        named = model or self.get(f"ifl/{self.name}")["spec"]["model"]["name"]

        async def both() -> Samples:
            samples, stop = Samples(file, think_seconds), asyncio.Event()
            clients = asyncio.create_task(sample(self.url(), named, samples, stop))
            try:
                async with asyncio.timeout(_FIRST_REPLY_SECONDS):
                    while not samples.answered:  # noqa: ASYNC110 - clients count, and signal nothing
                        await asyncio.sleep(_POLL_SECONDS)
                await asyncio.to_thread(work)
            finally:
                stop.set()
                await clients
            return samples

        return asyncio.run(both())

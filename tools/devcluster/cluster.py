"""A running cluster, for Python: tests, the demo, and the command line.

Example:
    with Cluster.start(mounts=[("/usr", "/usr")]) as cluster:
        cluster.load_image("example/app:dev", {"/app": Path("app")}, ImageConfig(...))
        cluster.kubectl("apply", "-f", "app.yaml")
        port = cluster.forward("default", "service/app", 8000)
        urllib.request.urlopen(f"http://127.0.0.1:{port}/")
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from devcluster import control, images, janitor, starting
from devcluster.access import Access
from devcluster.api import Api
from devcluster.errors import NotRunningError
from devcluster.paths import run_folder
from devcluster.profiles import Profile
from devcluster.spec import CONTAINERD_SOCKET

IMPORT_SECONDS = 900.0
"""Timeout for loading an image. The one of a CPU worker has about 6 GB."""


class Cluster(Access):
    """A cluster that is up. Made by `start` or, for one that runs already, by `attach`."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.id = run.name
        self.api = Api(self.kubeconfig)

    @classmethod
    def start(
        cls,
        *,
        cluster_id: str | None = None,
        profile: Profile = "node",
        nodes: int = 1,
        mounts: Sequence[tuple[Path | str, Path | str]] = (),
        gpus: int = 0,
        detach: bool = False,
        timeout_seconds: float = 90.0,
    ) -> Self:
        """Start a cluster and wait until it is ready; builds missing programs first.

        Args:
            cluster_id: a random one if None.
            profile: `api` for a control plane only, `node` for everything.
            nodes: 1 or 2.
            mounts: (source, destination) of machine folders that appear read-only in every
                container. Destinations below /opt or /usr are safe; a pod's own volume at the
                same path wins, one above it hides them.
            gpus: how many `nvidia.com/gpu` each node claims to have. A number for the scheduler;
                nothing computes on them.
            detach: keep the cluster when the calling process ends; else it ends with it.
            timeout_seconds: how long it may take to become ready, without the build.

        Errors:
            CannotRunHereError: the machine lacks something, each with its remedy.
            BuildError: a program cannot be built.
            StartError: it did not become ready; the message has the end of its logs.
        """
        pairs = tuple((str(source), str(destination)) for source, destination in mounts)
        run = starting.start(
            cluster_id or starting.random_id(),
            profile=profile,
            nodes=nodes,
            mounts=pairs,
            detach=detach,
        )
        cluster = cls(run)
        try:
            starting.wait_until_ready(run, cluster.api, timeout_seconds=timeout_seconds)
            if gpus:
                cluster.set_gpus(gpus)
        except BaseException:
            cluster.down()
            raise
        return cluster

    @classmethod
    def attach(cls, cluster_id: str) -> Self:
        """A cluster that runs already.

        Errors:
            NotRunningError: it does not.
        """
        run = run_folder(cluster_id)
        if not janitor.is_kept(run) or not (run / "kubeconfig").exists():
            raise NotRunningError(
                f"there is no cluster {cluster_id!r}",
                remedy=f"start it: python3 -m devcluster up --id {cluster_id} --detach",
            )
        return cls(run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def down(self) -> None:
        """End the cluster and remove everything of it; no error if it is gone already."""
        with contextlib.suppress(NotRunningError):
            control.ask(self.folder, {"op": "down"}, timeout_seconds=60.0)
        starting.reap(self.folder)
        if self.folder.exists():  # the keeper was killed
            janitor.sweep()

    # --- images and forwards ---

    def load_image(
        self,
        name: str,
        files: Mapping[str, Path],
        config: images.ImageConfig | None = None,
    ) -> None:
        """Make an image and load it on every node. See `images.write_archive` for the arguments.

        Pods use it with `imagePullPolicy: Never` or `IfNotPresent`.
        """
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="image-") as scratch:
            archive = Path(scratch) / "image.tar"
            images.write_archive(archive, name, files, config or images.ImageConfig())
            self.load_archive(archive)

    def load_archive(self, archive: Path) -> None:
        """Load a docker-archive or OCI archive (as of `docker save`) on every node."""
        ctr = [str(self._programs.path("ctr")), "-a", CONTAINERD_SOCKET, "-n", "k8s.io"]
        for node in self._living_nodes():
            self.exec(
                [*ctr, "images", "import", str(archive.absolute())],
                node=node,
                timeout_seconds=IMPORT_SECONDS,
            )

    def forward(self, namespace: str, target: str, port: int) -> int:
        """Make a Service or a pod reachable from the machine for as long as the cluster lives.

        Args:
            namespace: of the target.
            target: "service/NAME", "pod/NAME", or NAME for a Service.
            port: the Service's or the pod's port.

        Returns:
            The port on 127.0.0.1. A connection that cannot be made inside is reset.

        Errors:
            DevclusterError: no such target, or it has no address (yet).
        """
        address = self.api.address_of(namespace, target)
        return self.forward_address(address, port)

    def forward_address(self, address: str, port: int) -> int:
        """Like `forward`, to an address inside."""
        request = {"op": "forward", "address": address, "port": port}
        local: int = control.ask(self.folder, request)["port"]
        return local

    # --- faults ---

    def kill_node(self, node: int) -> None:
        """Cut a node's power: SIGKILL to all of it at once. It does not come back."""
        control.ask(self.folder, {"op": "kill-node", "node": node})

    def kill(self, component: str, *, node: int = 1) -> None:
        """SIGKILL one component (`status` names them). It stays down until `restart`."""
        control.ask(self.folder, {"op": "kill", "node": node, "name": component})

    def restart(self, component: str, *, node: int = 1) -> None:
        """SIGKILL a component if it runs, start it, and wait until it is ready."""
        self.kill(component, node=node)
        control.ask(self.folder, {"op": "start", "node": node, "name": component})
        starting.wait_for_component(self.folder, component, node)

    def set_gpus(self, count: int, *, node: int | None = None) -> None:
        """Have a node, or all, claim `count` GPUs, and wait until the scheduler may use them."""
        for number in [node] if node else self._living_nodes():
            starting.set_gpus(self.api, number, count)

    def _living_nodes(self) -> Iterator[int]:
        nodes = self.status()["nodes"]
        return (int(number) for number, node in nodes.items() if node["pid"] is not None)

"""Programs that use a cluster: its own kubectl and helm outside, anything inside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devcluster import control
from devcluster.errors import NotRunningError
from devcluster.processes import run, without_proxies
from devcluster.programs import Programs
from devcluster.spec import load_spec, node_name

Result = subprocess.CompletedProcess[str]


class Access:
    """Operations on a cluster that run programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """All files of the cluster; gone after `down`."""
        self.kubeconfig = folder / "kubeconfig"
        """Works on the machine as well as inside the cluster's namespaces."""
        self._programs = Programs(tuple(Path(path) for path in load_spec(folder).programs))
        self.kubectl_path = self._programs.path("kubectl")
        self.helm_path = self._programs.path("helm")

    def status(self) -> dict[str, Any]:
        """The running processes: the keeper, and a record for every component of every node."""
        return control.ask(self.folder, {"op": "status"})

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        timeout_seconds: float | None = 600.0,
    ) -> Result:
        """Run our kubectl as the cluster's administrator.

        Errors:
            CommandError: it failed (unless `check` is off) or took too long.
        """
        return run(
            [self.kubectl_path, *arguments],
            stdin=stdin,
            check=check,
            timeout_seconds=timeout_seconds,
            environment=self.environment(),
        )

    def helm(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        timeout_seconds: float | None = 600.0,
    ) -> Result:
        """Run our helm as the cluster's administrator. Errors as those of `kubectl`."""
        return run(
            [self.helm_path, *arguments],
            stdin=stdin,
            check=check,
            timeout_seconds=timeout_seconds,
            environment=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        """The caller's environment with KUBECONFIG and our programs first on PATH.

        kubectl and helm write to folders of the cluster instead of the user's home.
        """
        home = self.folder / "home"
        return without_proxies(os.environ) | {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": self._programs.search_path(),
            "KUBECACHEDIR": str(home / "kube"),
            "KUBERC": "off",
            "HELM_CACHE_HOME": str(home / "helm-cache"),
            "HELM_CONFIG_HOME": str(home / "helm-config"),
            "HELM_DATA_HOME": str(home / "helm-data"),
        }

    def inside(self, argv: Sequence[str], *, node: int = 1) -> list[str]:
        """The command line that runs `argv` in a node's namespaces.

        There Services can be reached by address and by name (NAME.NAMESPACE.svc.cluster.local),
        and the working folder is the caller's.
        """
        process = self.status()["nodes"][str(node)]["pid"]
        if process is None:
            raise NotRunningError(f"{node_name(node)} is gone")
        spaces = f"/proc/{process}/ns"
        names = ("uts", "ipc", "net", "cgroup")
        enter = [f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children"]
        enter += [f"--{name}={spaces}/{name}" for name in names]
        change_folder = ("sh", "-c", 'cd "$0" && exec "$@"', str(Path.cwd()))
        return ["nsenter", *enter, "--", *change_folder, *argv]

    def exec(
        self,
        argv: Sequence[str],
        *,
        node: int = 1,
        stdin: str | None = None,
        check: bool = True,
        timeout_seconds: float | None = 120.0,
    ) -> Result:
        """Run a program inside a node's namespaces and return its output.

        Errors:
            CommandError: it failed (unless `check` is off) or took too long.
        """
        return run(
            self.inside(argv, node=node),
            stdin=stdin,
            check=check,
            timeout_seconds=timeout_seconds,
            environment=self.environment(),
        )

"""Keys, tokens and kubeconfigs of one cluster, created at each start.

Every component has its own name and so its own rights, as in a real cluster.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from pathlib import Path

from devcluster.processes import run
from devcluster.spec import API_SERVICE_ADDRESS, Spec, node_address, node_name

ADMIN = "admin"


def users(spec: Spec) -> dict[str, tuple[str, str]]:
    """Short name → (user name, group) of every client of the API server."""
    people = {
        ADMIN: ("admin", "system:masters"),
        "dns": ("devcluster:dns", "system:masters"),
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-proxy": ("system:kube-proxy", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
    }
    for node in range(1, spec.nodes + 1):
        name = node_name(node)
        people[name] = (f"system:node:{name}", "system:nodes")
    return people


def create(spec: Spec, api_port: int) -> None:
    """Write `pki/` and the user's `kubeconfig` into the cluster's folder.

    The API server listens on the same port in its namespace as its forwarder does on the machine,
    so that the user's kubeconfig works both inside and outside.
    """
    folder = keys_folder(spec.run)
    folder.mkdir(mode=0o700)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    addresses = ["127.0.0.1", API_SERVICE_ADDRESS, node_address(1)]
    program = next(Path(p) / "certs" for p in spec.programs if (Path(p) / "certs").exists())
    run([program, folder, *names, *addresses])
    lines = []
    for short, (name, group) in users(spec).items():
        token = secrets.token_hex(24)
        lines.append(f'{token},{name},{short},"{group}"')
        host = "127.0.0.1" if short == ADMIN else node_address(1)
        path = spec.run / "kubeconfig" if short == ADMIN else kubeconfig_of(spec.run, short)
        _write_secret(path, kubeconfig(f"https://{host}:{api_port}", folder / "ca.crt", token))
    _write_secret(folder / "tokens.csv", "\n".join(lines) + "\n")


def keys_folder(run_folder: Path) -> Path:
    """Where the keys of a cluster are."""
    return run_folder / "pki"


def kubeconfig_of(run_folder: Path, short: str) -> Path:
    """The kubeconfig of a component."""
    return keys_folder(run_folder) / f"{short}.kubeconfig"


def kubeconfig(server: str, authority: Path, token: str) -> str:
    """A kubeconfig in JSON, which every reader of YAML reads. The authority's file is copied in."""
    data = b64encode(authority.read_bytes()).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "devcluster",
                    "cluster": {"server": server, "certificate-authority-data": data},
                }
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [
                {"name": "devcluster", "context": {"cluster": "devcluster", "user": "user"}}
            ],
            "current-context": "devcluster",
        },
        indent=2,
    )


def _write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)

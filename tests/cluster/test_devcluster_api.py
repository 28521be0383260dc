"""The control plane alone, its clients, and the command line."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.programs import written_by

from devcluster import Cluster, DevclusterError, parts
from devcluster.errors import CommandError
from devcluster.paths import TOOLS


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "devcluster", *arguments],
        env=os.environ | {"PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_server_kubectl_and_helm_have_the_pinned_versions(devcluster_api: Cluster) -> None:
    versions = json.loads(devcluster_api.kubectl("version", "-o", "json").stdout)
    helm = devcluster_api.helm("version", "--template", "{{.Version}}").stdout

    assert versions["serverVersion"]["gitVersion"] == parts.kubernetes_version()
    assert versions["clientVersion"]["gitVersion"] == parts.kubernetes_version()
    assert helm == parts.helm_version()


def test_clients_write_nothing_into_the_users_home(
    devcluster_api: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    devcluster_api.kubectl("get", "namespaces")
    devcluster_api.helm("list")

    assert list(tmp_path.rglob("*")) == []


def test_one_kubeconfig_works_outside_and_inside(devcluster_api: Cluster) -> None:
    command = [str(devcluster_api.kubectl_path), "get", "namespace", "default", "-o", "name"]
    kubeconfig = ["--kubeconfig", str(devcluster_api.kubeconfig)]

    outside = written_by([*command, *kubeconfig])
    inside = devcluster_api.exec([*command, *kubeconfig])

    assert outside == inside.stdout == "namespace/default\n"


def test_a_kubeconfig_is_readable_by_its_owner_alone(devcluster_api: Cluster) -> None:
    assert devcluster_api.kubeconfig.stat().st_mode & 0o077 == 0
    assert devcluster_api.folder.stat().st_mode & 0o077 == 0


def test_a_failing_client_command_reports_the_output_of_the_client(devcluster_api: Cluster) -> None:
    with pytest.raises(CommandError, match='configmaps "nothing" not found'):
        devcluster_api.kubectl("get", "configmap", "nothing")


def test_the_command_line_shows_uses_and_explains_a_cluster(devcluster_api: Cluster) -> None:
    chosen = ("--id", devcluster_api.id)

    status = _command("status", *chosen)
    assert "kube-apiserver" in status.stdout
    as_json = json.loads(_command("status", *chosen, "--json").stdout)
    assert as_json["nodes"]["1"]["components"]
    assert _command("kubeconfig", *chosen).stdout.strip() == str(devcluster_api.kubeconfig)
    shell = _command("kubeconfig", *chosen, "--shell").stdout
    version = 'eval "$1"; kubectl get namespace default -o name'
    run = subprocess.run(
        ["sh", "-c", version, "sh", shell], check=False, capture_output=True, text=True
    )
    assert run.stdout == "namespace/default\n"
    inside = _command("exec", *chosen, "--", "hostname")
    assert (inside.returncode, inside.stdout) == (0, "node-1\n")
    assert _command("exec", *chosen, "--", "sh", "-c", "exit 7").returncode == 7
    forwarded = _command("forward", *chosen, "service/kubernetes", "443").stdout
    assert forwarded.startswith("127.0.0.1:")


def test_the_command_line_names_the_error_and_the_remedy() -> None:
    nowhere = _command("kubeconfig", "--id", "nowhere")
    assert nowhere.returncode == 1
    assert "there is no cluster 'nowhere'" in nowhere.stderr
    assert "remedy: start it" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr
    assert "cannot be the id" in _command("status", "--id", "No Such Id").stderr
    assert "has no '='" in _command("load-image", "x:y", "--file", "nothing").stderr


def test_tls_is_laid_around_a_socket_before_it_connects(
    devcluster_api: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Afterwards Python 3.11 can lose the socket, when the connection is reset in between.
    connected = []
    context = devcluster_api.api._context
    wrap = context.wrap_socket

    def watched(plain: socket.socket, **options: Any) -> ssl.SSLSocket:
        connected.append(plain.getsockname()[1] != 0)
        return wrap(plain, **options)

    monkeypatch.setattr(context, "wrap_socket", watched)

    assert devcluster_api.api.is_ready()
    assert connected == [False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"profile": "api", "nodes": 2}, "2 nodes", id="two nodes without a node"),
        pytest.param({"nodes": 3}, "3 nodes", id="three nodes"),
        pytest.param({"mounts": [("a", "/a")]}, "source a must be", id="a relative source"),
        pytest.param({"mounts": [("/nothing", "/a")]}, "exists", id="a source that is not there"),
        pytest.param({"mounts": [("/usr", "a")]}, "destination a must", id="a relative target"),
        pytest.param({"cluster_id": "No Id"}, "cannot be the id", id="an id unfit for files"),
    ],
)
def test_a_start_with_impossible_arguments_is_refused(
    devcluster_api_possible: None, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(DevclusterError, match=words):
        Cluster.start(**arguments)  # a table of wrong arguments

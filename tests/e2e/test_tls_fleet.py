"""A fleet with a certificate: clients use HTTPS, and workers read versions from each other over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
from tests.e2e.conftest import NAMESPACE, Fleet
from tests.support.certificates import issue

import stack
from stack.fleets import MODEL_NAME

pytestmark = pytest.mark.long
NAME = "private"
HOST = f"{NAME}.{NAMESPACE}.svc"
WORKERS = 2
STARTS_SECONDS = 300


def manifest(step: int) -> tuple[dict, dict]:
    """The fleet of the how-to's section on TLS, with peers, and its WeightVersion."""
    made = stack.fleet_manifest(NAME, replicas=WORKERS)
    spec = made["spec"]
    flags = ["--ssl-certfile=/tls/tls.crt", "--ssl-keyfile=/tls/tls.key", "--enable-ssl-refresh"]
    spec["engine"] = spec["engine"] | {"args": [*spec["engine"].get("args", ()), *flags]}
    spec["weights"]["peers"] = {"enabled": True}
    mount = {"name": "tls", "mountPath": "/tls", "readOnly": True}
    spec["podOverlay"] = {
        "spec": {
            "volumes": [{"name": "tls", "secret": {"secretName": f"{NAME}-tls"}}],
            "containers": [{"name": "worker", "volumeMounts": [mount]}],
        }
    }
    return made, stack.weights_manifest(NAME, fleet=NAME, version=str(step))


def test_clients_and_peers_of_a_fleet_with_a_certificate_use_tls(
    fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    certificate, key = issue(tmp_path / "tls", HOST)
    files = (f"--cert={certificate}", f"--key={key}")
    fleet.kubectl("create", "secret", "tls", f"{NAME}-tls", *files)
    request.addfinalizer(
        lambda: fleet.kubectl("delete", "ifl,wv,secret", NAME, f"{NAME}-tls", check=False)
    )
    first, second = fleet.next_step(), fleet.next_step()
    fleet.apply(*manifest(first))
    fleet.wait_ready(f"ifl/{NAME}", seconds=STARTS_SECONDS)
    fleet.wait_ready(f"wv/{NAME}")
    assert fleet.get(f"ifl/{NAME}")["status"]["endpoint"] == f"https://{HOST}:8000"

    fleet.kubectl("patch", "wv", NAME, "--type=merge", "-p", f'{{"spec":{{"version":"{second}"}}}}')
    fleet.wait_ready(f"wv/{NAME}")
    status = fleet.get(f"wv/{NAME}")["status"]
    assert (status["appliedVersion"], status["workersApplied"]) == (
        str(second),
        f"{WORKERS}/{WORKERS}",
    )
    assert status["storeReads"]["peerWorkers"] == 1, status["storeReads"]

    port = fleet.cluster.forward(fleet.namespace, f"service/{NAME}", 8000)
    trusts = ssl.create_default_context(cafile=certificate)
    asked = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 4}
    with httpx.Client(verify=trusts, trust_env=False, timeout=60) as client:
        url = f"https://127.0.0.1:{port}/v1/completions"
        reply = client.post(url, json=asked, extensions={"sni_hostname": HOST})
    assert reply.status_code == 200, reply.text
    (span,) = reply.json()["choices"][0]["weight_versions"]
    assert (span["version"], span["end"]) == (str(second), 4)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, trust_env=False)

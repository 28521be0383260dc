"""A small web server in an image of ours: what tests of the development cluster run in pods."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from devcluster import Cluster, ImageConfig

APP_IMAGE = "rlfleet/test-app:dev"
PYTHON = f"{sys.base_prefix}/bin/python3"
APP_MOUNTS = tuple({("/usr", "/usr"), (sys.base_prefix, sys.base_prefix)})

_SOURCE = '''
import http.server, json, os, socket, sys
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Describe this process; with a path, send what the file or folder of that path holds."""
        path = Path(self.path)
        if self.path == "/":
            facts = {"uid": os.getuid(), "pod": socket.gethostname(), "python": sys.prefix,
                    "greeting": os.environ.get("GREETING")}
            body = json.dumps(facts).encode()
        else:
            body = path.read_bytes()
        self.reply(body)

    def do_PUT(self):
        """Write a file; the answer says what went wrong."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            Path(self.path).write_bytes(content)
        except OSError as error:
            self.reply(error.strerror.encode())
        else:
            self.reply(b"written")

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


print("serving", flush=True)
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
'''


def load_app(cluster: Cluster) -> None:
    """Load the server's image: the machine's own Python runs it."""
    config = ImageConfig(
        entrypoint=(PYTHON, "/app/server.py"), environment={"GREETING": "hello from the image"}
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "server.py").write_text(_SOURCE)
        cluster.load_image(APP_IMAGE, {"/app": Path(folder)}, config)


def app_pod(**spec: Any) -> dict[str, Any]:
    """The spec of a pod with the server, as locked down as production pods are."""
    container = {
        "name": "app",
        "image": APP_IMAGE,
        "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1},
        "securityContext": {
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    } | spec.pop("container", {})
    return {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **spec,
    }


def deployment(name: str, replicas: int, **spec: Any) -> dict[str, Any]:
    """A Deployment of the server."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": app_pod(**spec)},
        },
    }


def service(name: str) -> dict[str, Any]:
    """A Service in front of the Deployment of the same name, on port 80."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A single pod with the server."""
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": app_pod(**spec)}


def apply(cluster: Cluster, namespace: str, *objects: dict[str, Any]) -> None:
    """Apply objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

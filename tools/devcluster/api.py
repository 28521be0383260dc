"""The few questions to the API server that starting a cluster needs, without a client library."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devcluster.errors import CommandError, DevclusterError

Object = dict[str, Any]

_TIMEOUT_SECONDS = 10.0
_SERVICE = ("services", "spec", "clusterIP")
_ADDRESSES = {
    "": _SERVICE,
    "service": _SERVICE,
    "svc": _SERVICE,
    "pod": ("pods", "status", "podIP"),
}
"""Kind → where its address is: resource, part of the object, field."""


class Api:
    """One user's access to an API server, from one of the cluster's kubeconfigs."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        self._server = urlsplit(cluster["server"])
        self._token = config["users"][0]["user"]["token"]

    def get(self, path: str) -> Object | None:
        """Read an object or a list.

        Returns:
            None if there is no object of this name, or the server does not answer (yet).
        """
        try:
            status, body = self._request("GET", path)
        except (OSError, http.client.HTTPException):
            return None
        return json.loads(body) if status == 200 else None

    def is_ready(self) -> bool:
        """Whether the server says that it is."""
        try:
            return self._request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def patch(self, path: str, operations: list[Object]) -> None:
        """Apply a JSON patch.

        Errors:
            CommandError: the server refused; its words are in the message.
        """
        status, body = self._request(
            "PATCH", path, json.dumps(operations), "application/json-patch+json"
        )
        if status != 200:
            raise CommandError(f"patch of {path}: {status} {body.decode(errors='replace')}")

    def address_of(self, namespace: str, target: str) -> str:
        """The address of "service/NAME", "pod/NAME", or NAME for a Service.

        Errors:
            DevclusterError: no such target, or it has no address (yet).
        """
        kind, _, name = target.rpartition("/")
        if kind not in _ADDRESSES:
            raise DevclusterError(f"a {kind} has no address", remedy="service/NAME or pod/NAME")
        plural, section, key = _ADDRESSES[kind]
        found = self.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        address = (found or {}).get(section, {}).get(key)
        if not address or address == "None":
            reason = "has no address of its own" if found else "does not exist"
            raise DevclusterError(f"{target} in namespace {namespace} {reason}")
        return str(address)

    def _request(
        self, method: str, path: str, body: str | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        host, port = self._server.hostname or "", self._server.port
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS)
        # TLS wraps the socket before it connects. Otherwise Python 3.11 leaks the socket if the
        # connection is reset at that moment, as happens while the server starts. Tests turn its
        # warning into an error.
        connection.sock = self._context.wrap_socket(socket.socket(), server_hostname=host)
        try:
            connection.sock.settimeout(_TIMEOUT_SECONDS)
            connection.sock.connect((host, port))
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

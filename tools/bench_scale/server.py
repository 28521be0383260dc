"""The API server as the harness uses it: one kept connection, and the counts of what was written."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
_REQUESTS = re.compile(r"apiserver_request_total\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
OURS = frozenset({"inferencefleets", "weightversions"})
"""Written by the harness itself, except for their status."""
_SECONDS = 120.0


class Server:
    """One user's access to an API server."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        address = urlsplit(cluster["server"])
        self._connection = http.client.HTTPSConnection(
            str(address.hostname),
            address.port,
            timeout=_SECONDS,
            context=ssl.create_default_context(cadata=authority),
        )
        self._token = config["users"][0]["user"]["token"]

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def connect(self) -> None:
        """Have a connection, so that the next request is not the first one of it."""
        self.request("GET", "/readyz")

    def get(self, path: str) -> Json:
        """An object or a list."""
        found: Json = json.loads(self.request("GET", path))
        return found

    def request(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> bytes:
        """One request.

        Errors: RuntimeError with the server's words, if it refuses.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        sent = None if body is None else json.dumps(body)
        for attempt in range(2):
            try:
                self._connection.request(method, path, body=sent, headers=headers)
                answer = self._connection.getresponse()
                answered = answer.read()
                break
            except (OSError, http.client.HTTPException):
                self._connection.close()  # the server has ended what was kept
                if attempt:
                    raise
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answered[:500].decode()}")
        return answered

    def writes(self) -> int:
        """Writes that the server has done for the operator: all but the harness's own, those of the
        fake kubelet (the status of pods), and Leases, which are renewed whatever happens.
        """
        found = 0.0
        for line in self.request("GET", "/metrics").decode().splitlines():
            match = _REQUESTS.fullmatch(line)
            if match is None:
                continue
            labels = dict(_LABEL.findall(match[1]))
            if is_of_operator(labels):
                found += float(match[2])
        return round(found)


def is_of_operator(labels: dict[str, str]) -> bool:
    """Whether a series of `apiserver_request_total` counts writes of the operator."""
    resource, sub = labels.get("resource", ""), labels.get("subresource", "")
    if labels.get("verb") not in _WRITES or resource == "leases":
        return False
    if resource == "pods":
        return sub == ""
    if resource in OURS:
        return sub == "status"
    return resource in {"configmaps", "events", "secrets", "services", "poddisruptionbudgets"}

"""A fake of the API server for the RL API: objects by namespace, tokens, rights and pods."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

from tests.support.fake_objects import TIME, FakeObjects
from yarl import URL

from rlfleet.errors import NotFound
from rlfleet.ports import Json
from rlfleet_resources import names

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
FLEET_UID = "uid-of-policy"
FLEET: Json = {
    "metadata": {"name": "policy", "namespace": "rl", "uid": FLEET_UID, "generation": 1},
    "spec": {
        "replicas": 2,
        "model": {"name": "qwen", "source": {"path": "/weights/base"}, "version": "0"},
        "engine": {"tensorParallelSize": 2, "pipelineParallelSize": 2},
        "weights": {"roots": ["/weights"]},
    },
    "status": {
        "observedGeneration": 1,
        "desiredVersion": "42",
        "versions": [{"version": "42", "workers": 2, "digest": "sha256:" + "4" * 64}],
        "workers": {"total": 2, "serving": 2},
        "endpoint": "http://policy.rl.svc:8000",
    },
}
PODS = "/api/v1/namespaces/rl/pods"
SERVICES = "/api/v1/namespaces/rl/services/"
READER, TRAINER, STRANGER = "reader-token", "trainer-token", "stranger-token"


def account(namespace: str, name: str) -> Json:
    return {
        "username": f"system:serviceaccount:{namespace}:{name}",
        "uid": f"uid-of-{name}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/pod-name": [f"{name}-0"]},
    }


def token_of(namespace: str, number: int = 0) -> str:
    """A token that names an account of a namespace."""
    claims = {"sub": f"system:serviceaccount:{namespace}:a-{number}"}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def pod(ordinal: int, *, fleet: str = "policy", owner: str = FLEET_UID, **status: Any) -> Json:
    return {
        "metadata": {
            "name": f"{fleet}-{ordinal}",
            "uid": f"uid-of-{fleet}-{ordinal}",
            "labels": {"rlfleet.dev/fleet": fleet, "rlfleet.dev/ordinal": str(ordinal)},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.0.0.{ordinal + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "worker", "started": True}],
        }
        | status,
    }


def service(name: str, address: str, port: int, selector: Json, owner: str = FLEET_UID) -> Json:
    """A Service as the operator makes it."""
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": owner, "controller": True}]},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "selector": selector,
            "ports": [{"name": "http", "protocol": "TCP", "port": port, "targetPort": "http"}],
        },
    }


class FakeCluster:
    """Fleet `policy` in namespace `rl`. Accounts: a reader, a trainer, and one of namespace `other`."""

    def __init__(self) -> None:
        self.objects = FakeObjects()
        self.objects.fleet = copy.deepcopy(FLEET)
        self.pods = [pod(1), pod(0)]
        self.users = {
            READER: account("rl", "reader"),
            TRAINER: account("rl", "trainer"),
            STRANGER: account("other", "trainer"),
        }
        reads = {
            ("get", "inferencefleets", "rl", "policy"),
            ("get", "weightversions", "rl", "policy"),
        }
        self.rights = {
            "system:serviceaccount:rl:reader": reads,
            "system:serviceaccount:rl:trainer": reads
            | {("patch", "weightversions", "rl", "policy")},
        }
        self.tenants: dict[str, FakeObjects] = {}
        """Objects of other namespaces."""
        self.services: dict[str, Json] = {}
        """By name. By default nothing listens there."""
        self.lead("http://127.0.0.9:8000")
        self.secrets: dict[str, Json] = {}
        """By path."""
        self.columns = ["Name", "Ready", "Status", "Restarts", "Age", "IP"]
        """Columns of the API server's table of pods."""
        self.times_all_pods_were_read = 0
        self.calls: list[tuple[str, str, Json | None]] = []
        self.fail: Callable[[str], None] = lambda _: None
        """Called with each path; may raise the server's error."""

    @property
    def fleet(self) -> Json:
        assert self.objects.fleet is not None
        return self.objects.fleet

    def add_tenant(self, namespace: str, *tokens: str) -> FakeObjects:
        """A copy of the fleet in another namespace, and an account with all rights on it for each token."""
        made = self.tenants[namespace] = FakeObjects()
        made.fleet = copy.deepcopy(self.fleet)
        for token in tokens:
            self.users[token] = account(namespace, token)
            self.rights[self.users[token]["username"]] = {
                (verb, kind, namespace, "policy")
                for verb, kind in (
                    ("get", "inferencefleets"),
                    ("get", "weightversions"),
                    ("patch", "weightversions"),
                )
            }
        return made

    def lead(self, endpoint: str, router: str | None = None) -> None:
        """Let the fleet's Services lead to these URLs, which have one port."""
        url = URL(endpoint)
        name, port = self.fleet["metadata"]["name"], url.port or 0
        self.fleet["spec"].setdefault("serving", {})["port"] = port
        made = [service(name, url.host or "", port, names.endpoint_selector(name))]
        if router is not None:
            self.fleet["spec"]["router"] = {"image": "router"}
            address, selector = URL(router).host or "", names.router_selector(name)
            made.append(service(names.router_name(name), address, port, selector))
        self.services |= {one["metadata"]["name"]: one for one in made}

    def _table_of(self, path: str) -> Json:
        if path == PODS:
            return table_of(self.columns, [_cells(each) for each in self.pods])
        objects = self.of(path.split("/")[-2])
        objects._serve("table weightversions")
        found = [] if objects.weights is None else [objects.weights]
        return table_of(WEIGHTS_COLUMNS, [row_of(one) for one in found])

    def count(self, path: str) -> int:
        return sum(called == path for _, called, _ in self.calls)

    def of(self, namespace: str) -> FakeObjects:
        if namespace == "rl":
            return self.objects
        if namespace in self.tenants:
            return self.tenants[namespace]
        elsewhere = FakeObjects()
        elsewhere.fleet = elsewhere.weights = None
        return elsewhere

    async def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        accept: str = "application/json",
    ) -> Json:
        self.calls.append((method, path, body))
        self.fail(path)
        if path == TOKEN_REVIEWS and body is not None:
            user = self.users.get(body["spec"]["token"])
            audiences = body["spec"].get("audiences", [])
            answer = {"authenticated": True, "user": user, "audiences": audiences}
            return {"status": answer if user else {"error": "invalid bearer token"}}
        if path == ACCESS_REVIEWS and body is not None:
            asked = body["spec"]["resourceAttributes"]
            part = f"/{asked['subresource']}" if "subresource" in asked else ""
            resource = asked["resource"] + part
            right = (asked["verb"], resource, asked["namespace"], asked["name"])
            return {"status": {"allowed": right in self.rights.get(body["spec"]["user"], set())}}
        if "as=Table" in accept:
            return self._table_of(path)
        if path == PODS and params is not None:
            self.times_all_pods_were_read += 1
            return {"items": copy.deepcopy(self.pods)}
        parent, _, name = path.rpartition("/")
        if parent.endswith("/services") and name in self.services:
            return copy.deepcopy(self.services[name])
        if path in self.secrets:
            return copy.deepcopy(self.secrets[path])
        raise NotFound(f"{method} {path}")


WEIGHTS_COLUMNS = ["Name", "Ready", "Fleet", "Age", "Adapter", "Created"]


def row_of(weights: Json) -> dict[str, Any]:
    """As the API server prints a WeightVersion: a field that is not there is null."""
    metadata, spec = weights["metadata"], weights["spec"]
    return {
        "Name": metadata["name"],
        "Ready": "True",
        "Fleet": spec["fleetRef"]["name"],
        "Age": "5m",
        "Adapter": spec.get("adapter"),
        "Created": metadata.get("creationTimestamp", TIME),
    }


def table_of(columns: list[str], rows: list[dict[str, Any]]) -> Json:
    return {
        "columnDefinitions": [{"name": name} for name in columns],
        "rows": [{"cells": [row[name] for name in columns]} for row in rows],
    }


def _cells(each: Json) -> dict[str, Any]:
    """As the API server prints a pod."""
    container = next(iter(each["status"]["containerStatuses"]), {})
    restarts = container.get("restartCount", 0)
    return {
        "Name": each["metadata"]["name"],
        "Ready": "1/1",
        "Status": "Terminating" if "deletionTimestamp" in each["metadata"] else "Running",
        "Restarts": f"{restarts} (5m ago)" if restarts else restarts,
        "Age": "5m",
        "IP": each["status"].get("podIP"),
    }

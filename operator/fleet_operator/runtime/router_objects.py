"""The objects of the routers of all fleets, as the watches show them."""

from __future__ import annotations

from fleet_operator.core.observed import RouterObject, RouterView
from fleet_operator.ports import Json
from fleet_operator.runtime.pod_informer import FleetKey
from rlfleet_resources import names


class RouterObjects:
    """Deployments and Services of routers, by fleet and path."""

    def __init__(self) -> None:
        self._seen: dict[FleetKey, dict[str, tuple[RouterObject, int, str]]] = {}

    def put(self, key: FleetKey, path: str, body: Json) -> bool:
        """Take in an object. Returns: whether the router's view changed. Other objects change nothing."""
        metadata = body["metadata"]
        if metadata["labels"].get(names.LABEL_NAME) != names.ROUTER_APP_NAME:
            return False
        owner = names.controller_uid(metadata)
        made = RouterObject(path=path, uid=metadata["uid"], owner=owner)
        status = body.get("status", {})
        entry = (made, int(status.get("readyReplicas", 0)), _problem(status))
        of_fleet = self._seen.setdefault(key, {})
        changed = of_fleet.get(path) != entry
        of_fleet[path] = entry
        return changed

    def remove(self, key: FleetKey, path: str) -> bool:
        """Forget an object. Returns: whether it was a router's."""
        of_fleet = self._seen.get(key, {})
        gone = of_fleet.pop(path, None)
        if not of_fleet:
            self._seen.pop(key, None)
        return gone is not None

    def of(self, key: FleetKey, uid: str) -> RouterView:
        """The router of a fleet. `uid`: of the fleet. Objects of other owners are not its router, whatever
        their labels.
        """
        entries = [e for e in self._seen.get(key, {}).values() if e[0].owner == uid]
        return RouterView(
            objects=tuple(made for made, _, _ in entries),
            ready_replicas=sum(ready for _, ready, _ in entries),
            problem=next((problem for _, _, problem in entries if problem), ""),
        )


def _problem(status: Json) -> str:
    """Why a Deployment has no pods. Source: Kubernetes apps/v1 DeploymentCondition."""
    for condition in status.get("conditions", ()):
        failed = condition["type"] == "ReplicaFailure" and condition["status"] == "True"
        stuck = condition["type"] == "Progressing" and condition["status"] == "False"
        if failed or stuck:
            return str(condition.get("message", condition.get("reason", "")))
    return ""

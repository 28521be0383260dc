"""The writes that a decision asks for, other than statuses: pods and the fleet's children."""

from __future__ import annotations

from functools import partial

from fleet_operator.api import names
from fleet_operator.core.decision import Decision
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.runtime.background_writes import Write
from fleet_operator.runtime.callers import TOKEN
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.pod_writer import PodWriter
from fleet_operator.runtime.problems import PODS, Problems


class DecidedWrites:
    """Makes the writes of decisions. `problems`: parts that have failed are written again."""

    def __init__(self, children: KubeChildren, pods: PodWriter, problems: Problems) -> None:
        self._children = children
        self._pods = pods
        self._problems = problems

    def writes(
        self, key: FleetKey, observed: FleetObserved, decision: Decision
    ) -> dict[str, Write]:
        """The writes of a decision, by part."""
        actions = decision.pod_actions
        if any(self._problems.has(key, part) for part in (TOKEN, _applied_part(key))):
            # A new worker would start with a foreign token or ConfigMap.
            actions = tuple(a for a in actions if not isinstance(a, CreatePod))
        applied = decision.rollout.applied if decision.is_planned else None
        has_failed = partial(self._problems.has, key)
        writes = self._children.due(observed, applied, failed=has_failed)
        self._problems.note_gone(key, self._children.router_parts(observed).difference(writes))
        if actions or has_failed(PODS):
            writes[PODS] = partial(self._pods.run, key, actions)
        return writes


def _applied_part(key: FleetKey) -> str:
    return f"ConfigMap {names.applied_config_map_name(key[1])}"

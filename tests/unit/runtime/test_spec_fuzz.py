"""Any InferenceFleet and WeightVersion leads to a decision, or to a condition that refuses it.

Whole specs go the way of the operator: the store reads them, `decide` takes what could be read. The
API server's schema is not in the way here, since an older operator may meet objects of newer CRDs.
Hypothesis prints the seed of a run that fails (`--hypothesis-seed`).
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.builders import NOW, make_fleet, make_worker, with_template
from tests.support.present import present

from fleet_operator.core.decision import decide
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.runtime.store import FleetRecord, Store
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import WeightsStatus

KEY = ("rl", "policy")
WORKERS = make_fleet(
    make_worker(0).serving("base"),
    make_worker(1).serving("base").staged("7"),
    make_worker(2).paused("base"),
    make_worker(3).starting(),
    make_worker(4).broken(),
).workers
MAX_CHANGES = 3

FLEET: dict[str, Any] = {
    "replicas": 5,
    "model": {"name": "m", "source": {"path": "/models/base"}, "version": "base"},
    "engine": {
        "image": "rlfleet/worker:1",
        "args": ["--max-model-len=64"],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "c"}}],
        "silenceTimeoutSeconds": 60,
        "logLevel": "Info",
        "tensorParallelSize": 2,
        "pipelineParallelSize": 1,
    },
    "resources": {
        "limits": {"nvidia.com/gpu": 2},
        "requests": {"cpu": "500m"},
        "claims": [{"name": "gpus"}],
    },
    "pod": {
        "priorityClassName": "research",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}],
    },
    "weights": {
        "roots": ["/weights"],
        "volumes": [
            {
                "name": "weights",
                "mountPath": "/weights",
                "readOnly": True,
                "persistentVolumeClaim": {"claimName": "weights"},
            }
        ],
        "management": "Operator",
        "stagingMemory": "64Gi",
        "transfer": {"backend": "nccl"},
    },
    "adapters": {"max": 1, "maxRank": 16},
    "rollout": {
        "strategy": "Synchronized",
        "canary": {
            "workers": 1,
            "then": "Rolling",
            "prompts": ["hello"],
            "maxTokens": 8,
            "maxRepetitionPercent": 50,
            "maxLogprobDriftMillinats": 2000,
            "maxKLMillinats": 2000,
        },
        "pause": {"mode": "Keep", "drainTimeoutSeconds": 60},
        "maxUnavailable": "25%",
        "timeouts": {"stageSeconds": 900, "pauseSeconds": 60, "loadSeconds": 600},
        "maxFailures": 0,
        "onFailure": "Halt",
    },
    "update": {"maxUnavailable": 1, "maxSurge": 0},
    "recycle": {"maxPerWorker": 5, "maxPerFleet": 10, "windowSeconds": 3600},
    "serving": {"port": 8000, "adminPort": 8081, "service": {"type": "NodePort"}},
    "podOverlay": {"spec": {"nodeSelector": {"gpu": "h200"}}},
}
WEIGHTS: dict[str, Any] = {
    "fleetRef": {"name": "policy"},
    "adapter": "",
    "version": "7",
    "source": {"path": "/weights/step_{version}"},
    "digest": f"sha256:{7:064x}",
    "runID": "run-1",
    "rollbackTo": "7",
    "suspend": False,
    "rollout": FLEET["rollout"],
}
LONG_PATH = WEIGHTS | {"version": "v" * 63, "source": {"path": f"/{'a' * 1000}/{{version}}"}}
"""Filled in, this path is longer than one may be."""
ADAPTER = WEIGHTS | {"adapter": "lora", "source": {"path": "/weights/lora_{version}"}}

# Values of the specs' own fields, so that more than the first odd field is reached.
FITTING = st.sampled_from(
    (
        *(0, 1, 2, 8, 64, 10_000, 86_400, 0.0, 1.0, "0", "1%", "100%", "", "base", "7", "run-1"),
        *("Synchronized", "InFlight", "Rolling", "Canary", "External", "Operator", "Rollback"),
        *("keep", "wait", "abort", "/weights", "/weights/{version}/{version}", "lora", "m"),
        *(f"sha256:{0:064x}", True, False, "policy", "main"),
        *({"path": "/elsewhere"}, {"huggingFace": {"repo": "a/b"}}, {}, []),
    )
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ("-1%", "101%", "a" * 2000, "/", "//a", "{version}", "\x00", "é", "-", "A@b")
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths_in(value: Any, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of everything in a spec; the spec itself is ()."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [prefix, *(p for key, inner in items for p in paths_in(inner, (*prefix, key)))]


def put(spec: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The spec with another value at a path, which an earlier change may have taken away."""
    if not path:
        return value
    at = spec
    for key in path[:-1]:
        try:
            at = at[key]
        except (KeyError, IndexError, TypeError):
            return spec
    if isinstance(at, dict) or (isinstance(at, list) and path[-1] in range(len(at))):
        at[path[-1]] = value
    return spec


@st.composite
def changed(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    spec: Any = copy.deepcopy(whole)
    inner = [p for p in paths_in(whole) if p]
    places = st.sampled_from(inner) | st.just(())
    # The whole spec is replaced now and then; most of the time something within it is.
    for _ in range(draw(st.integers(0, MAX_CHANGES))):
        path = draw(places if draw(st.integers(0, 9)) == 0 else st.sampled_from(inner))
        spec = put(spec, path, copy.deepcopy(draw(FITTING | ODD)))
    return spec


def body(name: str, spec: Any, *, generation: int) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": KEY[0],
        "uid": f"uid-{name}",
        "generation": generation,
        "creationTimestamp": (NOW - timedelta(hours=1)).isoformat(),
    }
    return {"metadata": metadata, "spec": spec}


def filled(fleet: Any, weights: list[Any], *, known: bool) -> Store:
    """A store that has these specs; `known`: after others of the same objects, which could be read."""
    store = Store(lambda _: None)
    names = [f"wv-{n}" for n in range(len(weights))]
    if known:
        store.put_fleet(body("policy", FLEET, generation=1))
        for name in names:
            store.put_weights(body(name, WEIGHTS, generation=1))
    store.put_fleet(body("policy", fleet, generation=2))
    for name, spec in zip(names, weights, strict=True):
        store.put_weights(body(name, spec, generation=2))
    return store


def check_refused(status: FleetStatus | WeightsStatus) -> None:
    """Another reason may come first, such as that of a second WeightVersion."""
    stalled = present(condition_of(status.conditions, ConditionType.STALLED))
    assert stalled.reason is ConditionReason.INVALID_SPEC or "cannot be read" in stalled.message


def check(store: Store) -> None:
    record = present(store.fleet(KEY))
    weights, unread = store.weights_of(KEY), store.unread_of(KEY)
    if record.spec is None:
        made = report_undecided(
            KEY[1],
            generation=record.generation,
            unreadable=record.unreadable,
            status=record.status,
            weights=[*weights, *unread],
            problems=(),
            staleness=None,
            now=NOW,
        )
        check_refused(made.fleet)
        for each in (*weights, *unread):
            check_refused(made.weights[each.uid])
        return
    check_decided(record, store)


def check_decided(record: FleetRecord, store: Store) -> None:
    weights, unread = store.weights_of(KEY), store.unread_of(KEY)
    assert record.spec is not None
    observed = with_template(
        replace(
            make_fleet(),
            spec=record.spec,
            generation=record.generation,
            unreadable=record.unreadable,
            weights=weights,
            unread=unread,
            workers=WORKERS,
        )
    )
    made = decide(observed, default_image="rlfleet/worker:1", now=NOW)
    assert made.defects == ()
    assert condition_of(made.fleet.conditions, ConditionType.READY) is not None
    json.dumps(made.fleet.to_json())
    json.dumps([a.manifest for a in made.pod_actions if isinstance(a, CreatePod)])
    if record.unreadable:
        check_refused(made.fleet)
    for each in (*weights, *unread):
        status = made.weights[each.uid]
        assert status.conditions
        json.dumps(status.to_json())
        if each.unreadable:
            check_refused(status)


@settings(max_examples=150, print_blob=True)
@given(
    fleet=changed(FLEET), weights=changed(WEIGHTS), adapter=changed(ADAPTER), known=st.booleans()
)
def test_any_specs_get_a_decision_or_a_condition(fleet, weights, adapter, known):
    check(filled(fleet, [weights, adapter], known=known))


@settings(max_examples=150, print_blob=True)
@example(weights=[LONG_PATH], known=False)
@given(weights=st.lists(changed(WEIGHTS) | changed(ADAPTER), max_size=3), known=st.booleans())
def test_any_weight_versions_of_a_good_fleet_get_a_decision_or_a_condition(weights, known):
    check(filled(FLEET, weights, known=known))


def test_the_specs_that_are_changed_are_good_ones():
    store = filled(FLEET, [WEIGHTS, ADAPTER], known=False)
    record = present(store.fleet(KEY))

    assert not record.unreadable
    assert len(store.weights_of(KEY)) == 2
    check(store)

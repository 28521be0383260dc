"""No label and no annotation that a user can change raises in the operator."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import example, given, settings
from tests.support.builders import FLEET_UID, NOW, make_fleet
from tests.support.odd_metadata import LONE_SURROGATE, POD_ANNOTATIONS, TEXTS, marked

from fleet_operator.core.decision import decide
from fleet_operator.core.facts import Workers
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.pod_actions import CreatePod
from fleet_operator.errors import ObjectUnread
from fleet_operator.runtime.pod_informer import PodStore
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.worker_cache import WorkerCache
from rlfleet_resources import names

KEY = ("rl", "policy")
WEIGHT_ANNOTATIONS = (names.ANNOTATION_RETRY, names.ANNOTATION_TRACEPARENT)
WEIGHTS: dict[str, Any] = {
    "metadata": {
        "name": "policy",
        "namespace": "rl",
        "uid": "w",
        "generation": 1,
        "creationTimestamp": (NOW - timedelta(hours=1)).isoformat(),
        "annotations": {},
    },
    "spec": {"fleetRef": {"name": "policy"}, "version": "7", "source": {"path": "/weights/7"}},
}


def pod(ordinal: int) -> dict[str, Any]:
    labels = names.fleet_labels("policy") | {names.LABEL_ORDINAL: str(ordinal)}
    metadata = {"name": f"policy-{ordinal}", "namespace": "rl", "uid": f"uid-{ordinal}"}
    owners = [{"uid": FLEET_UID, "controller": True}]
    return {
        "metadata": metadata | {"labels": labels, "ownerReferences": owners},
        "status": {"phase": "Running", "podIP": f"10.0.0.{ordinal}"},
    }


def quarantined(ordinal: int, text: str) -> dict[str, Any]:
    found = pod(ordinal)
    found["metadata"]["annotations"] = {names.ANNOTATION_QUARANTINE: text}
    return found


@settings(max_examples=300, print_blob=True)
@example(first=quarantined(0, LONE_SURROGATE), second=pod(1), weights=WEIGHTS)
@given(
    first=marked(pod(0), POD_ANNOTATIONS),
    second=marked(pod(1), POD_ANNOTATIONS),
    weights=marked(WEIGHTS, WEIGHT_ANNOTATIONS),
)
def test_any_labels_and_annotations_lead_to_a_decision(first, second, weights):
    pods, cache, store = PodStore(lambda _: None), WorkerCache(), Store(lambda _: None)
    for each in (pod(0), first, second):
        with suppress(ObjectUnread):  # reported on its fleet
            pods.put(each)
    store.put_weights(weights)
    views = [cache.view(each, 0.0) for each in pods.pods_of(KEY)]
    observed = replace(
        make_fleet(replicas=2), workers=Workers(views), weights=store.weights_of(KEY)
    )

    made = decide(observed, default_image="rlfleet/worker:1", now=NOW)

    assert made.defects == ()
    for status in (made.fleet, *made.weights.values()):
        json.dumps(status.to_json(), ensure_ascii=False).encode()
    json.dumps([a.manifest for a in made.pod_actions if isinstance(a, CreatePod)])


@settings(max_examples=100, print_blob=True)
@given(traceparent=TEXTS, retry=TEXTS)
def test_a_weight_version_is_read_whatever_its_annotations_are(traceparent, retry):
    store = Store(lambda _: None)
    annotations = {names.ANNOTATION_TRACEPARENT: traceparent, names.ANNOTATION_RETRY: retry}
    store.put_weights(WEIGHTS | {"metadata": WEIGHTS["metadata"] | {"annotations": annotations}})

    (read,) = store.weights_of(KEY)
    assert isinstance(read, WeightsView)


def test_what_is_kept_of_an_object_is_small_whatever_its_annotations_and_owners_are():
    """The API server takes 256 KiB of annotations, and more of owners."""
    long = "x" * 250_000
    owners = [{"uid": long, "controller": True}]
    marks = dict.fromkeys((*POD_ANNOTATIONS, *WEIGHT_ANNOTATIONS), long)
    pods, routers, store = PodStore(lambda _: None), RouterObjects(), Store(lambda _: None)
    worker = pod(0)
    worker["metadata"] |= {"annotations": marks, "ownerReferences": owners}
    pods.put(worker)
    for ordinal, reason in enumerate(("InvalidImageName", "ImagePullBackOff", "Other"), start=1):
        waits = pod(ordinal)
        state = {"waiting": {"reason": reason, "message": long}}
        waits["status"]["containerStatuses"] = [{"name": names.WORKER_CONTAINER, "state": state}]
        pods.put(waits)
    labels = {names.LABEL_NAME: names.ROUTER_APP_NAME}
    routers.put(KEY, "/a", {"metadata": {"uid": "r", "labels": labels, "ownerReferences": owners}})
    metadata = WEIGHTS["metadata"] | {"annotations": marks, "ownerReferences": owners}
    store.put_weights(WEIGHTS | {"metadata": metadata})

    kept = (*pods.pods_of(KEY), store.weights_of(KEY), routers._seen)
    assert [len(repr(each)) < 4096 for each in kept] == [True] * 6

"""Refusals of the API server, unreadable objects and defects of the operator: `Stalled` reports each
with a remedy and goes when its cause goes. Pauses are renewed meanwhile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from tests.support.present import present
from tests.support.rig import FLEET_PATH, PODS_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.core import decision
from fleet_operator.errors import FleetError, Retryable, Terminal
from fleet_operator.ports import Json
from fleet_operator.runtime import reconcile
from fleet_operator.runtime.operator_process import SWEEP_SECONDS
from fleet_worker.protocol import Phase

pytestmark = pytest.mark.virtual_time

CORE = "/api/v1/namespaces/rl"
SERVICE = f"{CORE}/services/policy"
CONFIG_MAP = f"{CORE}/configmaps/policy-applied"
SECRET = f"{CORE}/secrets/policy-admin-token"
BUDGET = "/apis/policy/v1/namespaces/rl/poddisruptionbudgets/policy"
LEASE_SECONDS = 30.0
SOON = 2 * SWEEP_SECONDS
"""Parts that only a sweep checks are reported by then."""


def stalled(rig: Rig, reason: str, *, of: str = FLEET_PATH) -> Json | None:
    condition = rig.condition("Stalled", of=of)
    return condition if condition is not None and condition["reason"] == reason else None


def ready(rig: Rig) -> bool:
    conditions = (rig.condition("Ready", of=p) for p in (FLEET_PATH, WEIGHTS_PATH))
    return all(c is not None and c["status"] == "True" for c in conditions)


async def heals(rig: Rig, *, seconds: float = SOON) -> None:
    def healed() -> bool:
        return not any(rig.condition("Stalled", of=p) for p in (FLEET_PATH, WEIGHTS_PATH))

    await rig.until(lambda: healed() and ready(rig), seconds=seconds, what="it heals")


def refusing(path: str, error: FleetError, *verbs: str) -> Callable[[str, str], FleetError | None]:
    return lambda v, p: error if p == path and v in (verbs or ("APPLY", "POST")) else None


def raising(*_: Any, **__: Any) -> NoReturn:
    raise KeyError


# --- objects of something else ------------------------------------------------------------------


@pytest.mark.parametrize("path", [SERVICE, f"{SERVICE}-workers", CONFIG_MAP, BUDGET])
async def test_an_object_of_something_else_is_named_and_left_and_the_fleet_heals_without_it(path):
    rig = Rig(replicas=1)
    name = path.rpartition("/")[2]
    metadata = {"name": name, "namespace": "rl"}
    before = rig.cluster.put(path, {"metadata": metadata, "data": {}})
    async with rig:
        await rig.until(lambda: stalled(rig, "NameTaken"))
        condition = present(rig.condition("Stalled"))
        assert f" {name} exists already" in condition["message"]
        assert rig.cluster.objects[path] == before
        rig.cluster.drop(path)
        await heals(rig)
        assert rig.cluster.objects[path]["metadata"]["ownerReferences"]


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/managed-by": "rlfleet"}], ids=str)
async def test_a_taken_pod_name_is_reported_until_it_is_free(labels):
    rig = Rig(replicas=2)
    path = f"{PODS_PATH}/policy-1"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "policy", "uid": "s-1"}
    metadata = {
        "name": "policy-1",
        "namespace": "rl",
        "labels": labels | {"rlfleet.dev/fleet": "another"},
        "ownerReferences": [owner | {"controller": True}],
    }
    pod = {"kind": "Pod", "metadata": metadata}
    labels_of_kubelet = {"rlfleet.dev/ordinal": "1", "rlfleet.dev/revision": ""}
    metadata["labels"] |= labels_of_kubelet
    rig.cluster.put(path, pod)
    async with rig:
        await rig.until(lambda: stalled(rig, "NameTaken"))
        condition = present(rig.condition("Stalled"))
        assert (
            "Pod policy-1 exists already and belongs to StatefulSet policy"
            in (condition["message"])
        )
        rig.cluster.drop(path)
        await heals(rig)


@pytest.mark.parametrize("label", ["rlfleet.dev/ordinal", "rlfleet.dev/fleet"])
async def test_a_worker_whose_label_was_removed_is_reported_until_it_is_back(label):
    path = f"{PODS_PATH}/policy-1"
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        pod = copy.deepcopy(rig.cluster.objects[path])
        kept = pod["metadata"]["labels"].pop(label)
        rig.cluster.put(path, pod)
        await rig.until(lambda: stalled(rig, "NameTaken"))
        condition = present(rig.condition("Stalled"))
        assert f"{label}={kept}" in condition["message"]
        pod["metadata"]["labels"][label] = kept
        rig.cluster.put(path, pod)
        await heals(rig)


async def test_a_pods_name_that_is_taken_keeps_no_other_pod_from_being_created():
    rig = Rig(replicas=4)
    metadata = {"name": "policy-0", "namespace": "rl", "labels": {}}
    rig.cluster.put(f"{PODS_PATH}/policy-0", {"kind": "Pod", "metadata": metadata})
    async with rig:
        await rig.until(lambda: stalled(rig, "NameTaken"))
        others = {f"{PODS_PATH}/policy-{n}" for n in (1, 2, 3)}
        await rig.until(lambda: others <= rig.cluster.objects.keys())


# --- refused writes -----------------------------------------------------------------------------

REFUSED = [
    pytest.param(SERVICE, FLEET_PATH, id="a Service"),
    pytest.param(CONFIG_MAP, FLEET_PATH, id="the ConfigMap"),
    pytest.param(BUDGET, FLEET_PATH, id="the PodDisruptionBudget"),
    pytest.param(f"{FLEET_PATH}/status", WEIGHTS_PATH, id="the fleet's status"),
    pytest.param(f"{WEIGHTS_PATH}/status", FLEET_PATH, id="the WeightVersion's status"),
    pytest.param(f"{CORE}/events", FLEET_PATH, id="an Event"),
    pytest.param(f"{CORE}/secrets", FLEET_PATH, id="the token's Secret"),
]


@pytest.mark.parametrize(("path", "said_on"), REFUSED)
async def test_a_refused_write_is_reported_until_it_succeeds(path, said_on):
    async with Rig(replicas=1) as rig:
        if path == f"{FLEET_PATH}/status":
            # No worker serves before the fleet's status has its version's digest.
            await rig.until(lambda: rig.serving == ["1"])
        rig.kube.refuses = refusing(path, Terminal("403 forbidden by policy"))
        if path.endswith("/secrets"):
            await rig.until(lambda: stalled(rig, "WriteRefused"), seconds=SOON)
            assert rig.serving == [], "no worker runs without a token"
        else:
            await rig.until(lambda: rig.serving == ["1"])
            rig.publish("broken-1")  # something to write about
            rig.worker(0).bad_sources.add("/weights/step_broken-1")
        await rig.until(lambda: stalled(rig, "WriteRefused", of=said_on) or joined(rig, said_on))
        condition = present(rig.condition("Stalled", of=said_on))
        assert "403 forbidden by policy" in condition["message"]
        assert "docs/reference/rbac.md" in condition["message"]
        rig.kube.refuses = lambda _v, _p: None
        rig.publish("2")
        await heals(rig)
        assert rig.serving == ["2"]


def joined(rig: Rig, path: str) -> bool:
    """Whether it is reported, perhaps after another reason."""
    condition = rig.condition("Stalled", of=path)
    return condition is not None and "403 forbidden by policy" in condition["message"]


async def test_a_retryable_failure_is_reported_after_a_minute():
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        rig.kube.refuses = refusing(CONFIG_MAP, Retryable("503"))
        began = now()
        rig.publish("2")
        await rig.until(lambda: stalled(rig, "WriteRefused"), seconds=SOON)
        assert 55 <= now() - began <= 100
        rig.kube.refuses = lambda _v, _p: None
        await heals(rig)


# --- refused lists and watches ------------------------------------------------------------------

LISTED = [
    pytest.param(PODS_PATH, "pods", id="pods"),
    pytest.param(f"{CORE}/services", "services", id="Services"),
    pytest.param(
        "/apis/policy/v1/namespaces/rl/poddisruptionbudgets",
        "poddisruptionbudgets",
        id="PodDisruptionBudgets",
    ),
]


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(("path", "resource"), LISTED)
async def test_a_refused_list_or_watch_is_reported_until_it_succeeds(path, resource, verb):
    async with Rig(replicas=1) as rig:
        children = asyncio.create_task(rig.operator.child_watch.run())
        await rig.until(lambda: ready(rig))
        method = {"list": "GET", "watch": "WATCH"}[verb]
        rig.kube.refuses = refusing(path, Terminal("403 forbidden"), method)
        rig.cluster.compact()  # Open streams end, and lists start again.
        rig.change(WEIGHTS_PATH)
        await rig.until(lambda: stalled(rig, "ReadRefused"), seconds=40)
        condition = present(rig.condition("Stalled"))
        for fact in (f"{verb} {resource}", "namespace rl", "403 forbidden", "ClusterRole"):
            assert fact in condition["message"]
        withholds_ready = resource == "pods"
        assert ready(rig) is not withholds_ready
        rig.kube.refuses = lambda _v, _p: None
        rig.kube.bookmark_first = True
        await heals(rig)
        children.cancel()
        await asyncio.wait([children])


async def test_a_refused_list_of_pods_at_the_start_is_reported_and_nothing_is_done():
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        await rig.kill_operator()
        rig.publish("2")
        client, refuses = (
            rig.cluster.client,
            refusing(PODS_PATH, Terminal("403 forbidden"), "GET"),
        )
        rig.cluster.client = lambda: replace(client(), refuses=refuses)
        rig.workers.questions.clear()
        await rig.start_operator()
        for path in (FLEET_PATH, WEIGHTS_PATH):
            await rig.until(lambda p=path: stalled(rig, "ReadRefused", of=p), seconds=10)
        condition = present(rig.condition("Stalled"))
        for fact in ("list pods in namespace rl", "403 forbidden", "ClusterRole"):
            assert fact in condition["message"]
        assert not ready(rig)
        assert rig.workers.questions == []
        assert {path for _, path in rig.writes} <= {
            f"{FLEET_PATH}/status",
            f"{WEIGHTS_PATH}/status",
            f"{CORE}/events",
        }
        rig.kube.refuses = lambda _v, _p: None
        await heals(rig)
        assert rig.serving == ["2"]


async def test_an_event_that_was_refused_is_posted_at_a_reconcile_soon_after_it_is_allowed():
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        rig.kube.refuses = refusing(f"{CORE}/events", Terminal("403 forbidden"))
        rig.publish("2")
        await rig.applied("2")
        await rig.until(lambda: stalled(rig, "WriteRefused"))
        refused = rig.kube.requests.count(("POST", f"{CORE}/events"))
        await asyncio.sleep(60)
        again = rig.kube.requests.count(("POST", f"{CORE}/events")) - refused
        assert 1 <= again <= 6, "the server is not stormed"
        rig.kube.refuses = lambda _v, _p: None
        await heals(rig, seconds=65)


async def test_a_list_that_fails_for_a_moment_is_not_reported():
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        rig.kube.refuses = refusing(PODS_PATH, Retryable("503"), "GET")
        rig.cluster.compact()
        rig.change(WEIGHTS_PATH)
        await asyncio.sleep(50)
        assert not stalled(rig, "ReadRefused")
        await rig.until(lambda: stalled(rig, "ReadRefused"), seconds=60)
        rig.kube.refuses = lambda _v, _p: None
        await heals(rig)


# --- the token ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{}, {"token": ""}, {"token": "AAAA"}], ids=str)
async def test_a_secret_without_a_usable_token_is_reported_and_the_known_token_stays_in_use(data):
    async with Rig(replicas=2) as rig:
        await rig.until(lambda: ready(rig))
        whole = rig.cluster.objects[SECRET]
        rig.cluster.put(SECRET, whole | {"data": data})
        await rig.until(lambda: stalled(rig, "AdminTokenUnusable"), seconds=SOON)
        rig.publish("2")
        await rig.until(lambda: rig.serving == ["2", "2"], what="the known token serves")
        assert stalled(rig, "AdminTokenUnusable", of=WEIGHTS_PATH)
        rig.cluster.put(SECRET, whole)
        await heals(rig)


# --- what fails in the operator -----------------------------------------------------------------


async def paused_for_long(rig: Rig) -> None:
    """All workers hold their requests, and one of them takes long to load: leases must be renewed."""
    await rig.until(lambda: ready(rig))
    for worker in rig.workers.workers.values():
        worker.slow_seconds = 3 * LEASE_SECONDS if worker.ordinal == 0 else 0.0
    rig.publish("2")
    await rig.until(lambda: rig.worker(0).phase is Phase.LOADING, seconds=300)


def break_decision(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "plan_rollout", raising)


def break_statuses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "fleet_status", raising)
    monkeypatch.setattr(decision, "weights_status", raising)


def break_decide(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "deciding", raising)


def break_observing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.operator.reconcile._observer, "observe", raising)


def break_objects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.session.children, "_apply", raising)
    rig.session.children.forget_written()


@pytest.mark.parametrize(
    "breaks", [break_decision, break_statuses, break_decide, break_observing, break_objects]
)
async def test_pauses_are_renewed_whatever_raises_and_internal_error_is_reported(
    breaks, monkeypatch
):
    async with Rig(replicas=2) as rig:
        await paused_for_long(rig)
        breaks(rig, monkeypatch)
        began = now()
        await rig.until(lambda: now() - began > 2 * LEASE_SECONDS, seconds=3 * LEASE_SECONDS)
        phases = {w.phase for w in rig.workers.workers.values()}
        assert phases <= {Phase.PAUSED, Phase.LOADING}
        assert all(w.admitted for w in rig.workers.workers.values())
        condition = present(stalled(rig, "InternalError"))
        assert "KeyError" in condition["message"]
        monkeypatch.undo()
        rig._clock.stop()
        rig._clock.start()
        await heals(rig)
        assert rig.serving == ["2", "2"]


@pytest.mark.parametrize("hangs", ["writes", "all"])
async def test_an_api_server_that_hangs_does_not_keep_pauses_from_being_renewed(hangs):
    async with Rig(replicas=2) as rig:
        await paused_for_long(rig)
        lease = rig.operator.lease
        lease._kube = rig.cluster.client()  # it has a connection of its own
        rig.kube.hangs = True
        if hangs == "all":
            rig.session.token.note_stale()
        await rig.until(lambda: rig.serving == ["2", "2"], seconds=600)


# --- what cannot be read --------------------------------------------------------------------------


async def test_a_fleet_that_cannot_be_read_in_a_rollout_ends_it_and_says_so_at_its_generation():
    async with Rig(replicas=2) as rig:
        await paused_for_long(rig)
        rig.change(FLEET_PATH, replicas=-1)
        condition = None
        await rig.until(lambda: stalled(rig, "InvalidSpec"))
        condition = present(stalled(rig, "InvalidSpec"))
        assert (condition["observedGeneration"], rig.fleet["observedGeneration"]) == (2, 2)
        assert "spec.replicas" in condition["message"]
        assert stalled(rig, "InvalidSpec", of=WEIGHTS_PATH)
        await rig.until(lambda: rig.serving == ["2", "2"], seconds=600)
        rig.change(FLEET_PATH, replicas=2)
        await heals(rig)


async def test_a_fleet_that_cannot_be_read_when_the_operator_starts_says_so():
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        rig.change(FLEET_PATH, replicas=-1)
        await rig.restart_operator()
        await rig.until(lambda: stalled(rig, "InvalidSpec"))
        assert stalled(rig, "InvalidSpec", of=WEIGHTS_PATH)
        assert rig.serving == ["1"], "its workers are left alone"
        rig.change(FLEET_PATH, replicas=1)
        await heals(rig)


TOO_LONG = {"path": "/weights/" + "/".join(["{version}"] * 20)}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_weightversion_that_cannot_be_read_says_so_and_the_fleet_serves_on(restarts):
    async with Rig(replicas=1) as rig:
        await rig.until(lambda: ready(rig))
        rig.change(WEIGHTS_PATH, version="a" * 63, source=TOO_LONG)
        if restarts:
            await rig.restart_operator()
        await rig.until(lambda: stalled(rig, "InvalidSpec", of=WEIGHTS_PATH))
        assert rig.weights["observedGeneration"] == 2
        assert rig.serving == ["1"]
        rig.change(WEIGHTS_PATH, version="2", source={"path": "/weights/step_{version}"})
        await heals(rig)
        assert rig.serving == ["2"]

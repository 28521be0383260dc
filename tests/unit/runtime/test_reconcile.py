"""Every request of a reconcile may fail in every way. The fleet still gets its objects, the statuses
report it in the end, and no request is repeated faster than a failing server can bear."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.builders import make_fleet
from tests.support.rig import FLEET_PATH, PODS_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.core.manifests import revisions
from fleet_operator.errors import Conflict, FleetError, Retryable, Terminal, Unknown
from fleet_operator.runtime.callers import BUSY_SECONDS

pytestmark = pytest.mark.virtual_time

CORE = "/api/v1/namespaces/rl"
BUDGET = "/apis/policy/v1/namespaces/rl/poddisruptionbudgets/policy"
POOL = "/apis/inference.networking.k8s.io/v1/namespaces/rl/inferencepools/policy"
REVISIONS = "/apis/apps/v1/namespaces/rl/controllerrevisions"
REVISION = f"{REVISIONS}/policy-{revisions.revision_of(make_fleet())}"
REQUESTS = [
    pytest.param("GET", REVISION, id="looking for the template"),
    pytest.param("GET", REVISIONS, id="listing the templates"),
    pytest.param("POST", REVISIONS, id="recording the template"),
    pytest.param("GET", f"{CORE}/secrets/policy-admin-token", id="looking for the token"),
    pytest.param("POST", f"{CORE}/secrets", id="making a token"),
    pytest.param("GET", f"{CORE}/services/policy", id="looking at the Service"),
    pytest.param("APPLY", f"{CORE}/services/policy", id="making the Service"),
    pytest.param("GET", f"{CORE}/services/policy-workers", id="looking at the names of workers"),
    pytest.param("APPLY", f"{CORE}/services/policy-workers", id="making the names of workers"),
    pytest.param("GET", f"{CORE}/configmaps/policy-applied", id="looking at the applied version"),
    pytest.param("APPLY", f"{CORE}/configmaps/policy-applied", id="telling the applied version"),
    pytest.param("GET", BUDGET, id="looking at the budget"),
    pytest.param("APPLY", BUDGET, id="making the budget"),
    pytest.param("GET", POOL, id="looking for a pool that an earlier leader left"),
    pytest.param("GET", FLEET_PATH, id="asking whether the fleet stays"),
    pytest.param("POST", PODS_PATH, id="making a pod"),
    pytest.param("POST", f"{CORE}/events", id="telling an event"),
    pytest.param("APPLY", f"{FLEET_PATH}/status", id="writing the fleet's status"),
    pytest.param("APPLY", f"{WEIGHTS_PATH}/status", id="writing the version's status"),
]
ERRORS = [
    Retryable("429", after_seconds=3),
    Conflict("409"),
    Terminal("403"),
]
METHODS = {"POST": "create", "APPLY": "apply"}


def is_ready(rig: Rig, path: str) -> bool:
    condition = rig.condition("Ready", of=path)
    return condition is not None and condition["status"] == "True"


async def both_are_ready(rig: Rig, version: str) -> None:
    await rig.applied(version)
    await rig.until(lambda: rig.fleet.get("appliedVersion") == version)
    await rig.until(lambda: is_ready(rig, FLEET_PATH) and is_ready(rig, WEIGHTS_PATH))
    await rig.until(
        lambda: start_version(rig) == version, seconds=5, what="joining workers start on it"
    )
    assert rig.serving == [version]
    assert {p.values[1] for p in REQUESTS if p.values[0] == "APPLY"} <= rig.cluster.objects.keys()


def start_version(rig: Rig) -> str:
    found = rig.cluster.objects.get(f"{CORE}/configmaps/policy-applied", {"data": {}})
    return str(found["data"].get("version"))


async def test_the_table_names_every_request_that_a_fleet_costs():
    async with Rig(replicas=1) as rig:
        await rig.applied("1")
        rig.publish("2")
        await both_are_ready(rig, "2")
        made = set(rig.kube.requests)
        # Other tests cover the watch and the Lease.
        made -= {("GET", PODS_PATH), ("WATCH", PODS_PATH)}
        assert {r for r in made if "/leases" not in r[1]} == {p.values for p in REQUESTS}


@pytest.mark.parametrize(("verb", "path"), REQUESTS)
def test_one_request_that_fails_once_changes_nothing_in_the_end(verb, path, caplog):
    async def story(error: FleetError) -> None:
        failed: list[FleetError] = []

        def refuses(v: str, p: str) -> FleetError | None:
            if (v, p) != (verb, path) or failed:
                return None
            failed.append(error)
            return error

        async with Rig(replicas=1) as rig:
            rig.kube.refuses = refuses
            await rig.applied("1")
            rig.publish("2")
            await both_are_ready(rig, "2")
            assert failed == [error], "the fault was met"

    for error in ERRORS:
        virtual_time.run(story(error))
    assert "defect" not in caplog.text


@pytest.mark.parametrize(("verb", "path"), [p for p in REQUESTS if p.values[0] in METHODS])
async def test_a_write_that_took_effect_without_an_answer_is_not_done_twice_over(
    verb, path, caplog
):
    async with Rig(replicas=1) as rig:
        lost: list[str] = []
        real = getattr(rig.kube, METHODS[verb])

        async def losing(at: str, body: Any) -> Any:
            answer = await real(at, body)
            if at == path and not lost:
                lost.append(at)
                raise Unknown("the answer was lost")
            return answer

        setattr(rig.kube, METHODS[verb], losing)
        await rig.applied("1")
        rig.publish("2")
        await both_are_ready(rig, "2")
        assert lost == [path]
        assert len([p for p in rig.cluster.objects if p.startswith(PODS_PATH)]) == 1
        assert len(rig.workers.workers) == 1, "a lost answer creates no second worker"
        secrets = [p for p in rig.cluster.objects if "/secrets/" in p]
        assert len(secrets) == 1
    assert "defect" not in caplog.text


FAILING_SECONDS = 20
DURING = [p for p in REQUESTS if p.values[1].endswith(("/status", "policy-applied", "events"))]


@pytest.mark.parametrize(("verb", "path"), [p for p in DURING if p.values[0] != "GET"])
@pytest.mark.parametrize("error", ERRORS, ids=str)
async def test_workers_wait_only_for_the_status_that_pins_their_weights_and_the_server_is_not_stormed(
    verb, path, error
):
    async with Rig(replicas=1) as rig:
        await both_are_ready(rig, "1")
        rig.kube.refuses = lambda v, p: error if (v, p) == (verb, path) else None
        before, began = rig.kube.requests.count((verb, path)), now()
        rig.publish("2")
        if path.endswith("inferencefleets/policy/status"):
            # Version 2 has no digest before this is stored: nothing is loaded.
            await rig.until(lambda: now() - began >= FAILING_SECONDS / 2)
            assert rig.serving == ["1"]
        else:
            await rig.until(lambda: rig.serving == ["2"], seconds=FAILING_SECONDS / 2)
        await rig.until(lambda: now() - began >= FAILING_SECONDS, seconds=FAILING_SECONDS + 1)
        tries = rig.kube.requests.count((verb, path)) - before
        assert 1 <= tries <= 2 * FAILING_SECONDS / BUSY_SECONDS
        rig.kube.refuses = lambda _v, _p: None
        await both_are_ready(rig, "2")


def test_each_failure_is_logged_with_the_name_of_the_fleet_and_counted_by_kind(caplog):
    caplog.set_level(logging.WARNING)

    async def story() -> str:
        async with Rig(replicas=1) as rig:
            rig.kube.refuses = only("POST", PODS_PATH, Terminal("403 exceeded quota: gpus"))
            await rig.until(lambda: rig.condition("Stalled") is not None, seconds=2000)
            condition = rig.condition("Stalled")
            assert condition is not None
            assert condition["reason"] == "WorkersFailing"
            assert "exceeded quota" in condition["message"]
            return rig.operator.metrics.render().decode()

    text = virtual_time.run(story())
    assert 'rlfleet_reconcile_failures_total{kind="Terminal"}' in text
    assert "fleet rl/policy: pods: 403 exceeded quota: gpus" in caplog.text


def only(verb: str, path: str, error: FleetError) -> Callable[[str, str], FleetError | None]:
    return lambda v, p: error if (v, p) == (verb, path) else None


async def test_a_problem_of_creating_pods_is_removed_when_they_are_created():
    async with Rig(replicas=2) as rig:
        rig.kube.refuses = only("POST", PODS_PATH, Terminal("403 exceeded quota: gpus"))
        await rig.until(lambda: "quota" in str(rig.fleet), seconds=2000)
        assert rig.serving == []
        rig.kube.refuses = lambda _v, _p: None
        await rig.until(lambda: is_ready(rig, FLEET_PATH))
        assert "quota" not in str(rig.fleet)
        assert rig.condition("Stalled") is None


async def test_while_the_watch_is_late_only_the_pod_that_was_deleted_ends():
    async with Rig(replicas=3) as rig:
        await rig.until(lambda: is_ready(rig, FLEET_PATH))
        rig.kube.watch_delay_seconds = 1000
        rig.change(FLEET_PATH, engine={"args": ["--seed=2"]})
        await rig.until(lambda: deleted(rig) > 0)
        with pytest.raises(AssertionError):
            await rig.until(lambda: deleted(rig) > 1, seconds=60)


def deleted(rig: Rig) -> int:
    return [verb for verb, _ in rig.kube.requests].count("DELETE")

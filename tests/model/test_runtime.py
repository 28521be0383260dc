"""The runtime as a whole, on virtual time: what it writes, what it waits for, what stops it."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.rig import FLEET_PATH, PODS_PATH, WEIGHTS_PATH, Rig, VirtualWallClock
from tests.support.virtual_time import now

from fleet_operator.core.decision import decide
from fleet_operator.errors import Conflict, FleetError, Retryable, Terminal, Unknown
from fleet_operator.runtime import reconcile as reconcile_module
from fleet_worker.protocol import MAX_TERM, Epoch, Phase, Reason

SECRET_PATH = "/api/v1/namespaces/rl/secrets/policy-admin-token"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/operator"
SERVICE_PATH = "/api/v1/namespaces/rl/services/policy"


def run(story: Any) -> None:
    virtual_time.run(story())


def only(verb: str, part: str, error: FleetError):
    """Refuses the requests of one kind."""
    return lambda v, path: error if v == verb and part in path else None


class TestWrites:
    @pytest.mark.parametrize("replicas", [1, 4, 60])
    def test_a_rollout_costs_seven_writes_whatever_the_number_of_workers(self, replicas):
        async def story() -> None:
            async with Rig(replicas=replicas) as rig:
                await rig.applied("1")
                await asyncio.sleep(5)
                before = len(rig.writes)
                rig.publish("2")
                await rig.applied("2")
                await asyncio.sleep(5)
                assert len(rig.writes) - before <= 7, rig.writes[before:]

        run(story)

    def test_a_slow_rollout_writes_its_progress_once_a_second_at_most(self):
        async def story() -> None:
            async with Rig(replicas=20) as rig:
                await rig.applied("1")
                await asyncio.sleep(5)
                before = len(rig.writes)
                for n in range(20):
                    rig.worker(n).slow_seconds = 1 + n / 2
                rig.publish("2")
                took = await rig.applied("2")
                assert len(rig.writes) - before <= 2 * took + 7

        run(story)

    def test_a_fleet_at_rest_writes_nothing(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                await asyncio.sleep(5)
                before = len(rig.writes)
                await asyncio.sleep(1200)
                written = rig.writes[before:]
                assert written == []

        run(story)

    def test_an_operator_that_starts_beside_a_fleet_at_rest_changes_nothing(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                await asyncio.sleep(5)
                before = {p: o for p, o in rig.cluster.objects.items() if "/leases" not in p}
                await rig.restart_operator()
                await asyncio.sleep(20)
                assert not [p for _, p in rig.writes if "rlfleet.dev" in p or "/pods" in p]
                after = {p: o for p, o in rig.cluster.objects.items() if "/leases" not in p}
                for path in before.keys() | after.keys():
                    old, new = dict(before[path]), dict(after[path])
                    assert old.pop("metadata") | new["metadata"] == new.pop("metadata")
                    assert old == new

        run(story)

    def test_what_somebody_deletes_is_made_again(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.cluster.drop(SERVICE_PATH)
                await rig.until(lambda: SERVICE_PATH in rig.cluster.objects, seconds=400)

        run(story)

    def test_writes_are_counted_by_kind(self):
        async def story() -> None:
            async with Rig(replicas=2) as rig:
                await rig.applied("1")
                await rig.operator.recorder.flush()
                shown = rig.operator.metrics.render().decode()
                found = {
                    line.split('"')[1]: float(line.split()[-1])
                    for line in shown.splitlines()
                    if line.startswith("rlfleet_api_writes_total{")
                }
                assert sum(found.values()) == len(rig.writes)
                assert (found["pod"], found["secret"]) == (2, 1)

        run(story)


class TestRollouts:
    def test_a_newer_version_overtakes_one_that_is_being_staged(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.worker(0).slow_seconds = 20
                rig.publish("2")
                await rig.until(lambda: rig.phase == "Staging")
                rig.worker(0).slow_seconds = 0
                rig.publish("3")
                await rig.applied("3")
                assert rig.weights["supersededVersions"] == 1
                assert "load 2" not in {key for key, _ in rig.workers.asked}

        run(story)

    @pytest.mark.parametrize("calls", range(12))
    def test_an_operator_that_dies_after_any_call_is_followed_by_one_that_ends_the_rollout(
        self, calls
    ):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.workers.asked.clear()
                rig.workers.latency_seconds = 0.05
                rig.publish("2")
                await rig.until(lambda: len(rig.workers.asked) > calls)
                await rig.restart_operator()
                await rig.applied("2")
                assert rig.serving == ["2", "2", "2"]
                assert all(w.lost_requests == 0 for w in rig.workers.workers.values())

        run(story)

    def test_a_worker_whose_call_hangs_does_not_hold_up_the_others(self):
        async def story() -> None:
            async with Rig(replicas=20) as rig:
                await rig.applied("1")
                rig.workers.hanging.add(7)
                rig.publish("2")
                others = [n for n in range(20) if n != 7]
                took = await rig.until(lambda: all(rig.worker(n).staged == "2" for n in others))
                assert took < 0.2
                assert rig.serving == ["1"] * 20
                rig.workers.hanging.clear()
                rig.publish("3")
                assert await rig.applied("3") < 1

        run(story)

    def test_a_fleet_that_hangs_does_not_hold_up_another(self):
        """Covered by the queue: what is shown here is that a reconcile does not wait for calls."""

        async def story() -> None:
            async with Rig(replicas=3) as rig:
                await rig.applied("1")
                rig.workers.hanging |= {0, 1, 2}
                rig.publish("2")
                await rig.until(lambda: len(rig.workers.asked) >= 6)
                started = now()
                await rig.operator.reconcile(("rl", "policy"))
                assert now() - started < 0.5

        run(story)

    def test_a_worker_that_dies_in_the_middle_comes_back_and_takes_part(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.publish("2")
                await rig.until(lambda: rig.worker(0).phase is Phase.PAUSED)
                rig.worker(1).kill(now())
                await rig.applied("2")
                await rig.until(lambda: rig.serving == ["2", "2", "2"])

        run(story)

    def test_a_worker_that_is_silent_for_good_ends_the_rollout_at_its_deadline(self):
        async def story() -> None:
            timeouts = {"stageSeconds": 30, "pauseSeconds": 10, "loadSeconds": 10}
            async with Rig(rollout={"timeouts": timeouts}) as rig:
                await rig.applied("1")
                rig.workers.silent.add(0)
                rig.publish("2")
                took = await rig.until(lambda: rig.phase == "Halted")
                assert 30 <= took < 35
                assert rig.condition("Stalled", of=WEIGHTS_PATH)["reason"] == "DeadlineExceeded"
                assert rig.worker(1).generates
                assert rig.worker(1).weights == "1"

        run(story)

    @pytest.mark.parametrize("seed", range(12))
    def test_api_errors_on_the_way_do_not_keep_a_rollout_from_its_end(self, seed):
        chance = random.Random(seed)  # noqa: S311 - a seed to repeat
        errors = [
            Retryable("429", after_seconds=1),
            Retryable("503"),
            Unknown("no answer"),
            Conflict("409"),
        ]

        def refuses(verb: str, path: str) -> FleetError | None:
            if "/leases" in path or chance.random() > 0.3:
                return None
            return chance.choice(errors)

        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.kube.refuses = refuses
                for version in "234":
                    rig.publish(version)
                    await asyncio.sleep(chance.random() * 3)
                await rig.until(lambda: rig.serving == ["4", "4", "4"])
                await rig.applied("4")

        run(story)


class TestRefusals:
    """What a worker refuses is asked again, but not as fast as it can refuse."""

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            pytest.param("stage", Reason.BAD_REQUEST, id="a stage that it cannot read"),
            pytest.param("pause", Reason.HELD_BY_ANOTHER, id="a pause while another drives it"),
            pytest.param("load", Reason.WRONG_PHASE, id="a load in the wrong phase"),
            pytest.param("resume", Reason.VERSION_MISMATCH, id="a resume on another version"),
        ],
    )
    def test_a_refused_call_is_not_repeated_without_a_pause(self, kind, reason):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.workers.refusals[kind] = reason
                rig.publish("2")
                await rig.until(
                    lambda: (f"{kind} 2".replace("pause 2", "pause"), 0) in rig.workers.asked
                )
                rig.workers.asked.clear()
                await asyncio.sleep(10)
                repeated = [key for key, ordinal in rig.workers.asked if ordinal == 0]
                assert 1 <= len([k for k in repeated if k.startswith(kind)]) <= 15
                rig.workers.refusals.clear()
                assert await rig.applied("2") < 5

        run(story)

    def test_a_joiner_that_refuses_its_admission_is_not_asked_without_a_pause(self):
        async def story() -> None:
            async with Rig() as rig:
                rig.workers.refusals["admit"] = Reason.WRONG_PHASE
                await rig.until(lambda: ("admit 1", 0) in rig.workers.asked)
                rig.workers.asked.clear()
                await asyncio.sleep(10)
                assert 1 <= len([n for _, n in rig.workers.asked if n == 0]) <= 15

        run(story)


class TestTokens:
    def test_a_worker_that_knows_another_token_makes_the_operator_look_again(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                secret = rig.cluster.objects[SECRET_PATH]
                secret["data"]["token"] = base64.b64encode(b"new").decode()
                rig.cluster.put(SECRET_PATH, secret)
                rig.workers.token = "new"
                rig.publish("2")
                await rig.applied("2", seconds=60)

        run(story)

    def test_a_token_that_somebody_deletes_is_written_down_again(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                before = rig.cluster.objects[SECRET_PATH]["data"]
                rig.cluster.drop(SECRET_PATH)
                await rig.until(lambda: SECRET_PATH in rig.cluster.objects, seconds=400)
                assert rig.cluster.objects[SECRET_PATH]["data"] == before

        run(story)

    def test_the_token_of_an_earlier_fleet_of_this_name_is_not_taken(self):
        """It is about to be collected, and with it the volume that every new pod waits for."""

        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                (owner,) = rig.cluster.objects[SECRET_PATH]["metadata"]["ownerReferences"]
                fleet = rig.cluster.objects[FLEET_PATH]
                fleet["metadata"]["uid"] = "fleet-2"
                rig.cluster.put(FLEET_PATH, fleet)
                rig.tell_operator()
                await asyncio.sleep(10)
                assert owner["uid"] == "fleet-1"
                rig.cluster.drop(SECRET_PATH)
                await rig.until(lambda: SECRET_PATH in rig.cluster.objects)
                (owner,) = rig.cluster.objects[SECRET_PATH]["metadata"]["ownerReferences"]
                assert owner["uid"] == "fleet-2"

        run(story)

    def test_a_token_that_was_there_before_any_fleet_is_used(self):
        async def story() -> None:
            rig = Rig()
            data = {"token": base64.b64encode(b"given").decode()}
            rig.cluster.put(SECRET_PATH, {"metadata": {"name": "policy-admin-token"}, "data": data})
            rig.workers.token = "given"
            async with rig:
                await rig.applied("1")

        run(story)

    def test_a_secret_without_a_token_is_said(self, caplog):
        async def story() -> None:
            rig = Rig()
            rig.cluster.put(SECRET_PATH, {"metadata": {"name": "policy-admin-token"}})
            async with rig:
                await asyncio.sleep(5)

        run(story)
        assert "Secret policy-admin-token has no key 'token'" in caplog.text
        assert "defect" not in caplog.text


class TestPodsThatCannotBeMade:
    QUOTA = Terminal('403 pods "policy-1" is forbidden: exceeded quota: gpus')

    def test_it_is_said_and_over_when_it_is_over(self):
        async def story() -> None:
            async with Rig(replicas=1) as rig:
                await rig.applied("1")
                rig.kube.refuses = only("POST", "/pods", self.QUOTA)
                rig.change(FLEET_PATH, replicas=3)
                await rig.until(lambda: rig.condition("Stalled") is not None)
                stalled = rig.condition("Stalled")
                assert stalled["reason"] == "WorkersFailing"
                assert "exceeded quota" in stalled["message"]
                rig.kube.refuses = lambda _v, _p: None
                await rig.until(lambda: rig.serving == ["1", "1", "1"])
                await rig.until(lambda: rig.condition("Stalled") is None)

        run(story)

    def test_one_refusal_a_second_is_enough(self):
        async def story() -> None:
            async with Rig(replicas=1) as rig:
                await rig.applied("1")
                rig.kube.refuses = only("POST", "/pods", self.QUOTA)
                rig.change(FLEET_PATH, replicas=400)
                await asyncio.sleep(1)
                before = len(rig.kube.requests)
                await asyncio.sleep(20)
                tried = [r for r in rig.kube.requests[before:] if r == ("POST", PODS_PATH)]
                assert 1 <= len(tried) <= 40

        run(story)

    def test_rollouts_of_those_that_are_there_go_on_at_full_speed(self):
        async def story() -> None:
            async with Rig(replicas=2) as rig:
                await rig.applied("1")
                rig.kube.refuses = only("POST", "/pods", self.QUOTA)
                rig.change(FLEET_PATH, replicas=4)
                await rig.until(lambda: rig.condition("Stalled") is not None)
                rig.publish("2")
                assert await rig.until(lambda: rig.serving == ["2", "2"]) < 0.2

        run(story)

    def test_many_pods_are_made_at_once_where_nothing_is_in_the_way(self):
        async def story() -> None:
            rig = Rig(replicas=300)
            async with rig:
                rig.kube.delay_seconds = 0.01
                await rig.until(lambda: len(rig.cluster.below(PODS_PATH)) == 300, seconds=1)

        run(story)


class TestStatuses:
    @pytest.mark.parametrize(
        ("path", "served_meanwhile"),
        # What a version stands for is stored in the fleet's status before any worker loads it.
        [(FLEET_PATH, "1"), (WEIGHTS_PATH, "2")],
        ids=["fleet", "weights"],
    )
    def test_a_status_that_met_a_conflict_is_written_again(self, path, served_meanwhile):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.kube.refuses = only("APPLY", f"{path}/status", Conflict("409"))
                rig.publish("2")
                await asyncio.sleep(3)
                assert rig.serving == [served_meanwhile] * 3
                rig.kube.refuses = lambda _v, _p: None
                await rig.applied("2", seconds=5)
                await rig.until(lambda: rig.fleet["appliedVersion"] == "2", seconds=5)

        run(story)

    def test_a_second_weightversion_is_told_that_it_steers_nothing(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                second = dict(rig.cluster.objects[WEIGHTS_PATH])
                metadata = second["metadata"] | {"name": "late", "uid": "weights-2"}
                metadata["creationTimestamp"] = "2026-02-01T00:00:00+00:00"
                path = WEIGHTS_PATH.replace("versions/policy", "versions/late")
                second["spec"] = second["spec"] | {"version": "9"}
                rig.cluster.put(path, second | {"metadata": metadata})
                rig.operator.store.put_weights(second | {"metadata": metadata})
                await rig.until(lambda: rig.condition("Stalled", of=path) is not None)
                assert rig.condition("Stalled", of=path)["reason"] == "SecondBaseVersion"
                assert "WeightVersion policy is older" in rig.condition("Ready", of=path)["message"]
                assert rig.serving == ["1", "1", "1"]

        run(story)

    def test_a_weightversion_without_a_fleet_is_told_and_nothing_counts_as_overtaken(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                fleet = rig.cluster.objects[FLEET_PATH]
                rig.operator.store.remove_fleet(fleet)

                def told() -> tuple[str, str]:
                    found = rig.condition("Progressing", of=WEIGHTS_PATH)
                    return found["reason"], found["status"]

                # The fleet may come a moment later: objects of one manifest arrive in any order.
                await rig.until(lambda: told() == ("FleetNotFound", "True"))
                assert rig.condition("Stalled", of=WEIGHTS_PATH) is None
                await rig.until(lambda: rig.condition("Stalled", of=WEIGHTS_PATH) is not None)
                assert rig.condition("Stalled", of=WEIGHTS_PATH)["reason"] == "FleetNotFound"
                assert told() == ("FleetNotFound", "False")
                rig.operator.store.put_fleet(rig._with_status(FLEET_PATH))
                await rig.applied("1")
                assert rig.weights["supersededVersions"] == 0

        run(story)

    def test_a_status_of_a_weightversion_without_a_fleet_is_not_held_back_for_ever(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                for worker in rig.workers.workers.values():
                    worker.bad_sources.add("/weights/step_2")
                rig.publish("2")
                await rig.until(lambda: rig.condition("Stalled", of=WEIGHTS_PATH) is not None)
                rig.operator.store.remove_fleet(rig.cluster.objects[FLEET_PATH])
                await rig.until(
                    lambda: rig.condition("Ready", of=WEIGHTS_PATH)["reason"] == "FleetNotFound",
                    seconds=5,
                )

        run(story)

    def test_what_was_known_of_a_fleet_that_is_gone_is_forgotten(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.operator.store.remove_weights(rig.cluster.objects[WEIGHTS_PATH])
                rig.operator.store.remove_fleet(rig.cluster.objects[FLEET_PATH])
                await asyncio.sleep(5)
                reconcile = rig.operator.reconcile
                assert reconcile._tokens == {}
                assert rig.operator.epochs._goals == {}
                assert reconcile._restless == set()
                assert reconcile._statuses._fleets == {}
                assert reconcile._statuses._weights == {}
                assert reconcile._statuses._keys == {}
                assert b'fleet="policy"' not in rig.operator.metrics.render()

        run(story)

    def test_a_rollout_is_counted_once_whatever_its_workers_do_afterwards(self):
        async def story() -> None:
            async with Rig(replicas=1) as rig:
                await rig.applied("1")
                shown = 'rlfleet_rollout_worker_pause_seconds_count{fleet="policy",namespace="rl"}'
                for _ in range(3):
                    rig.worker(0).kill(now())
                    await rig.until(lambda: rig.serving == [])
                    await rig.until(lambda: rig.serving == ["1"])
                    await asyncio.sleep(3)
                assert f"{shown} 1.0" in rig.operator.metrics.render().decode()
                assert len(rig.weights["history"]) == 1
                assert rig.weights["timings"]["totalSeconds"] < 30

        run(story)


class TestErrors:
    def test_a_defect_in_one_fleet_is_reported_and_stops_no_other_part(self, caplog, monkeypatch):
        def plan(observed, **given):
            if observed.generation == 2:
                raise RuntimeError("a defect of ours")
            return decide(observed, **given)

        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                monkeypatch.setattr(reconcile_module, "decide", plan)
                rig.change(FLEET_PATH, replicas=4)
                await asyncio.sleep(65)
                assert len(rig.workers.workers) == 3
                assert rig.condition("Stalled")["reason"] == "InternalError"
                rig.change(FLEET_PATH, replicas=4)
                await rig.until(lambda: len(rig.serving) == 4)

        run(story)
        assert caplog.text.count("RuntimeError: a defect of ours") == 1  # not once a retry

    def test_a_server_that_asks_to_wait_is_asked_once_a_second_at_most(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig.kube.refuses = only("APPLY", "/status", Retryable("429", after_seconds=7))
                rig.publish("2")
                await asyncio.sleep(1)
                before = len(rig.kube.requests)
                await asyncio.sleep(5)
                asked = [r for r in rig.kube.requests[before:] if "/status" in r[1]]
                assert len(asked) <= 2 * 6

        run(story)


class TestLeading:
    def test_nothing_is_written_and_no_worker_is_driven_without_the_lease(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                rig._tasks[0].cancel()  # renewals stop, as in a process that was frozen
                await rig.until(lambda: not rig.operator.lease.held)
                before = len(rig.writes)
                rig.workers.asked.clear()
                rig.publish("2")
                rig.change(FLEET_PATH, replicas=5)
                await asyncio.sleep(30)
                assert rig.writes[before:] == []
                assert rig.workers.asked == []

        run(story)

    def test_a_worker_that_knows_a_newer_term_is_caught_up_with_and_the_lease_stays(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                for worker in rig.workers.workers.values():
                    worker.epoch = worker.epoch.model_copy(update={"term": 40})
                rig.publish("2")
                assert await rig.applied("2", seconds=20) < 3
                assert {w.epoch.term for w in rig.workers.workers.values()} == {41}
                assert rig.operator.lease.term == 1
                assert lease_of(rig)["leaseTransitions"] == 1

        run(story)

    def test_a_lease_that_was_deleted_costs_one_refusal_and_one_reading(self):
        """The next leader begins at term 1 below workers that have obeyed 1000."""

        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                for worker in rig.workers.workers.values():
                    worker.epoch = worker.epoch.model_copy(update={"term": 1000})
                rig.cluster.drop(LEASE_PATH)
                await rig.restart_operator()
                rig.publish("2")
                assert await rig.applied("2", seconds=20) < 3
                refused = [r for r in rig.kube.requests if r == ("GET", LEASE_PATH)]
                assert len(refused) <= 4
                assert rig.operator.epochs.last(("rl", "policy")).term == 1001

        run(story)

    @pytest.mark.parametrize("term", [2**31 - 1, MAX_TERM + 1, MAX_TERM, MAX_TERM - 1])
    def test_whatever_a_worker_says_of_terms_the_lease_and_leading_stay(self, term):
        """leaseTransitions is an int32, and one Lease is for all fleets."""

        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                liar = rig.worker(0)
                liar.epoch = Epoch.model_construct(term=term, sequence=2**52)
                rig.publish("2")
                await asyncio.sleep(30)
                assert rig.operator.lease.held
                assert lease_of(rig)["leaseTransitions"] == rig.operator.lease.term == 1
                assert rig.operator.epochs.last(("rl", "other")).term == 1

        run(story)

    def test_a_worker_of_the_highest_term_is_reported_with_the_remedy_and_it_helps(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                liar = rig.worker(0)
                liar.epoch = Epoch(term=MAX_TERM, sequence=9)
                rig.publish("2")
                await rig.until(lambda: reason_of(rig) == "EpochExhausted")
                message = rig.condition("Stalled")["message"]
                assert "policy-0" in message
                assert "policy-1" not in message
                assert "Delete these pods" in message
                for ip in [i for i, w in rig.workers.workers.items() if w is liar]:
                    del rig.workers.workers[ip]
                rig.cluster.drop(f"{PODS_PATH}/policy-0")
                await rig.applied("2")
                await rig.until(lambda: rig.serving == ["2", "2", "2"])
                await rig.until(lambda: rig.condition("Stalled") is None)
                assert rig.operator.epochs.last(("rl", "policy")).term == 1

        run(story)


class TestTime:
    """Neither an outage nor a wall clock delays a worker."""

    @pytest.mark.parametrize("seconds", [35, 130, 1000])
    @pytest.mark.parametrize("phase", ["Staging", "Pausing", "Loading"])
    def test_time_without_an_operator_gives_up_no_version(self, seconds, phase):
        async def story() -> None:
            async with Rig(rollout={"timeouts": SHORT}) as rig:
                await rig.applied("1")
                for worker in rig.workers.workers.values():
                    worker.slow_seconds = 2.0 if phase != "Pausing" else 0.0
                rig.workers.latency_seconds = 0.6 if phase == "Pausing" else 0.005
                rig.publish("2")
                await rig.until(lambda: rig.phase == phase)
                await rig.kill_operator()
                await asyncio.sleep(seconds)
                await rig.start_operator()
                await rig.applied("2")
                assert [e["result"] for e in rig.weights["history"]] == ["Applied", "Applied"]
                assert rig.serving == ["2", "2", "2"]

        run(story)

    @pytest.mark.parametrize("seconds", [-3600, -90, 90, 3600])
    @pytest.mark.parametrize("restarts", [False, True], ids=["same leader", "next leader"])
    def test_a_wall_clock_that_jumps_gives_up_no_version(self, seconds, restarts):
        async def story() -> None:
            async with Rig(rollout={"timeouts": SHORT}) as rig:
                await rig.applied("1")
                for worker in rig.workers.workers.values():
                    worker.slow_seconds = 3.0
                rig.publish("2")
                await rig.until(lambda: rig.phase == "Staging")
                if restarts:
                    await rig.kill_operator()
                VirtualWallClock.ahead_seconds = seconds
                if restarts:
                    await rig.start_operator()
                await rig.applied("2")
                history = rig.weights["history"]
                assert [e["result"] for e in history] == ["Applied", "Applied"]
                assert 0 <= history[0]["totalSeconds"] <= 60 + max(seconds, 0)
                timings = rig.weights["timings"]
                assert min(v for v in timings.values()) >= 0
                if not restarts:
                    assert history[0]["totalSeconds"] < 60

        run(story)

    def test_a_worker_that_is_late_is_late_by_the_leaders_own_clock(self):
        """Time-outs hold as before, with the clock an hour behind."""

        async def story() -> None:
            async with Rig(rollout={"timeouts": SHORT}) as rig:
                await rig.applied("1")
                rig.workers.silent.add(0)
                rig.publish("2")
                await asyncio.sleep(5)
                VirtualWallClock.ahead_seconds = -3600
                took = await rig.until(lambda: rig.phase == "Halted")
                assert SHORT["stageSeconds"] - 6 <= took <= SHORT["stageSeconds"] + 2

        run(story)


SHORT = {"stageSeconds": 20, "pauseSeconds": 10, "loadSeconds": 10}


def lease_of(rig: Rig) -> dict[str, Any]:
    spec: dict[str, Any] = rig.cluster.objects[LEASE_PATH]["spec"]
    return spec


def reason_of(rig: Rig) -> str:
    stalled = rig.condition("Stalled")
    return stalled["reason"] if stalled else ""

"""Series that do not grow without bound, and that go with their fleet."""

from __future__ import annotations

import re

from tests.support import virtual_time
from tests.support.builders import applied_status
from tests.support.rig import WEIGHTS_PATH, Rig

from fleet_operator.api.fleet import FleetStatus, WorkerCounts
from fleet_operator.api.weights import RolloutEffect, RolloutTimings
from fleet_operator.runtime.metrics import Metrics

KEY = ("rl", "policy")


def status(desired: str = "2", applied: str | None = "1", **counts: int) -> FleetStatus:
    return FleetStatus(
        desired_version=desired, applied_version=applied, workers=WorkerCounts(**counts)
    )


def series(metrics: Metrics, name: str) -> dict[str, float]:
    """Labels → value of one metric."""
    found = {}
    for line in metrics.render().decode().splitlines():
        if match := re.fullmatch(rf"{name}(\{{.*\}})? (\S+)", line):
            found[match[1] or ""] = float(match[2])
    return found


def test_workers_are_shown_by_state():
    metrics = Metrics()
    metrics.show_fleet(KEY, status(serving=3, quarantined=1))
    shown = series(metrics, "rlfleet_fleet_replicas")

    assert shown['{fleet="policy",namespace="rl",state="serving"}'] == 3
    assert shown['{fleet="policy",namespace="rl",state="quarantined"}'] == 1
    assert shown['{fleet="policy",namespace="rl",state="paused"}'] == 0


def test_every_state_that_a_status_counts_is_shown():
    metrics = Metrics()
    metrics.show_fleet(KEY, status())
    states = {
        re.search('state="(.*?)"', labels)[1]
        for labels in series(metrics, "rlfleet_fleet_replicas")
    }

    assert states == set(WorkerCounts.model_fields) - {"total"}


def test_a_thousand_versions_leave_one_series():
    metrics = Metrics()
    for version in range(1000):
        metrics.show_fleet(KEY, status(str(version + 1), str(version)))

    assert list(series(metrics, "rlfleet_fleet_version_info")) == [
        '{applied="999",applied_digest="",applied_run_id="",desired="1000",desired_run_id="",fleet="policy",namespace="rl"}'
    ]


def test_a_version_that_is_not_known_is_empty():
    metrics = Metrics()
    metrics.show_fleet(KEY, FleetStatus())

    assert list(series(metrics, "rlfleet_fleet_version_info")) == [
        '{applied="",applied_digest="",applied_run_id="",desired="",desired_run_id="",fleet="policy",namespace="rl"}'
    ]


def test_a_rollout_is_shown_by_phase():
    metrics = Metrics()
    timings = RolloutTimings(
        stage_seconds=4, load_seconds=2, total_seconds=7, max_worker_pause_seconds=0.3
    )
    metrics.show_rollout(KEY, applied_status("2", timings=timings, superseded_versions=5))
    sums = series(metrics, "rlfleet_rollout_phase_seconds_sum")

    assert sums['{fleet="policy",namespace="rl",phase="stage"}'] == 4
    assert sums['{fleet="policy",namespace="rl",phase="total"}'] == 7
    pauses = series(metrics, "rlfleet_rollout_worker_pause_seconds_sum")
    assert pauses == {'{fleet="policy",namespace="rl"}': 0.3}
    assert list(series(metrics, "rlfleet_rollout_superseded_versions").values()) == [5]


def test_nothing_of_a_fleet_that_is_gone_is_left_and_the_others_stay():
    metrics = Metrics()
    for key in (KEY, ("rl", "other")):
        metrics.show_fleet(key, status())
        metrics.show_rollout(key, applied_status("2"))
    metrics.forget_fleet(KEY)
    shown = metrics.render().decode()

    assert 'fleet="policy"' not in shown
    assert 'fleet="other"' in shown


def test_a_fleet_that_comes_back_is_shown_again():
    metrics = Metrics()
    metrics.show_fleet(KEY, status())
    metrics.forget_fleet(KEY)
    metrics.forget_fleet(KEY)
    metrics.show_fleet(KEY, status())

    assert len(series(metrics, "rlfleet_fleet_version_info")) == 1


def test_two_operators_in_one_process_do_not_share_series():
    """Tests, and anything else that embeds it, may make more than one."""
    one, two = Metrics(), Metrics()
    one.leading.set(1)

    assert series(two, "rlfleet_operator_leading") == {"": 0}


def test_the_share_that_a_version_changed_is_shown_and_goes_when_it_is_not_known():
    metrics = Metrics()
    effect = RolloutEffect(version="2", min_changed_share=0.25, max_changed_share=0.5)
    metrics.show_rollout(KEY, applied_status("2", effect=effect))
    name = "rlfleet_rollout_changed_share"

    assert series(metrics, name) == {
        '{bound="min",fleet="policy",namespace="rl"}': 0.25,
        '{bound="max",fleet="policy",namespace="rl"}': 0.5,
    }
    metrics.show_rollout(KEY, applied_status("3"))
    assert series(metrics, name) == {}


def test_an_adapters_rollout_is_not_counted_among_those_of_the_base_weights():
    """An adapter is loaded in milliseconds: its times would hide those of rollouts."""
    path = f"{WEIGHTS_PATH}-tuned"

    async def story() -> None:
        async with Rig(replicas=1, adapters={"max": 1}) as rig:
            await rig.applied("1")
            metrics = rig.operator.metrics
            phases, superseded = "rlfleet_rollout_phase_seconds_count", "rlfleet_rollout_superseded"
            shown = (series(metrics, phases), series(metrics, f"{superseded}_versions"))
            assert set(shown[0].values()) == {1.0}
            body = rig.cluster.objects[WEIGHTS_PATH]
            metadata = body["metadata"] | {"name": "policy-tuned", "uid": "weights-2"}
            spec = body["spec"] | {"version": "9", "adapter": "tuned"}
            rig.cluster.put(path, body | {"metadata": metadata, "spec": spec})
            rig.operator.store.put_weights(rig.cluster.objects[path])
            await rig.until(lambda: stored(rig).get("appliedVersion") == "9", what="the adapter")
            assert (series(metrics, phases), series(metrics, f"{superseded}_versions")) == shown

    def stored(rig: Rig) -> dict[str, object]:
        status: dict[str, object] = rig.cluster.objects.get(f"{path}/status", {}).get("status", {})
        return status

    virtual_time.run(story())

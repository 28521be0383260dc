"""Series of one operator process: they do not grow without bound, and go with their fleet."""

from __future__ import annotations

import re

import pytest
from tests.support import virtual_time
from tests.support.builders import applied_status, history_of, make_fleet, make_worker
from tests.support.rig import WEIGHTS_PATH, Rig

from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_metrics import ShownFleet
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutTimings

KEY = ("rl", "policy")
NOTHING = applied_status("1")


def series(metrics: Metrics, name: str) -> dict[str, float]:
    """Labels → value of one metric."""
    found = {}
    for line in metrics.render().decode().splitlines():
        if match := re.fullmatch(rf"{name}(\{{.*\}})? (\S+)", line):
            found[match[1] or ""] = float(match[2])
    return found


def test_a_rollout_is_shown_by_phase():
    metrics = Metrics()
    timings = RolloutTimings(
        stage_seconds=4, load_seconds=2, total_seconds=7, max_worker_pause_seconds=0.3
    )
    after = applied_status("2", timings=timings, history=history_of("2"))
    metrics.count_rollouts(KEY, "", NOTHING, after)
    sums = series(metrics, "rlfleet_rollout_phase_seconds_sum")

    assert sums['{fleet="policy",kind="base",namespace="rl",phase="stage"}'] == 4
    assert sums['{fleet="policy",kind="base",namespace="rl",phase="total"}'] == 7
    pauses = series(metrics, "rlfleet_rollout_worker_pause_seconds_sum")
    assert pauses == {'{fleet="policy",kind="base",namespace="rl"}': 0.3}


def test_each_rollout_is_counted_once_by_its_result_and_reason():
    metrics = Metrics()
    first = applied_status("1", history=history_of("1"))
    others = [
        history_of(version)[0].model_copy(update={"result": result, "reason": reason})
        for version, result, reason in (
            ("4", "Refused", "VersionReused"),
            ("3", "Refused", "CheckpointTruncated"),
            ("2", "Superseded", "WaitingForCheckpoint"),
        )
    ]
    after = applied_status("5", history=(*history_of("5"), *others, *first.history))
    for before, now in ((NOTHING, first), (first, first), (first, after), (after, after)):
        metrics.count_rollouts(KEY, "", before, now)

    assert series(metrics, "rlfleet_rollouts_total") == {
        f'{{fleet="policy",kind="base",namespace="rl",reason="{reason}",result="{result}"}}': count
        for result, reason, count in (
            ("Applied", "", 2),
            ("Refused", "VersionReused", 1),
            ("Refused", "CheckpointTruncated", 1),
            ("Superseded", "WaitingForCheckpoint", 1),
        )
    }
    assert set(series(metrics, "rlfleet_rollout_phase_seconds_count").values()) == {2}


def test_nothing_of_a_fleet_that_is_gone_is_left_and_the_others_stay():
    metrics = Metrics()
    for key in (KEY, ("rl", "other")):
        metrics.count_rollouts(key, "", NOTHING, applied_status("2", history=history_of("2")))
    metrics.forget_fleet(KEY)
    metrics.forget_fleet(KEY)
    shown = metrics.render().decode()

    assert 'fleet="policy"' not in shown
    assert 'fleet="other"' in shown


def test_waits_of_fleets_are_counted_without_their_names_unless_names_are_shown():
    for shown in (False, True):
        metrics = Metrics(names_fleets=shown)
        metrics.count_wait(KEY, 0.2)
        metrics.count_wait(("rl", "other"), 3.0)

        assert series(metrics, "rlfleet_queue_wait_seconds_sum") == {"": 3.2}
        assert len(series(metrics, "rlfleet_fleet_wait_seconds_total")) == (2 if shown else 0)
    metrics.forget_fleet(KEY)
    left = {'{fleet="other",namespace="rl"}': 3.0}
    assert series(metrics, "rlfleet_fleet_wait_seconds_total") == left


@pytest.mark.parametrize(
    ("watched", "names_fleets", "shown"),
    [
        ((), True, ("*",)),
        (("rl", "eval"), True, ("rl", "eval")),
        ((), False, ("*",)),
        (("rl", "eval"), False, ("?",)),
    ],
)
def test_the_watched_namespaces_are_shown_and_named_only_with_fleets(watched, names_fleets, shown):
    metrics = Metrics(namespaces=watched, names_fleets=names_fleets)

    expected = {f'{{namespace="{each}"}}': 1 for each in shown}
    assert series(metrics, "rlfleet_operator_watches") == expected


def test_two_operators_in_one_process_do_not_share_series():
    """Tests, and anything else that embeds it, may make more than one."""
    one, two = Metrics("rl/one"), Metrics("rl/two")
    one.leading.set(1)

    assert series(two, "rlfleet_operator_leading") == {'{operator="rl/two"}': 0}


def test_calls_are_shown_by_outcome_and_those_that_were_answered_by_their_duration():
    metrics = Metrics()
    metrics.count_call("load", "done", 0.2)
    metrics.count_call("load", "silent", 3.0)

    assert series(metrics, "rlfleet_worker_calls_total") == {
        '{kind="load",outcome="done"}': 1,
        '{kind="load",outcome="silent"}': 1,
    }
    assert series(metrics, "rlfleet_worker_call_seconds_sum") == {'{kind="load"}': 0.2}


def test_running_workers_that_stopped_answering_are_shown_as_silent():
    workers = [
        make_worker(0).serving("1"),
        make_worker(1).serving("1").silent(9),
        make_worker(2).serving("1").silent(10),
        make_worker(3).joining("1").silent(60),
        make_worker(4).silent(60),  # it has never answered: its engine starts
        make_worker(5).serving("1").silent(60).going(),
    ]
    metrics = Metrics()
    metrics.show_silent(KEY, make_fleet(*workers))

    name = "rlfleet_fleet_silent_workers"
    assert series(metrics, name) == {'{fleet="policy",namespace="rl"}': 2}
    metrics.forget_fleet(KEY)
    assert series(metrics, name) == {}


def test_the_release_is_shown():
    ((labels, value),) = series(Metrics(), "rlfleet_build_info").items()

    assert value == 1
    assert 'version="' in labels
    assert 'python="3.' in labels


def test_an_adapters_rollout_is_not_counted_among_those_of_the_base_weights():
    """An adapter is loaded in milliseconds: its times would hide those of rollouts."""
    path = f"{WEIGHTS_PATH}-tuned"
    counts = "rlfleet_rollout_phase_seconds_count"

    async def story() -> None:
        async with Rig(replicas=1, adapters={"max": 1}) as rig:
            await rig.applied("1")
            metrics = rig.operator.metrics
            assert by_kind(series(metrics, counts)) == {"base": 1}
            rig.add_adapter(path, "tuned", "9")
            await rig.until(
                lambda: rig.status(path).get("appliedVersion") == "9", what="the adapter"
            )
            assert by_kind(series(metrics, counts)) == {"base": 1, "lora": 1}
            phases = series(metrics, "rlfleet_weightversion_phase")
            assert {re.search('adapter="(.*?)"', labels)[1] for labels in phases} == {"", "tuned"}

    def by_kind(shown: dict[str, float]) -> dict[str, float]:
        """The numbers of one phase: all phases of a rollout are observed together."""
        totals = {labels: n for labels, n in shown.items() if 'phase="total"' in labels}
        return {re.search('kind="(.*?)"', labels)[1]: n for labels, n in totals.items()}

    virtual_time.run(story())


def test_the_process_shows_its_own_memory_and_processor_time():
    shown = Metrics().render().decode()

    assert "\nprocess_resident_memory_bytes " in shown
    assert "\nprocess_cpu_seconds_total " in shown


def test_without_names_no_series_tells_of_a_fleet_and_those_of_the_process_stay():
    pages = []
    for names_fleets in (True, False):
        metrics = Metrics("sys/rlfleet", names_fleets=names_fleets, namespaces=("secret-place",))
        shown = [ShownFleet(KEY, FleetStatus(desired_version="secret-run-7"))]
        metrics.show_statuses(lambda shown=shown: shown, {KEY: 4}.get)
        metrics.count_rollouts(KEY, "", NOTHING, applied_status("2", history=history_of("2")))
        metrics.count_call("pause", "ok", 0.1)
        pages.append(metrics.render().decode())
    named, unnamed = pages

    for word in ('namespace="rl"', 'fleet="', "secret-run-7", "secret-place"):
        assert word in named
        assert word not in unnamed
    for page in pages:
        assert 'rlfleet_worker_calls_total{kind="pause",outcome="ok"} 1.0' in page
        assert 'rlfleet_operator_leading{operator="sys/rlfleet"}' in page

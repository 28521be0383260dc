"""LoRA adapters as desired state: calls to workers, admission and conditions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
    texts_of,
)

from fleet_operator.core.actions import CompareLora
from fleet_operator.core.decision import decide
from fleet_operator.core.lora import as_seen_by_lora, calls, plan_lora
from fleet_operator.core.observed import FleetObserved, UnreadWeights, Watched
from fleet_operator.core.permits import first_calls
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.steering import not_steering
from fleet_operator.core.weights_status import weights_status
from fleet_worker.protocol import (
    AdapterFailure,
    AdapterSlots,
    AdapterState,
    Operation,
    Reason,
    Staged,
)
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, PinnedAdapter
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

SLOTS = AdapterSlots(total=3, used=0, max_rank=16)
UNREAD = UnreadWeights(
    name="wv",
    namespace="rl",
    uid="wv",
    generation=1,
    created_at=NOW,
    fleet="policy",
    adapter=None,
    unreadable="a test",
    unreadable_reason=ConditionReason.INVALID_SPEC,
)


def _applied(version: str) -> AppliedWeights:
    source = WeightSource(path=f"/weights/step_{version}")
    return AppliedWeights(version=version, source=source, applied_at=NOW)


def _weights(version: str, *, adapter: str = "sql", applied: str | None = None, **fields: Any):
    status = WeightsStatus(applied=_applied(applied) if applied else None)
    name = fields.pop("name", f"wv-{adapter}")
    spec = {"adapter": adapter} | fields.pop("spec", {})
    made = make_weights(version, name=name, uid=name, status=status, **fields)
    return type(made)(
        **{f: getattr(made, f) for f in made.__dataclass_fields__}
        | {"spec": made.spec.model_copy(update=spec)}
    )


def _with(
    worker: WorkerBuilder, *, slots: AdapterSlots | None = SLOTS, **adapters: str | None
) -> WorkerBuilder:
    held = tuple(AdapterState(name=n, version=v) for n, v in adapters.items())
    return worker.reporting(adapters=held, adapter_slots=slots)


def _with_run(worker: WorkerBuilder, version: str, run_id: str | None) -> WorkerBuilder:
    held = (AdapterState(name="sql", version=version, run_id=run_id),)
    return worker.reporting(adapters=held, adapter_slots=SLOTS)


def _refusing(
    worker: WorkerBuilder,
    version: str,
    *,
    age_seconds: float,
    name: str = "sql",
    reason: Reason = Reason.SOURCE_NOT_FOUND,
) -> WorkerBuilder:
    """A worker that refuses a version, after those that it refuses already."""
    failure = AdapterFailure(
        name=name,
        version=version,
        reason=reason,
        message="no such folder",
        age_seconds=age_seconds,
    )
    before = (worker.reported or {}).get("adapter_failures", ())
    return worker.reporting(adapter_failure=failure, adapter_failures=(failure, *before))


def _fleet(*workers: WorkerBuilder, wants: Any, room: int = 2, **spec: Any) -> FleetObserved:
    spec.setdefault("adapters", {"max": room})
    status = FleetStatus.model_validate(
        {"applied": {"version": "base", "source": {"path": "/models/base"}}}
    )
    return make_fleet(*workers, wants=wants, status=status, **spec)


def _calls(fleet: FleetObserved) -> list[str]:
    base = plan_rollout(fleet, now=NOW).step.actions
    plans = {
        w.uid: plan_lora(as_seen_by_lora(fleet, w.spec.adapter), w, now=NOW)
        for w in fleet.lora_weights
    }
    return texts_of(first_calls(base, *calls(fleet, plans)))


def _plan(fleet: FleetObserved):
    (weights,) = fleet.lora_weights
    return plan_lora(as_seen_by_lora(fleet, weights.spec.adapter), weights, now=NOW)


class TestCalls:
    def test_every_serving_worker_with_another_version_stages_it(self):
        fleet = _fleet(
            _with(make_worker(0).serving("base")),
            _with(make_worker(1).serving("base"), sql="6"),
            _with(make_worker(2).serving("base"), sql="7"),
            wants=_weights("7"),
        )

        assert _calls(fleet) == [
            "stage-adapter sql 7 on policy-0",
            "stage-adapter sql 7 on policy-1",
        ]

    def test_no_worker_is_paused_for_an_adapter(self):
        worker = make_worker(0).loading("base", "42").heard(16)
        fleet = _fleet(worker.reporting(adapter_slots=SLOTS), wants=_weights("7"))

        assert _plan(fleet).step.actions == ()

    def test_a_refusal_is_retried_after_ten_seconds(self):
        worker = _with(make_worker(0).serving("base"))
        early = _fleet(_refusing(worker, "7", age_seconds=9), wants=_weights("7"))
        later = _fleet(_refusing(worker, "7", age_seconds=11), wants=_weights("7"))

        assert _calls(early) == []
        assert _calls(later) == ["stage-adapter sql 7 on policy-0"]

    def test_an_unwanted_adapter_is_removed(self):
        serving = _with(make_worker(0).serving("base"), sql="6", old="3")

        # First, since the version that follows may need its slot.
        assert _calls(_fleet(serving, wants=_weights("7"))) == ["remove-adapter old on policy-0"]

    def test_an_adapter_that_is_being_removed_gets_no_second_call(self):
        fleet = _fleet(_with(make_worker(0).serving("base"), old=None), wants=None)

        assert _calls(fleet) == []

    def test_adapters_of_an_external_fleet_belong_to_its_trainer(self):
        fleet = _fleet(
            _with(make_worker(0).serving("base"), mine="1"),
            wants=_weights("7"),
            weights={"roots": ["/weights"], "management": "External"},
        )

        assert _calls(fleet) == []

    def test_a_suspended_version_waits(self):
        weights = _weights("7", applied="6", spec={"suspend": True})
        fleet = _fleet(_with(make_worker(0).serving("base"), sql="6"), wants=weights)

        assert _calls(fleet) == []
        assert _plan(fleet).suspended

    def test_the_same_number_of_another_run_is_staged(self):
        wants = _weights("40", applied="40", spec={"run_id": "run-8"})
        workers = [_with_run(make_worker(n).serving("base"), "40", None) for n in range(2)]
        fleet = _fleet(*workers, wants=wants)

        assert _calls(fleet) == [f"stage-adapter sql 40 of run-8 on policy-{n}" for n in range(2)]
        assert _plan(fleet).serving is None
        done = [_with_run(make_worker(n).serving("base"), "40", "run-8") for n in range(2)]
        assert _calls(_fleet(*done, wants=wants)) == []
        assert _plan(_fleet(*done, wants=wants)).serving == "40"

    @pytest.mark.parametrize("run", ["r", None])
    def test_a_run_does_not_go_back(self, run):
        weights = _weights("5", applied="6", spec={"run_id": run})
        applied = weights.status.applied.model_copy(update={"run_id": run})
        weights = replace(weights, status=weights.status.model_copy(update={"applied": applied}))
        fleet = _fleet(_with(make_worker(0).serving("base"), sql="6"), wants=weights)

        assert _calls(fleet) == []
        assert _plan(fleet).step.problem.reason is ConditionReason.REWIND_REFUSED


class TestJoiningWorkers:
    def test_a_joining_worker_gets_its_adapters_before_admission(self):
        member = _with(make_worker(0).serving("base"), sql="7")
        weights = _weights("7", applied="7")
        bare = _fleet(member, _with(make_worker(1).joining("base")), wants=weights)
        equipped = _fleet(member, _with(make_worker(1).joining("base"), sql="7"), wants=weights)

        assert _calls(bare) == ["stage-adapter sql 7 on policy-1"]
        assert _calls(equipped) == ["admit base on policy-1"]

    @pytest.mark.parametrize(("digest", "admitted"), [("a", 1), ("b", 0)])
    def test_other_bytes_than_the_pinned_ones_keep_it_out_before_any_worker_has_served(
        self, digest, admitted
    ):
        pins, has = (f"sha256:{d * 64}" for d in ("a", digest))
        source = WeightSource(path="/weights/step_7")
        pinned = PinnedAdapter(adapter="sql", version="7", digest=pins, source=source)
        held = (AdapterState(name="sql", version="7", digest=has),)
        worker = make_worker(0).joining("base").reporting(adapters=held, adapter_slots=SLOTS)
        fleet = _fleet(worker, wants=_weights("7"))
        status = fleet.status.model_copy(update={"pinned_adapters": (pinned,)})

        assert _calls(replace(fleet, status=status)).count("admit base on policy-0") == admitted

    @pytest.mark.parametrize("suspend", [True, False])
    def test_other_bytes_than_the_pinned_ones_are_removed_if_no_worker_has_served_the_adapter(
        self, suspend
    ):
        """Else a fleet without members waits for files that may be gone, and nothing says so."""
        pins, has = (f"sha256:{d * 64}" for d in ("a", "b"))
        source = WeightSource(path="/weights/step_7")
        pinned = PinnedAdapter(adapter="sql", version="7", digest=pins, source=source)
        held = (AdapterState(name="sql", version="7", digest=has),)
        failure = AdapterFailure(
            name="sql", version="7", reason=Reason.DIGEST_MISMATCH, message="", age_seconds=3
        )
        worker = make_worker(0).joining("base").reporting(adapter_slots=SLOTS)
        worker = worker.reporting(adapters=held, adapter_failures=(failure,))
        fleet = _fleet(worker, wants=_weights("7", spec={"suspend": suspend}))
        status = fleet.status.model_copy(update={"pinned_adapters": (pinned,)})

        assert _calls(replace(fleet, status=status)) == ["remove-adapter sql on policy-0"]

    @pytest.mark.parametrize(
        ("unread", "call"),
        [((), "remove-adapter other on policy-0"), ((UNREAD,), "admit base on policy-0")],
        ids=["all are read", "the unread one may name it"],
    )
    def test_an_adapter_that_no_weightversion_steers_goes_before_the_worker_is_admitted(
        self, unread, call
    ):
        """Nothing says which files its tokens may come from (soak seed 19100000590)."""
        fleet = _fleet(_with(make_worker(0).joining("base"), other="1"), wants=_weights("7"))

        assert _calls(replace(fleet, unread=unread)) == [call]

    def test_if_the_desired_version_fails_it_gets_the_applied_one(self):
        member = _refusing(_with(make_worker(0).serving("base"), sql="6"), "7", age_seconds=1)
        joining_worker = _refusing(_with(make_worker(1).joining("base")), "7", age_seconds=1)
        fleet = _fleet(member, joining_worker, wants=_weights("7", applied="6"))

        assert _calls(fleet) == ["stage-adapter sql 6 on policy-1"]

    @pytest.mark.parametrize(("versions"), [("7", "6"), ("6", "7")])
    def test_if_both_versions_fail_it_rests_and_one_reason_stays(self, versions):
        reasons = {"7": Reason.CHECKPOINT_MALFORMED, "6": Reason.SOURCE_NOT_FOUND}
        joining_worker = _with(make_worker(1).joining("base"))
        for age, version in zip((0.5, 0.1), versions, strict=True):
            joining_worker = _refusing(
                joining_worker, version, age_seconds=age, reason=reasons[version]
            )
        member = _with(make_worker(0).serving("base"), sql="6")
        fleet = _fleet(member, joining_worker, wants=_weights("7", applied="6"))
        problem = _plan(fleet).step.problem

        assert _calls(fleet) == ["stage-adapter sql 7 on policy-0"]
        assert problem.reason is ConditionReason.SOURCE_NOT_FOUND
        assert {"SourceNotFound", "CheckpointMalformed"} <= set(
            problem.message.replace(":", "").split()
        )

    def test_a_new_version_is_tried_at_once_though_the_applied_one_was_refused(self):
        joining_worker = _with(make_worker(1).joining("base"))
        joining_worker = _refusing(joining_worker, "6", age_seconds=0.1)
        member = _with(make_worker(0).serving("base"), sql="6")
        fleet = _fleet(member, joining_worker, wants=_weights("8", applied="6"))

        assert _calls(fleet) == [f"stage-adapter sql 8 on policy-{n}" for n in range(2)]

    def test_a_worker_that_may_still_join_at_the_applied_version_does_not_report_a_refused_goal(
        self,
    ):
        joining_worker = _refusing(_with(make_worker(1).joining("base")), "7", age_seconds=0.1)
        member = _with(make_worker(0).serving("base"), sql="6")

        plan = _plan(_fleet(member, joining_worker, wants=_weights("7", applied="6")))

        assert plan.step.problem is None

    def test_an_adapter_that_was_never_served_does_not_prevent_admission(self):
        joining_worker = _refusing(_with(make_worker(0).joining("base")), "7", age_seconds=1)

        assert _calls(_fleet(joining_worker, wants=_weights("7"))) == ["admit base on policy-0"]

    def test_a_worker_of_an_older_template_without_slots_is_admitted(self):
        joining_worker = _with(make_worker(0).joining("base"), slots=None)

        assert _calls(_fleet(joining_worker, wants=_weights("7", applied="7"))) == [
            "admit base on policy-0"
        ]


class TestStatus:
    def _status(self, fleet: FleetObserved, of_fleet: FleetStatus | None = None) -> WeightsStatus:
        (weights,) = fleet.lora_weights
        seen = as_seen_by_lora(fleet, weights.spec.adapter)
        plan = plan_lora(seen, weights, now=NOW)
        return weights_status(seen, weights, plan, fleet=of_fleet or FleetStatus(), now=NOW)

    def test_a_problem_of_the_base_weights_is_not_that_of_an_adapter(self):
        """An adapter without a fault had the reason SourceUnreadable, because its workers lack the base weights."""
        unreadable = Condition(
            type=ConditionType.READY,
            status="False",
            reason=ConditionReason.SOURCE_UNREADABLE,
            message="chmod",
            observed_generation=1,
            last_transition_time=NOW,
        )
        fleet = _fleet(make_worker(0).starting(), wants=_weights("7"))

        status = self._status(fleet, FleetStatus(conditions=(unreadable,)))

        ready = condition_of(status.conditions, ConditionType.READY)
        assert ready.reason is ConditionReason.WAITING_FOR_ENGINE
        assert "chmod" not in ready.message

    def test_nor_is_an_abandoned_version_of_them(self):
        """An adapter whose workers started was FailureBudgetExceeded, with the words about the base weights."""
        fails = make_worker(0).joining("base").failed_to_load("42")
        both, strict = [make_weights("42"), _weights("7")], {"maxFailures": 0}
        fleet = _fleet(fails, make_worker(1).starting(), wants=both, rollout=strict)

        made = decide(fleet, default_image="i", now=NOW)

        of_fleet, of_adapter = (
            condition_of(status.conditions, ConditionType.READY)
            for status in (made.fleet, made.weights["wv-sql"])
        )
        assert of_fleet.reason is ConditionReason.FAILURE_BUDGET_EXCEEDED
        assert of_adapter.reason is ConditionReason.WAITING_FOR_ENGINE

    def test_a_refusal_has_the_workers_message(self):
        status = self._status(
            _fleet(
                _refusing(_with(make_worker(0).serving("base"), sql="6"), "7", age_seconds=1),
                wants=_weights("7", applied="6"),
            )
        )
        stalled = condition_of(status.conditions, ConditionType.STALLED)

        assert stalled.reason is ConditionReason.SOURCE_NOT_FOUND
        assert "no such folder (policy-0)" in stalled.message
        assert [(g.pod, g.reason) for g in status.laggards] == [("policy-0", "SourceNotFound")]

    @pytest.mark.parametrize("applied", [None, "6"])
    def test_an_adapter_whose_directory_is_missing_is_waited_for(self, applied):
        held = _with(make_worker(0).serving("base"), **({"sql": applied} if applied else {}))
        worker = _refusing(held, "7", age_seconds=1, reason=Reason.SOURCE_ABSENT)
        status = self._status(_fleet(worker, wants=_weights("7", applied=applied)))
        progressing = condition_of(status.conditions, ConditionType.PROGRESSING)

        assert condition_of(status.conditions, ConditionType.STALLED) is None
        assert progressing.status == "True"
        assert progressing.reason is ConditionReason.WAITING_FOR_CHECKPOINT
        assert status.phase is RolloutPhase.PENDING

    def test_a_slot_with_running_requests_is_waited_for(self):
        worker = _with(make_worker(0).serving("base"), sql="6")
        failure = AdapterFailure(
            name="sql",
            version="7",
            reason=Reason.NO_ADAPTER_SLOT,
            message="2 of 2 slots are taken",
            age_seconds=0.5,
        )
        status = self._status(
            _fleet(worker.reporting(adapter_failures=(failure,)), wants=_weights("7", applied="6"))
        )

        assert condition_of(status.conditions, ConditionType.STALLED) is None
        progressing = condition_of(status.conditions, ConditionType.PROGRESSING)
        assert "2 of 2 slots are taken" in progressing.message

    def test_a_worker_without_memory_for_the_adapter_is_reported(self):
        worker = _with(make_worker(0).serving("base"), sql="6")
        refusing = _refusing(worker, "7", age_seconds=0.5, reason=Reason.NOT_AVAILABLE)
        fleet = _fleet(refusing, wants=_weights("7", applied="6"))
        stalled = condition_of(self._status(fleet).conditions, ConditionType.STALLED)

        assert stalled.reason is ConditionReason.FAILURE_BUDGET_EXCEEDED
        assert "NotAvailable" in stalled.message


class TestTime:
    """A rollout that lasts too long is reported, and continues."""

    LIMIT = 900 + 600
    """Of the default timeouts of staging and loading."""
    WITH_BASE = LIMIT + 60 + 600
    """A rollout of base weights may hold the workers once meanwhile."""

    def _plan_after(
        self,
        seconds: float,
        *workers: WorkerBuilder,
        phase: RolloutPhase = RolloutPhase.STAGING,
        suspend: bool = False,
        rollout: Any = None,
    ):
        weights = _weights("7", applied="6", spec={"suspend": suspend})
        status = weights.status.model_copy(update={"desired_version": "7", "phase": phase})
        watched = Watched(phase_seconds=seconds, attempt_seconds=seconds)
        wants = replace(weights, status=status, watched=watched)
        return _plan(_fleet(*workers, wants=wants, rollout=rollout or {}))

    def _waiting(self, number: int = 0) -> WorkerBuilder:
        worker = _with(make_worker(number).serving("base"), sql="6")
        return _refusing(worker, "7", age_seconds=2, reason=Reason.SOURCE_NOT_READY)

    @pytest.mark.parametrize("phase", [RolloutPhase.STAGING, RolloutPhase.LOADING])
    def test_files_that_are_never_complete_are_reported_after_the_timeouts(self, phase):
        early = self._plan_after(self.WITH_BASE, self._waiting(), phase=phase)
        problem = self._plan_after(self.WITH_BASE + 1, self._waiting(), phase=phase).step.problem

        assert early.step.problem is None
        assert (problem.reason, problem.halt) == (ConditionReason.DEADLINE_EXCEEDED, False)
        assert "1 worker does not serve version 7" in problem.message
        assert "SourceNotReady: no such folder (policy-0)" in problem.message

    def test_workers_that_read_in_turn_have_the_time_of_all(self):
        workers = [self._waiting(n) for n in range(3)]
        turns = {"maxStaging": 1}

        assert self._plan_after(3 * 900 + 1260, *workers, rollout=turns).step.problem is None
        assert self._plan_after(3 * 900 + 1261, *workers, rollout=turns).step.problem is not None

    def test_a_drain_of_base_weights_does_not_count(self):
        drains = {"pause": {"mode": "Wait", "drainTimeoutSeconds": 100}}

        late = self.WITH_BASE + 100
        assert self._plan_after(late, self._waiting(), rollout=drains).step.problem is None
        assert self._plan_after(late + 1, self._waiting(), rollout=drains).step.problem is not None

    def test_a_worker_that_joined_in_the_meantime_is_not_late(self):
        joined = self._waiting().reporting(uptime_seconds=60.0)

        assert self._plan_after(self.WITH_BASE + 1, joined).step.problem is None

    def test_a_worker_that_waits_for_the_applied_version_to_join_is_reported_after_the_same_time(
        self,
    ):
        member = _with(make_worker(0).serving("base"), sql="6")
        joins = _with(make_worker(1).joining("base"))
        joins = _refusing(joins, "6", age_seconds=1, reason=Reason.SOURCE_NOT_READY)
        early, after = (joins.reporting(uptime_seconds=s) for s in (self.LIMIT, self.LIMIT + 1.0))
        wants = _weights("6", applied="6")
        problem = _plan(_fleet(member, after, wants=wants)).step.problem

        assert _plan(_fleet(member, early, wants=wants)).step.problem is None
        assert (problem.reason, problem.halt) == (ConditionReason.DEADLINE_EXCEEDED, False)
        assert "1 worker cannot join at version 6" in problem.message
        assert "SourceNotReady" in problem.message

    def test_a_joining_worker_whose_read_of_the_applied_version_does_not_end_is_reported(self):
        reading = {"kind": "stage-adapter", "version": "6"}
        joins = _with(make_worker(0).joining("base"))
        early, after = (
            joins.reporting(
                operation=Operation.model_validate(reading | {"running_seconds": seconds})
            )
            for seconds in (self.LIMIT, self.LIMIT + 1)
        )
        wants = _weights("6", applied="6")

        assert _plan(_fleet(early, wants=wants)).step.problem is None
        problem = _plan(_fleet(after, wants=wants)).step.problem
        assert problem.reason is ConditionReason.DEADLINE_EXCEEDED


class TestPodsWithoutSlots:
    @pytest.mark.parametrize(
        ("update", "remedy"),
        [
            ({"paused": True}, "Set spec.update.paused to false, or delete the pods."),
            ({"type": "OnDelete"}, "Delete the pods."),
        ],
    )
    def test_pods_that_are_kept_without_slots_are_reported_at_once(self, update, remedy):
        workers = [_with(make_worker(n).serving("base"), slots=None) for n in range(2)]
        problem = _plan(_fleet(*workers, wants=_weights("7"), update=update)).step.problem

        assert (problem.reason, problem.halt) == (ConditionReason.UPDATE_HELD, False)
        assert "policy-0, policy-1 have an older template without slots" in problem.message
        assert problem.message.endswith(remedy)

    @pytest.mark.parametrize(("uptime", "reason"), [(30.0, None), (99_999.0, "DeadlineExceeded")])
    def test_pods_that_are_being_replaced_are_late_when_no_new_one_starts(self, uptime, reason):
        old = _with(make_worker(0).serving("base"), slots=None)
        new = _with(make_worker(1).joining("base")).reporting(uptime_seconds=uptime)
        old = old.reporting(uptime_seconds=99_999.0)
        weights = _weights("7")
        status = WeightsStatus(desired_version="7", phase=RolloutPhase.STAGING)
        wants = replace(weights, status=status, watched=Watched(phase_seconds=99_999))
        problem = _plan(_fleet(old, new, wants=wants)).step.problem

        assert (problem and problem.reason) == reason


class TestRefusals:
    @pytest.mark.parametrize("adapter", ["", "sql"])
    def test_a_second_weightversion_for_an_adapter_is_refused_and_names_the_first(self, adapter):
        older = _weights("1", adapter=adapter, name="a", created_at=NOW)
        newer = _weights("2", adapter=adapter, name="b", created_at=NOW + timedelta(seconds=1))
        fleet = _fleet(_with(make_worker(0).serving("base")), wants=[newer, older])
        reason, message = not_steering(fleet, newer)

        assert not_steering(fleet, older) is None
        assert reason is (
            ConditionReason.SECOND_ADAPTER_VERSION
            if adapter
            else ConditionReason.SECOND_BASE_VERSION
        )
        assert "WeightVersion a is older" in message

    def test_more_adapters_than_slots_are_refused(self):
        wants = [_weights("1", adapter="a"), _weights("1", adapter="b")]
        fleet = _fleet(_with(make_worker(0).serving("base")), wants=wants, room=1)
        reason, message = not_steering(fleet, wants[1])

        assert not_steering(fleet, wants[0]) is None
        assert reason is ConditionReason.NO_ROOM_FOR_ADAPTERS
        assert "at most 1 adapter;" in message

    def test_an_adapter_cannot_have_the_models_name(self):
        weights = _weights("1", adapter="m")
        fleet = _fleet(_with(make_worker(0).serving("base")), wants=[weights])

        assert not_steering(fleet, weights)[0] is ConditionReason.INVALID_SPEC
        assert _calls(fleet) == []


class TestFilesOfAServedVersion:
    """The WeightVersion of an adapter was created again with the version that all workers serve."""

    DIGEST = "sha256:" + "1" * 64
    BEGUN = WeightsStatus(
        observed_generation=1,
        desired_version="7",
        phase=RolloutPhase.COMPARING,
        files_unread=True,
        started_at=NOW - timedelta(minutes=1),
    )

    def _fleet(self, *workers: WorkerBuilder, wants: Any = None, **spec: Any) -> FleetObserved:
        made = _fleet(*workers, wants=wants or _weights("7"), **spec)
        pins = (
            PinnedAdapter(
                adapter="sql",
                version="7",
                digest=self.DIGEST,
                source=WeightSource(path="/weights/step_7"),
            ),
        )
        status = made.status.model_copy(update={"pinned_adapters": pins})
        return replace(made, status=status, stored=status)

    def _serving(self, number: int) -> WorkerBuilder:
        held = (AdapterState(name="sql", version="7", digest=self.DIGEST),)
        worker = make_worker(number).serving("base")
        return worker.reporting(adapters=held, adapter_slots=SLOTS)

    def _begun(self) -> Any:
        return replace(_weights("7"), status=self.BEGUN, watched=Watched(phase_seconds=60))

    def test_one_worker_compares_the_files_before_the_version_is_applied(self):
        fleet = self._fleet(self._serving(0), self._serving(1))
        plan = _plan(fleet)

        assert _calls(fleet) == ["compare-adapter sql 7 on policy-0"]
        assert (plan.step.phase, plan.files_unread) == (RolloutPhase.COMPARING, True)
        (call,) = plan.step.actions
        assert isinstance(call, CompareLora)
        assert (call.digest, call.stage_only) == (None, True)

    @pytest.mark.parametrize(("adapter", "is_compared"), [("sql", True), ("math", False)])
    def test_the_version_is_applied_when_a_worker_has_found_the_same(self, adapter, is_compared):
        fleet = self._fleet(
            self._serving(0).compared("7", 5.0, adapter=adapter), wants=self._begun()
        )
        plan = _plan(fleet)

        assert (plan.step.phase is RolloutPhase.APPLIED) == is_compared
        assert plan.files_unread != is_compared

    def test_other_files_are_reported_and_asked_for_again_at_one_worker_only(self):
        reused = Reason.VERSION_REUSED
        for age_seconds, asked in ((1.0, []), (30.0, ["compare-adapter sql 7 on policy-1"])):
            refusing = _refusing(self._serving(1), "7", age_seconds=age_seconds, reason=reused)
            fleet = self._fleet(self._serving(0), refusing, wants=self._begun())
            problem = _plan(fleet).step.problem
            assert problem is not None
            assert (problem.reason, problem.halt) == (ConditionReason.VERSION_REUSED, False)
            assert _calls(fleet) == asked

    def test_a_worker_that_refused_for_the_weight_version_before_rests_and_is_reported(self):
        reused = Reason.VERSION_REUSED
        for age_seconds, asked in ((3.0, []), (30.0, ["compare-adapter sql 7 on policy-1"])):
            refusing = _refusing(self._serving(1), "7", age_seconds=age_seconds, reason=reused)
            fleet = self._fleet(self._serving(0), refusing)
            problem = _plan(fleet).step.problem
            assert (problem.reason if problem else None) == (None if asked else reused)
            assert _calls(fleet) == asked

    def test_a_comparison_waits_until_no_other_worker_reads_if_reads_are_bounded(self):
        reading = self._serving(1).doing("stage-adapter", "7")
        for settings, asked in (
            ({}, ["compare-adapter sql 7 on policy-0"]),
            ({"maxStaging": 1}, []),
        ):
            fleet = self._fleet(self._serving(0), reading, rollout=settings)
            assert _calls(fleet) == asked

    def test_the_removal_of_a_staged_version_waits_for_it_if_reads_are_bounded(self):
        """A worker that has restarted would read for the removal (soak seed 7200002734)."""
        source = {"path": "/weights/step_7"}
        staged = Staged(
            version="8", source={"path": "/weights/step_8"}, size_bytes=1, in_memory=True
        )
        held = AdapterState(
            name="sql", version="7", digest=self.DIGEST, staged=staged, source=source
        )
        leftover = make_worker(1).serving("base").reporting(adapters=(held,), adapter_slots=SLOTS)
        removal, compares = "stage-adapter sql 7 on policy-1", "compare-adapter sql 7 on policy-0"
        begun = self._serving(0).compared("7", 5.0, adapter="sql")

        assert _calls(self._fleet(self._serving(0), leftover, rollout={"maxStaging": 1})) == [
            compares
        ]
        assert _calls(self._fleet(begun, leftover, wants=self._begun())) == [removal]

    def test_a_digest_in_the_spec_needs_no_comparison(self):
        wants = _weights("7", spec={"digest": self.DIGEST})
        assert _calls(self._fleet(self._serving(0), wants=wants)) == []

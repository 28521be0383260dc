"""Workers, fleets and statuses in one line, for tables over the planners.

    make_fleet(make_worker(0).serving("41").staged("42"), make_worker(1).joining("base"), wants="42")

Builders are immutable: every method gives another one. Without further calls they describe a healthy
fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Self, get_args

from fleet_operator.api.fleet import FleetSpec, Rollout
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.actions import WorkerAction, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.manifests import overlay, pods, revisions
from fleet_operator.core.manifests.templates import RecordedTemplate
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.pod_waits import PodWait
from fleet_operator.core.strategies.base import RolloutView
from fleet_operator.core.strategies.trials import Trial
from fleet_operator.core.work import Compared, Ended, Outcome, Unheeded, Work
from fleet_operator.core.worker_calls import LEASE_SECONDS
from fleet_operator.core.worker_view import PodView, Standing, WorkerView
from fleet_worker.lifecycle.refused_stages import with_refusal
from fleet_worker.protocol import (
    Failure,
    LoadEffect,
    Operation,
    PauseMode,
    PauseState,
    Phase,
    PromptsReport,
    Reason,
    Source,
    Staged,
    SwapTimings,
    WorkerState,
)
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import (
    AppliedWeights,
    FleetStatus,
    RecordedWeights,
    Transition,
)
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import (
    CanaryVerdict,
    HistoryEntry,
    RolloutPhase,
    WeightsStatus,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
IMAGE = "rlfleet/worker:1"
"""The image of workers whose fleet names none."""
REVISION = "r1"
FLEET_UID = "fleet-1"
WEIGHTS_PATH = "/weights/step_{version}"


A_DIGEST = f"sha256:{'a' * 64}"
ANOTHER_DIGEST = f"sha256:{'b' * 64}"


def path_of(version: str) -> str:
    """Where a version is: the model's own weights, or a step of the trainer."""
    return "/models/base" if version == "base" else f"/weights/step_{version}"


def target(version: str) -> Checkpoint:
    """Weights with their label, from where they usually are."""
    return Checkpoint(version=version, source=WeightSource(path=path_of(version)))


@dataclass(frozen=True)
class WorkerBuilder:
    """Builds the view of a pod and of the worker in it."""

    ordinal: int
    fleet: str = "policy"
    pod: dict[str, Any] = field(default_factory=dict)
    reported: dict[str, Any] | None = None
    around: dict[str, Any] = field(default_factory=dict)

    # --- the answers of the process -------------------------------------------------------

    def serving(self, version: str) -> Self:
        """Admitted and generating."""
        return self.reporting(phase=Phase.SERVING, admitted=True, version=version)

    def pausing(self, version: str) -> Self:
        """Admitted, on its way to a pause."""
        return self.reporting(phase=Phase.PAUSING, admitted=True, version=version)

    def paused(self, version: str, *, lease_seconds: float = 30, seconds: float = 1) -> Self:
        """Admitted, holding its requests since `seconds`."""
        pause = _pause(lease_seconds, seconds)
        return self.reporting(phase=Phase.PAUSED, admitted=True, version=version, pause=pause)

    def loaded(self) -> Self:
        """It has taken its version in this pause."""
        assert self.reported is not None
        return self.reporting(
            timings=SwapTimings(version=self.reported["version"], load_seconds=1.0)
        )

    def loading(self, version: str, into: str) -> Self:
        """Admitted, with one version in the engine and another going in."""
        return self.reporting(
            phase=Phase.LOADING, admitted=True, version=version, pause=_pause(30)
        ).doing("load", into)

    def joining(self, version: str | None) -> Self:
        """Up, with a closed latch."""
        return self.reporting(phase=Phase.JOINING, admitted=False, version=version).unready()

    def starting(self) -> Self:
        """Its engine is not up yet."""
        return self.reporting(phase=Phase.STARTING, admitted=False, version=None).unready()

    def broken(self, version: str | None = None) -> Self:
        """Broken: its latch stays closed until it has recovered."""
        return self.reporting(phase=Phase.BROKEN, admitted=False, version=version).unready()

    def draining(self, version: str) -> Self:
        """About to end."""
        return self.reporting(phase=Phase.DRAINING, admitted=False, version=version).unready()

    def closed_pausing(self, version: str) -> Self:
        """Its latch is closed, and its last requests run."""
        return self.reporting(phase=Phase.PAUSING, admitted=False, version=version).unready()

    def with_requests(self, running: int) -> Self:
        """It runs this number of requests."""
        return self.reporting(requests_running=running)

    def with_sessions(self, sessions: int | None) -> Self:
        """It counts this number of recent sessions; None: its release counts none."""
        return self.reporting(sessions=sessions)

    def staged(self, version: str) -> Self:
        """It holds the bytes of this version."""
        source = Source(path=path_of(version))
        return self.reporting(
            staged=Staged(version=version, source=source, size_bytes=1, in_memory=True)
        )

    def doing(self, kind: str, version: str | None = None) -> Self:
        """It works on something."""
        return self.reporting(
            operation=Operation.model_validate(
                {"kind": kind, "version": version, "running_seconds": 1.0}
            )
        )

    def working_for(self, seconds: float) -> Self:
        """Its work has lasted for these seconds."""
        work = (self.reported or {})["operation"]
        return self.reporting(operation=work.model_copy(update={"running_seconds": seconds}))

    def refused(
        self, version: str, reason: Reason, *, age_seconds: float = 1, message: str = "injected"
    ) -> Self:
        """Its last staging was refused; the refusals before it stay known."""
        reported = self.reported or {}
        before = (reported["stage_failure"],) if reported.get("stage_failure") else ()
        before += reported.get("earlier_stage_failures", ())
        newest, *earlier = with_refusal(before, _failure(version, reason, age_seconds, message))
        return self.reporting(stage_failure=newest, earlier_stage_failures=tuple(earlier))

    def failed_to_load(
        self, version: str, reason: Reason = Reason.ENGINE_FAILED, *, age_seconds: float = 1
    ) -> Self:
        """Its last load failed."""
        return self.reporting(load_failure=_failure(version, reason, age_seconds))

    def probed(self, version: str, **found: Any) -> Self:
        """The canary's prompts were run on this version."""
        given: dict[str, Any] = {"version": version, "finite": True, "repetition": 0.1}
        return self.reporting(probe=PromptsReport.model_validate(given | found))

    def swapped(self, version: str, *, paused_seconds: float) -> Self:
        """Its last swap took this long."""
        return self.reporting(timings=SwapTimings(version=version, paused_seconds=paused_seconds))

    def changed(
        self, share: float | None, *, since: str = "1", digest: str = A_DIGEST, **found: Any
    ) -> Self:
        """The load of its version has changed this share of the model; its files have that digest."""
        assert self.reported is not None
        given = {
            "version": self.reported["version"],
            "compared_with": since,
            "compared_with_digest": ANOTHER_DIGEST,
            "changed_share": share,
            "unchanged": share == 0,
        }
        return self.reporting(digest=digest, effect=LoadEffect.model_validate(given | found))

    def from_source(self, path: str | None) -> Self:
        """Its weights came from here."""
        return self.reporting(source=Source(path=path) if path else None)

    def compared(self, version: str, seconds_ago: float, *, adapter: str | None = None) -> Self:
        """It has found the files of this version to be those in its engine."""
        kind = "compare-adapter" if adapter else "compare"
        done = Compared(Work(kind, version, None, adapter), seconds_ago)
        return replace(self, around=self.around | {"compared": (done,)})

    def ignoring(
        self,
        call: str,
        why: str = "it does nothing",
        *,
        outcome: Outcome = Outcome.NO_EFFECT,
        seconds_ago: float = 1,
        lasts: bool = True,
    ) -> Self:
        """It has not followed a call, as `work` reads it."""
        ignored = Unheeded(work(call), outcome, why, seconds_ago, lasts)
        before = self.around.get("unheeded", ())
        return replace(self, around=self.around | {"unheeded": (*before, ignored)})

    def has_ended(self, call: str, *, seconds_ago: float, running_seconds: float = 1) -> Self:
        """It last reported this work that long ago, and had worked that long then."""
        ended = Ended(work(call), -seconds_ago, running_seconds)
        return replace(self, around=self.around | {"ended": ended})

    def heard(self, seconds_ago: float) -> Self:
        """It gave its last answer that long ago."""
        return replace(self, around=self.around | {"state_age_seconds": seconds_ago})

    def silent(self, seconds: float = 5) -> Self:
        """It has not answered for these seconds."""
        return replace(
            self, around=self.around | {"silent_seconds": seconds, "silence": "no answer"}
        )

    def asked_to(self, call: str) -> Self:
        """A call of ours is in flight."""
        return replace(self, around=self.around | {"call": work(call)})

    def without_answer_to(self, call: str) -> Self:
        """A call of ours ended without an answer, and it has not answered since."""
        lost = (*self.around.get("lost_calls", ()), work(call))
        return replace(self, around=self.around | {"lost_calls": lost})

    def that_may_open(self) -> Self:
        """An admission is in flight, or got no answer."""
        return replace(self, around=self.around | {"may_open": True})

    # --- the pod in the cluster -----------------------------------------------------------

    def ready(self) -> Self:
        """The kubelet's probe succeeds."""
        return self._pod(ready=True)

    def unready(self) -> Self:
        """The kubelet's probe fails."""
        return self._pod(ready=False)

    def is_up(self) -> Self:
        """Its process has answered the startup probe."""
        return self._pod(started=True)

    def not_running(self, phase: str = "Pending") -> Self:
        """Its container does not run."""
        return self._pod(running=False, ready=False, phase=phase)

    def not_starting(self, problem: str) -> Self:
        """The cluster reports why it does not run."""
        return self._pod(problem=problem, running=False, ready=False)

    def awaiting(self, wait: PodWait) -> Self:
        """Its pod waits for what the cluster may still bring."""
        return self._pod(wait=wait)

    def ended(self, phase: str = "Failed") -> Self:
        """Evicted, or ended by itself."""
        return self._pod(phase=phase, running=False, ready=False)

    def going(self, *, gone_by: datetime | None = None) -> Self:
        """Its pod is being deleted, and should be gone by that time."""
        return self._pod(deleting=True, gone_by=gone_by)

    def owned_by(self, uid: str) -> Self:
        """Its pod belongs to this object; without one if empty."""
        return self._pod(owner=uid)

    def on_node(self, node: str) -> Self:
        """Its pod runs on this node."""
        return self._pod(node=node)

    def in_zone(self, zone: str) -> Self:
        """Its pod runs in this zone."""
        return self._pod(zone=zone)

    def quarantined(self, why: str = "does not answer") -> Self:
        """The operator took it out of service."""
        return self._pod(quarantine=why)

    def draining_since(self, since: datetime) -> Self:
        """The operator has marked its pod: it deletes the pod when its requests have ended."""
        return self._pod(drains_since=since)

    def restarted(self, times: int) -> Self:
        """Its container was started again."""
        return self._pod(restarts=times)

    def starting_again(self, why: str) -> Self:
        """Its process has ended before, and starts."""
        return self._pod(starts_again=why, ready=False)

    def of_revision(self, revision: str) -> Self:
        """Its pod was made from this template."""
        return self._pod(revision=revision)

    def with_uid(self, uid: str) -> Self:
        """Its pod has this uid."""
        return self._pod(uid=uid)

    # --- the records --------------------------------------------------------------------------

    def pod_view(self) -> PodView:
        """The pod."""
        given: dict[str, Any] = {
            "uid": f"uid-{self.ordinal}",
            "name": f"{self.fleet}-{self.ordinal}",
            "ordinal": self.ordinal,
            "revision": REVISION,
            "ip": "10.0.0.1",
            "node": "node-1",
            "phase": "Running",
            "running": True,
            "ready": True,
            "owner": FLEET_UID,
        }
        return PodView(**given | self.pod)

    def state(self) -> WorkerState | None:
        """The last answer of the process; None without one."""
        if self.reported is None:
            return None
        version = self.reported.get("version")
        given: dict[str, Any] = {
            "worker": f"{self.fleet}-{self.ordinal}",
            "pod_uid": f"uid-{self.ordinal}",
            "instance": f"i-{self.ordinal}",
            "uptime_seconds": 10_000.0,
            "source": Source(path=path_of(version)) if version else None,
        }
        return WorkerState(**given | self.reported)

    def view(self) -> WorkerView:
        """The worker as the planners see it."""
        return WorkerView(pod=self.pod_view(), state=self.state(), **self.around)

    def reporting(self, **fields: Any) -> Self:
        return replace(self, reported=(self.reported or {}) | fields)

    def _pod(self, **facts: Any) -> Self:
        return replace(self, pod=self.pod | facts)


def make_worker(ordinal: int = 0, *, fleet: str = "policy") -> WorkerBuilder:
    """A worker whose pod is fine and that has not answered yet."""
    return WorkerBuilder(ordinal, fleet)


def make_spec(**fields: Any) -> FleetSpec:
    """A fleet's spec in the words of its JSON."""
    given: dict[str, Any] = {
        "replicas": 3,
        "model": {"name": "m", "source": {"path": "/models/base"}},
        "weights": {"roots": ["/weights"]},
    }
    return FleetSpec.model_validate(given | fields)


def make_weights(version: str, **fields: Any) -> WeightsView:
    """A WeightVersion that asks for a version from where it usually is."""
    source = fields.pop("source", {"path": WEIGHTS_PATH})
    fleet = fields.pop("fleet", "policy")
    spec = {"fleetRef": {"name": fleet}, "version": version, "source": source}
    given: dict[str, Any] = {
        "name": "policy",
        "namespace": "rl",
        "uid": "wv-1",
        "generation": 1,
        "created_at": NOW,
        "spec": WeightsSpec.model_validate(spec),
    }
    return WeightsView(**given | fields)


def make_fleet(
    *workers: WorkerBuilder,
    wants: str | WeightsView | Iterable[WeightsView] | None = None,
    status: FleetStatus | None = None,
    generation: int = 1,
    **spec: Any,
) -> FleetObserved:
    """A fleet with these workers, as many replicas as there are, and the WeightVersions it has."""
    spec.setdefault("replicas", len(workers))
    if wants is None:
        weights: tuple[WeightsView, ...] = ()
    elif isinstance(wants, str):
        weights = (make_weights(wants),)
    else:
        weights = (wants,) if isinstance(wants, WeightsView) else tuple(wants)
    observed = FleetObserved(
        name="policy",
        namespace="rl",
        uid=FLEET_UID,
        generation=generation,
        spec=make_spec(**spec),
        status=status or FleetStatus(),
        weights=weights,
        workers=tuple(w.view() for w in sorted(workers, key=lambda w: w.ordinal)),
    )
    return with_template(observed)


def build_pod(
    observed: FleetObserved, ordinal: int, default_image: str, *, revision: str
) -> dict[str, Any]:
    """The manifest of one worker, from the current template."""
    template = pods.template_of(observed, default_image)
    (pod,) = pods.pods_of(observed, template, [ordinal], revision=revision)
    return pod


def with_template(observed: FleetObserved) -> FleetObserved:
    """With the template of its spec recorded; without one if no pod can be made of it."""
    if overlay.problem_of(observed.spec.pod_overlay.read()):
        return replace(observed, template=None)
    template = pods.template_of(observed, IMAGE)
    made = RecordedTemplate(revision=revisions.revision_of(observed), pod=template, release="")
    return replace(observed, template=made)


def make_view(
    *workers: WorkerBuilder,
    wants: str = "42",
    applied: str = "41",
    halted: bool = False,
    suspended: bool = False,
    forbids_mixing: bool = True,
    replicas: int | None = None,
    phase: RolloutPhase = RolloutPhase.PENDING,
    phase_seconds: float = 0,
    rollout_seconds: float = 100,
    verdict: CanaryVerdict | None = None,
    trials: Sequence[Trial] = (),
    transition: Transition | None = None,
    **rollout: Any,
) -> RolloutView:
    """A rollout from one version to another, as a strategy sees it."""
    views = tuple(w.view() for w in workers)
    serve = {Standing.OPEN, Standing.HELD, Standing.UNKNOWN}
    return RolloutView(
        desired=target(wants),
        applied=target(applied),
        halted=halted,
        suspended=suspended,
        settings=Rollout.model_validate(rollout),
        members=tuple(v for v in views if v.standing in serve),
        joining=tuple(v for v in views if v.standing is Standing.CLOSED),
        forbids_mixing=forbids_mixing,
        replicas=len(workers) if replicas is None else replicas,
        phase=phase,
        phase_seconds=phase_seconds,
        rollout_seconds=rollout_seconds,
        verdict=verdict,
        trials=tuple(trials),
        workers=views,
        transition=transition,
    )


def make_transition(version: str = "42", base: str = "41", **fields: Any) -> Transition:
    """The record of a rollout under the strategy Synchronized."""
    given = target(version).record() | {"strategy": "Synchronized", "started_at": NOW} | fields
    return Transition(base=RecordedWeights(**target(base).record()), **given)


def make_condition(
    kind: ConditionType,
    *,
    is_true: bool = True,
    reason: ConditionReason = ConditionReason.ALL_WORKERS_SERVING,
    message: str = "",
    since: datetime = NOW,
) -> Condition:
    """A condition of generation 1."""
    return Condition(
        type=kind,
        status="True" if is_true else "False",
        reason=reason,
        message=message,
        observed_generation=1,
        last_transition_time=since,
    )


def fleet_at(version: str, **fields: Any) -> FleetStatus:
    """The status of a fleet that serves this version."""
    applied = AppliedWeights(version=version, source=target(version).source)
    return FleetStatus(applied=applied, **fields)


def applied_status(version: str, **fields: Any) -> WeightsStatus:
    """The status of a WeightVersion whose version every worker serves."""
    given: dict[str, Any] = {
        "observed_generation": 1,
        "desired_version": version,
        "applied_version": version,
        "phase": RolloutPhase.APPLIED,
        "started_at": NOW,
        "phase_started_at": NOW,
    }
    return WeightsStatus(**given | fields)


def history_of(*versions: str) -> tuple[HistoryEntry, ...]:
    """Rollouts that have ended, the last one first."""
    return tuple(
        HistoryEntry(version=v, result="Applied", started_at=NOW, total_seconds=1) for v in versions
    )


def work(text: str) -> Work:
    """The work of a call, from its text: `stage 42`, `fence` or `adapter sql 2`."""
    kind, *names = text.split()
    if kind == "remove-adapter":
        return Work(kind, adapter=names[0])
    version = names[-1] if names else None
    return Work(kind, version, adapter=names[0] if len(names) > 1 else None)


def call_for(asked: Work | str, uid: str = "") -> WorkerCall:
    """A call for a work, as `work` reads it, or for its text. `uid`: of its pod, by default of worker 0."""
    wanted = work(asked) if isinstance(asked, str) else asked
    kind = next(k for k in get_args(WorkerCall) if k.kind == wanted.kind)
    given: dict[str, Any] = {
        "pod_uid": uid or make_worker().pod_view().uid,
        "pod_name": "policy-0",
        "reason": "a test",
        "version": wanted.version or "",
        "run_id": wanted.run_id,
        "adapter": wanted.adapter,
        "source": WeightSource(path=path_of(wanted.version or "")),
        "timeout_seconds": 600.0,
        "mode": PauseMode.KEEP,
        "drain_timeout_seconds": 0.0,
        "lease_seconds": LEASE_SECONDS,
        "prompts": ("a prompt",),
        "max_tokens": 8,
        "compare_with": "base",
    }
    made: WorkerCall = kind(**{f.name: given[f.name] for f in fields(kind) if f.name in given})
    return made


def texts_of(actions: Iterable[Any]) -> list[str]:
    """Describe actions as `stage 42 on policy-0`, sorted."""

    def text(action: Any) -> str:
        if isinstance(action, WorkerAction):
            return f"{action.work} on {action.pod_name}"
        return f"{type(action).__name__} {action.pod_name}"

    return sorted(text(a) for a in actions)


def _failure(
    version: str, reason: Reason, age_seconds: float, message: str = "injected"
) -> Failure:
    return Failure(version=version, reason=reason, message=message, age_seconds=age_seconds)


def _pause(lease_seconds: float, seconds: float = 1) -> PauseState:
    return PauseState(
        mode=PauseMode.KEEP,
        holder="operator",
        paused_seconds=seconds,
        lease_remaining_seconds=lease_seconds,
    )

"""A worker's state as others read it: the state document, and gauges for Prometheus.

Both are computed on request, without a call to the engine, so they are never stale. vLLM's own gauges
freeze during a pause.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet_worker.errors import Fault
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.metrics import PREFIX
from fleet_worker.lifecycle.settling import copies_of
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.lora.refused import AdapterFault
from fleet_worker.protocol import (
    MAX_SERVED,
    AdapterFailure,
    Failure,
    Management,
    Operation,
    PeerState,
    Phase,
    TransferState,
    WorkerState,
)


def state_of(
    agent: Agent,
    *,
    worker: str,
    instance: str,
    pod_uid: str | None = None,
    started: float,
    management: Management = Management.OPERATOR,
    transfer: TransferState | None = None,
) -> WorkerState:
    """The state document of a worker.

    Args:
        agent: The worker.
        worker: Its name.
        instance: The name of this process.
        pod_uid: The uid of its pod; None outside a pod.
        started: The start of the process, on the agent's clock.
        management: Whether the operator or a trainer updates the weights.
        transfer: The state of transfers over a collective.
    """
    now = agent.clock()
    running, held = agent.requests()
    adapter_failures = tuple(_adapter_failure(f, now) for f in agent.lora.refused.faults)
    staged = agent.staging.staged
    trusted = agent.version is not None
    return WorkerState(
        worker=worker,
        pod_uid=pod_uid,
        instance=instance,
        uptime_seconds=now - started,
        phase=agent.phase,
        admitted=agent.is_open,
        version=agent.version,
        run_id=agent.good.run_id if trusted else None,
        source=agent.good.source if trusted else None,
        digest=agent.good.digest if trusted else None,
        remarks=agent.good.remarks if trusted else (),
        staged=staged.as_state(copies_of(agent, staged)) if staged is not None else None,
        operation=_operation(agent, now),
        limits_lag=agent.freshness.limits,
        requests_running=running,
        requests_held=held,
        sessions=agent.sessions.count,
        pause=agent.lease.as_state(now) if agent.lease is not None else None,
        lease_expiries=agent.lease_expiries,
        epoch=agent.epoch,
        management=management,
        stage_failure=next((_failure(f, now) for f in agent.refused_stages), None),
        earlier_stage_failures=tuple(_failure(f, now) for f in agent.refused_stages[1:]),
        load_failure=_failure(agent.load_failure, now) if agent.load_failure else None,
        timings=agent.timings,
        effect=agent.effect,
        probe=agent.canary_history.report,
        transfer=transfer,
        peers=_peers(agent),
        adapters=agent.adapters.states(),
        adapter_slots=agent.adapters.slots,
        adapter_failure=next(iter(adapter_failures), None),
        adapter_failures=adapter_failures,
        engine=agent.engine.info,
    )


def _peers(agent: Agent) -> PeerState | None:
    staging = agent.staging
    if staging.peers is None:
        return None
    return PeerState(
        port=staging.peers.port,
        serves=staging.peers.serves[-MAX_SERVED:],
        reads_from=staging.running.reads_from if staging.running is not None else None,
        refused=staging.refused_peers.all,
    )


def _operation(agent: Agent, now: float) -> Operation | None:
    """The current operation. Work that does not affect requests comes last."""
    if (work := agent.work) is not None:
        return Operation(
            kind=work.kind,
            version=work.version,
            run_id=work.run_id,
            running_seconds=now - work.started,
        )
    if (since := agent.not_idle_since) is not None:
        return Operation(kind="fence", running_seconds=now - since)
    if (stage := agent.staging.running) is not None:
        return Operation(
            kind="stage",
            version=stage.request.version,
            run_id=stage.request.run_id,
            running_seconds=now - stage.started,
        )
    if (adapter := agent.lora.preparing) is not None:
        return Operation(
            kind=adapter.kind,
            version=adapter.version,
            run_id=adapter.run_id,
            running_seconds=now - adapter.started,
        )
    return None


def _failure(fault: Fault, now: float) -> Failure:
    return Failure(
        version=fault.version,
        run_id=fault.run_id,
        reason=fault.reason,
        message=fault.message,
        age_seconds=now - fault.at,
        retry_after_seconds=fault.retry_after_seconds,
    )


def _adapter_failure(fault: AdapterFault, now: float) -> AdapterFailure:
    return AdapterFailure(name=fault.name, **dict(_failure(fault, now)))


class StateGauges(Collector):
    """The gauges of one worker; register it in the registry of its metrics."""

    def __init__(self, agent: Worker) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        """Return the gauges of this moment."""
        agent = self._agent
        phases = GaugeMetricFamily(
            PREFIX + "phase", "1 for the phase that the worker is in", labels=["phase"]
        )
        for phase in Phase:
            phases.add_metric([phase.value], float(agent.phase is phase))
        yield phases
        version = GaugeMetricFamily(
            PREFIX + "version_info",
            "1 for the weights in the engine; absent while they cannot be trusted",
            labels=["version", "run_id", "digest"],
        )
        if (weights := agent.name) is not None:
            named = [weights.version, weights.run_id or "", weights.digest or ""]
            version.add_metric(named, 1)
        yield version
        adapters = GaugeMetricFamily(
            PREFIX + "adapter_info",
            "1 for the served version of each LoRA adapter",
            labels=["adapter", "version"],
        )
        for adapter in agent.adapters.states():
            if adapter.version is not None:
                adapters.add_metric([adapter.name, adapter.version], 1)
        yield adapters
        changed = GaugeMetricFamily(
            PREFIX + "changed_share",
            "Share of the model's elements that the last load changed, at the served precision;"
            " absent before the first load and when the weights cannot be compared",
        )
        if (effect := agent.effect) is not None and effect.changed_share is not None:
            changed.add_metric([], effect.changed_share)
        yield changed
        lag = agent.freshness.lag_of(agent.version, agent.good.run_id)
        for name, text, value in (
            (
                "lag_versions",
                "Versions that were desired after the one in the engine",
                lag and lag.versions,
            ),
            (
                "lag_seconds",
                "The longest that a newer version may have been desired",
                lag and lag.seconds,
            ),
        ):
            gauge = GaugeMetricFamily(
                PREFIX + name, f"{text}; absent unless the operator names the desired versions"
            )
            if value is not None:
                gauge.add_metric([], value)
            yield gauge
        lease, slots = agent.lease, agent.adapters.slots
        gauges = (
            ("admitted", "Whether the latch is open", float(agent.is_open)),
            ("requests_held", "Requests that a pause holds", agent.requests()[1]),
            (
                "paused_seconds",
                "Seconds since the current pause began; 0 without a pause",
                agent.clock() - lease.since if lease is not None else 0,
            ),
            (
                "adapter_slots",
                "Slots for versions of LoRA adapters",
                slots.total if slots else 0,
            ),
            (
                "adapter_slots_used",
                "Slots with a version of a LoRA adapter",
                slots.used if slots else 0,
            ),
        )
        yield CounterMetricFamily(
            PREFIX + "lease_expiries",
            "Pauses that ended because their lease was not renewed",
            value=agent.lease_expiries,
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(PREFIX + name, text, value=float(value))

"""The state document: the whole state of a worker, built without a call to the engine."""

from __future__ import annotations

from fleet_worker.errors import Fault
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lora.calls import AdapterFault
from fleet_worker.protocol import (
    AdapterFailure,
    Failure,
    Management,
    Operation,
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
    staged = agent.staging.staged
    trusted = agent.version is not None
    return WorkerState(
        worker=worker,
        pod_uid=pod_uid,
        instance=instance,
        uptime_seconds=now - started,
        phase=agent.standing.phase,
        admitted=agent.standing.admitted,
        version=agent.version,
        run_id=agent.good.run_id if trusted else None,
        source=agent.good.source if trusted else None,
        digest=agent.good.digest if trusted else None,
        staged=staged.as_state() if staged is not None else None,
        operation=_operation(agent, now),
        requests_running=running,
        requests_held=held,
        pause=agent.lease.as_state(now) if agent.lease is not None else None,
        lease_expiries=agent.lease_expiries,
        epoch=agent.epoch,
        management=management,
        stage_failure=next((_failure(f, now) for f in agent.refused_stages), None),
        earlier_stage_failures=tuple(_failure(f, now) for f in agent.refused_stages[1:]),
        load_failure=_failure(agent.load_failure, now) if agent.load_failure else None,
        timings=agent.timings,
        effect=agent.effect,
        probe=agent.probes.report,
        transfer=transfer,
        adapters=agent.adapters.states(),
        adapter_slots=agent.adapters.slots,
        adapter_failure=_adapter_failure(agent.lora.failure, now),
        engine=agent.engine.info,
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
    if (since := agent.not_at_rest_since) is not None:
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
            kind="adapter", version=adapter.version, running_seconds=now - adapter.started
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


def _adapter_failure(fault: AdapterFault | None, now: float) -> AdapterFailure | None:
    if fault is None:
        return None
    return AdapterFailure(
        name=fault.name,
        version=fault.version,
        run_id=fault.run_id,
        reason=fault.reason,
        message=fault.message,
        age_seconds=now - fault.at,
    )

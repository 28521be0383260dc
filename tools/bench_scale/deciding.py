"""Measures one decision in each phase, with the states of fake workers.

The decisions are carried out on the workers, so that the views of the next phase are recorded and not
made up.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_scale.fakes import FakeFleet, standalone_address
from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.facts import Workers
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.worker_view import PodView, WorkerView
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_worker.protocol import Epoch

_AT_ONCE = 128
_MAX_STEPS = 40
_TRIES = 10


def measure(workers: int, *, repetitions: int, log: Path) -> list[dict[str, Any]]:
    """Roll one version out over a number of workers.

    Returns: a row for each decision that differs from the previous one: phase, number of calls, and the
    processor seconds of each repetition. Other work on the machine hardly changes those.
    """
    token = secrets.token_hex(16)
    with FakeFleet.standalone(workers, token, log=log) as fakes:
        return asyncio.run(_Recorded(fakes, workers, token).rows(repetitions))


class _Recorded:
    def __init__(self, fakes: FakeFleet, workers: int, token: str) -> None:
        self._workers = [
            Addressee(
                base_url=f"http://{standalone_address(n)}:{fakes.admin_port}",
                token=token,
                pod_uid=f"standalone-{n}",
            )
            for n in range(workers)
        ]
        self._number = {w.pod_uid: n for n, w in enumerate(self._workers)}
        self._observed = _fleet(workers)
        self._client: WorkerClient
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._sequence = 0

    async def rows(self, repetitions: int) -> list[dict[str, Any]]:
        self._client = WorkerClient()
        try:
            await self._until_applied("1", repetitions=1)  # the fleet comes up
            return await self._until_applied("2", repetitions=repetitions)
        finally:
            await self._client.close()

    async def _until_applied(self, version: str, *, repetitions: int) -> list[dict[str, Any]]:
        (weights,) = self._observed.weights
        spec = weights.spec.model_copy(update={"version": version})
        changed = replace(weights, spec=spec, generation=weights.generation + 1)
        self._observed = replace(self._observed, weights=(changed,))
        self._sequence += 1
        rows: list[dict[str, Any]] = []
        for _ in range(_MAX_STEPS):
            self._observed = replace(self._observed, workers=Workers(await self._views()))
            decision, seconds = _timed(self._observed, repetitions)
            (status,) = decision.weights.values()
            calls = list(decision.worker_calls)
            row = {"phase": str(status.phase), "calls": len(calls), "cpu_seconds": seconds}
            if not rows or _key(rows[-1]) != _key(row):
                rows.append(row)
            await self._carry_out(calls)
            self._take_over(decision)
            if status.phase == "Applied" and not calls:
                return rows
        raise RuntimeError(f"version {version} is not applied after {_MAX_STEPS} decisions")

    async def _views(self) -> tuple[WorkerView, ...]:
        async def ask(number: int, worker: Addressee) -> WorkerView:
            answer = await self._answer(lambda: self._client.state(worker))
            if answer.state is None:
                raise RuntimeError(f"{worker.base_url}: {answer.message}")
            pod = self._observed.workers[number].pod
            ready = answer.state.admitted
            return WorkerView(pod=replace(pod, ready=ready), state=answer.state)

        asked = (ask(n, w) for n, w in enumerate(self._workers))
        return tuple(await asyncio.gather(*asked))

    async def _carry_out(self, calls: Sequence[WorkerCall]) -> None:
        epoch = Epoch(term=1, sequence=self._sequence)

        async def call(action: WorkerCall) -> None:
            number = self._number[action.pod_uid]
            state = self._observed.workers[number].state
            instance = state.instance if state is not None else ""
            worker = replace(self._workers[number], instance=instance)
            answer = await self._answer(lambda: self._client.call(worker, action, epoch))
            if answer.silent or answer.reason is not None:
                raise RuntimeError(f"{action.work}: {answer.reason} {answer.message}")

        await asyncio.gather(*(call(action) for action in calls))

    async def _answer(self, ask: Callable[[], Awaitable[WorkerAnswer]]) -> WorkerAnswer:
        """Read a worker's answer. Tries again on a machine that is too busy for the timeout of a call."""
        async with self._limit:
            for _ in range(_TRIES):
                answer = await ask()
                if not answer.silent:
                    break
            return answer

    def _take_over(self, decision: Decision) -> None:
        weights = tuple(replace(w, status=decision.weights[w.uid]) for w in self._observed.weights)
        self._observed = replace(self._observed, status=decision.fleet, weights=weights)


def _timed(observed: FleetObserved, repetitions: int) -> tuple[Decision, list[float]]:
    """The decision, and the processor seconds of each repetition of it."""
    seconds = []
    for _ in range(repetitions):
        # As new answers would make them: nothing is counted yet.
        again = replace(observed, workers=Workers(map(replace, observed.workers)))
        began = time.thread_time()
        decision = decide(again, default_image="fake", now=datetime.now(UTC))
        seconds.append(time.thread_time() - began)
    if decision.defects:
        raise RuntimeError(f"the decision has defects: {decision.defects}")
    return decision, seconds


def _key(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["phase"], row["calls"]


def _fleet(workers: int) -> FleetObserved:
    spec = FleetSpec.model_validate(
        {
            "replicas": workers,
            "model": {"name": "m", "source": {"path": "/weights/base"}},
            "weights": {"roots": ["/weights"]},
        }
    )
    wanted = {"fleetRef": {"name": "policy"}, "version": "0"}
    weights = WeightsView(
        name="policy",
        namespace="bench",
        uid="weights",
        generation=1,
        created_at=datetime.now(UTC),
        spec=WeightsSpec.model_validate(wanted | {"source": {"path": "/weights/step_{version}"}}),
    )
    fleet = FleetObserved(
        name="policy", namespace="bench", uid="fleet", generation=1, spec=spec, weights=(weights,)
    )
    revision = revision_of(fleet)
    pods = (
        PodView(
            uid=f"standalone-{n}",
            name=f"policy-{n}",
            ordinal=n,
            revision=revision,
            ip=standalone_address(n),
            phase="Running",
            running=True,
            started=True,
            owner="fleet",
        )
        for n in range(workers)
    )
    return replace(fleet, workers=Workers([WorkerView(pod=pod) for pod in pods]))

"""The fake workers of the benchmark of scale, asked by the operator's own client.

They follow the rules of the simulator's fake worker, which the model's promises are tested with.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.model.fake_worker import FakeWorker
from tests.support.builders import path_of
from tests.support.present import present
from tests.support.waiting import eventually_async

from bench_scale.fakes import FakeFleet, dead_among, standalone_address
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.core import actions
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_worker.protocol import Epoch, PauseMode, Phase, Reason
from rlfleet_resources.source import WeightSource

pytestmark = pytest.mark.timeout(1500)  # the program may have to be built first

TOKEN = secrets.token_hex(16)
WORKERS = 100
LEASE_SECONDS = 30.0
SLOW_MS = 50_000
LONG = {"timeout_seconds": 60.0}
ADDRESSED: dict[str, Any] = {
    "pod_uid": "standalone-1",
    "pod_name": "standalone-1",
    "reason": "a test",
}
NOW = Epoch(term=2, sequence=7)


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[FakeFleet]:
    with FakeFleet.standalone(WORKERS, TOKEN, log=tmp_path / "fakes.log") as started:
        yield started


@pytest.fixture
async def client() -> AsyncIterator[WorkerClient]:
    made = WorkerClient()
    yield made
    await made.close()


def addressee(fakes: FakeFleet, number: int, *, token: str = TOKEN, **changed: str) -> Addressee:
    url = f"http://{standalone_address(number)}:{fakes.admin_port}"
    named = {"pod_uid": f"standalone-{number}"} | changed
    return Addressee(base_url=url, token=token, **named)


def stage(version: str, **changed: Any) -> actions.Stage:
    source = WeightSource(path=path_of(version))
    return actions.Stage(version=version, source=source, **LONG, **(ADDRESSED | changed))


def pause(mode: PauseMode = PauseMode.KEEP, lease_seconds: float = LEASE_SECONDS) -> actions.Pause:
    return actions.Pause(
        mode=mode, drain_timeout_seconds=5, lease_seconds=lease_seconds, **ADDRESSED
    )


def load(version: str, *, run_id: str | None = None) -> actions.Load:
    return actions.Load(version=version, run_id=run_id, **LONG, **ADDRESSED)


def apply(version: str, *, run_id: str | None = None) -> actions.Apply:
    return actions.Apply(
        version=version,
        run_id=run_id,
        mode=PauseMode.KEEP,
        drain_timeout_seconds=5,
        lease_seconds=LEASE_SECONDS,
        **LONG,
        **ADDRESSED,
    )


def resume(version: str, *, run_id: str | None = None) -> actions.Resume:
    return actions.Resume(version=version, run_id=run_id, **ADDRESSED)


def admit(version: str, *, run_id: str | None = None) -> actions.Admit:
    return actions.Admit(version=version, run_id=run_id, **ADDRESSED)


def probe(version: str, *, run_id: str | None = None) -> actions.CanaryPrompts:
    return actions.CanaryPrompts(
        version=version,
        run_id=run_id,
        prompts=("a prompt",),
        max_tokens=8,
        compare_with="base",
        **LONG,
        **ADDRESSED,
    )


def fence() -> actions.Fence:
    return actions.Fence(drain_timeout_seconds=0, **ADDRESSED)


def facts(answer: WorkerAnswer) -> dict[str, Any]:
    state = present(answer.state)
    return {
        "reason": answer.reason,
        "phase": state.phase,
        "admitted": state.admitted,
        "version": (state.version, state.run_id),
        "staged": (state.staged.version, state.staged.run_id) if state.staged else None,
        "probe": state.probe
        and (state.probe.version, state.probe.run_id, state.probe.compared_with),
        "paused": state.pause is not None,
        "has_loaded": state.phase is Phase.PAUSED
        and bool(state.timings and state.timings.load_seconds),
        "epoch": state.epoch,
    }


async def answer_alike(
    client: WorkerClient,
    worker: Addressee,
    model: FakeWorker,
    action: actions.WorkerCall,
    epoch: Epoch,
    *log: str,
) -> None:
    """Both get a call, and answer with the same facts."""
    ticket = model.take(action.to_request(epoch), 0)
    expected = facts(WorkerAnswer(state=model.state(0), reason=ticket.reason))
    assert facts(await client.call(worker, action, epoch)) == expected, "\n".join(
        [*log, str(action)]
    )
    if expected["reason"] is None:
        assert facts(await client.state(worker)) == expected


@pytest.mark.parametrize("seed", range(3))
async def test_the_fake_fleet_answers_as_the_fake_workers_of_the_simulator(
    fakes: FakeFleet, client: WorkerClient, seed: int
) -> None:
    worker, model = addressee(fakes, 1), FakeWorker("standalone-1", 1, "r", 0, start_seconds=0)
    model.tick(0)
    chance = random.Random(seed)  # noqa: S311 - a seed to repeat
    log = [f"seed {seed}"]
    for sequence in range(200):
        version, run_id = chance.choice("123"), chance.choice([None, "run-a", "run-b"])
        known = [(model.staged, model.staged_run_id), (model.label, model.run_id)]
        if chance.random() < 0.7 and (named := [n for n in known if n[0]]):
            version, run_id = chance.choice(named)
        made = chance.choice([stage, load, apply, resume, admit])(version, run_id=run_id)
        action = chance.choice([made, made, made, pause(), fence(), probe(version, run_id=run_id)])
        log.append(str(action.work))
        late = chance.random() < 0.1
        epoch = Epoch(term=1, sequence=max(0, sequence - 9 * late))
        await answer_alike(client, worker, model, action, epoch, *log)


async def test_calls_that_are_not_for_them_are_refused(
    fakes: FakeFleet, client: WorkerClient
) -> None:
    stranger = await client.state(addressee(fakes, 2, token="another"))
    assert (stranger.silent, stranger.reason) == (True, Reason.UNAUTHORIZED)

    other_pod = await client.state(addressee(fakes, 2, pod_uid="another"))
    assert other_pod.silent
    assert "another pod" in other_pod.message

    call = stage("1", pod_uid="standalone-2")
    earlier = await client.call(addressee(fakes, 2, instance="an earlier one"), call, NOW)
    assert earlier.reason is Reason.STALE_CALL


async def test_dead_workers_reset_connections_and_restart_and_slow_ones_take_their_time(
    fakes: FakeFleet, client: WorkerClient
) -> None:
    addressees = [addressee(fakes, n) for n in range(WORKERS)]
    # No machine is so slow that the others take as long.
    fakes.set_faults(dead_percent=2, slow_percent=1, slow_ms=SLOW_MS)
    dead: list[int] = []

    async def only_dead_ones_are_silent() -> bool:
        answers = await asyncio.gather(*(client.state(w) for w in addressees))
        dead[:] = [n for n, answer in enumerate(answers) if answer.silent]
        return len(dead) == dead_among(WORKERS, 2) == 2

    await eventually_async(only_dead_ones_are_silent, within_seconds=30)

    slow: list[int] = []
    epoch = Epoch(term=9, sequence=0)
    calls = {
        n: asyncio.ensure_future(client.call(worker, stage("6"), epoch))
        for n, worker in enumerate(addressees)
        if n not in dead
    }

    async def only_slow_ones_are_left() -> bool:
        slow[:] = [n for n, call in calls.items() if not call.done()]
        return len(slow) == 1

    await eventually_async(only_slow_ones_are_left, within_seconds=30)
    state = present((await client.state(addressees[slow[0]])).state)
    assert present(state.operation).kind == "stage"
    calls.pop(slow[0]).cancel()
    answers = await asyncio.gather(*calls.values())
    assert {a.state.staged.version for a in answers if a.state and a.state.staged} == {"6"}

    fakes.set_faults(dead_percent=2, slow_percent=1, slow_ms=500)
    began = asyncio.get_running_loop().time()
    state = (await client.call(addressees[slow[0]], stage("7"), epoch)).state
    assert asyncio.get_running_loop().time() - began >= 0.5
    assert state is not None
    assert present(state.staged).version == "7"

    fakes.set_faults()
    back = [(await client.state(addressees[n])).state for n in dead]
    assert {(s.phase, s.version, s.instance.endswith("-1")) for s in back} == {
        ("joining", "base", True)
    }


async def test_a_pause_that_is_not_renewed_ends_by_itself(
    fakes: FakeFleet, client: WorkerClient
) -> None:
    worker, epoch = addressee(fakes, 3), Epoch(term=1, sequence=1)
    await client.call(worker, admit("base"), epoch)
    paused = await client.call(worker, pause(lease_seconds=1), epoch)
    assert present(paused.state).phase == "paused"

    async def serves() -> bool:
        state = (await client.state(worker)).state
        return state is not None and state.phase == "serving"

    await eventually_async(serves)


async def test_the_calls_that_workers_received_are_counted_by_version(
    fakes: FakeFleet, client: WorkerClient
) -> None:
    many, epoch = [addressee(fakes, n) for n in range(20, 30)], Epoch(term=1, sequence=1)
    for action in (stage("77"), load("77"), admit("77")):
        await asyncio.gather(*(client.call(worker, action, epoch) for worker in many))

    seen = await asyncio.to_thread(fakes.wait, "77", len(many), seconds=30)
    assert seen.serving == len(many)
    counts = {kind: count for kind, (_, _, count) in seen.marks.items()}
    assert counts == {"stage": 10, "load": 10, "admit": 10}
    staged, loaded, admitted = (seen.marks[kind] for kind in ("stage", "load", "admit"))
    assert staged[0] <= staged[1] <= loaded[0] <= loaded[1] <= admitted[0] <= admitted[1]
    assert admitted[0] <= seen.served_at <= admitted[1]
    with pytest.raises(TimeoutError, match="10 of 11 workers"):
        fakes.wait("77", len(many) + 1, seconds=0.01)


def test_each_has_an_address_of_its_own_of_the_loopback_network() -> None:
    found = {standalone_address(n) for n in range(70_000)}
    assert len(found) == 70_000
    assert all(address.startswith("127.") for address in found)


def test_the_log_of_a_program_that_does_not_start_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such file"):
        FakeFleet.of_namespace(tmp_path / "none", "rl", log=tmp_path / "log", port=0)

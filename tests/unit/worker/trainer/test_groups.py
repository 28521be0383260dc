"""Each process group that a worker joins is a run of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import touched
from tests.support.worker_harness import (
    HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    refused,
    start_worker,
)

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.protocol import PauseMode, Phase, Reason
from fleet_worker.provenance.demands import demand_of
from fleet_worker.trainer.transfers import TransferRoom

ON = TransferRoom("own")
GROUP = re.compile(r"group-[0-9a-f]{12}")


@dataclass
class Sender:
    """A trainer that sends weights over a collective to one worker."""

    harness: WorkerHarness
    trainer: TrainerHarness

    @classmethod
    def of(cls, harness: WorkerHarness) -> Sender:
        return cls(harness, TrainerHarness.of(harness, room=ON))

    async def join(self, join_id: str | None = None) -> str:
        return await self.trainer.collective.join_transfer(HOLDER, {}, join_id)

    async def send(self, version: str | None, weights: str = "") -> WeightName:
        """Send weights, by default others than ever before. Returns: their name in replies."""
        collective = self.trainer.collective
        await collective.begin_transfer(HOLDER)
        sent = weights or f"sent as number {len(self.harness.engine.calls)}"
        await collective.receive(HOLDER, {"weights": sent})
        done = await collective.end_transfer(HOLDER, version)
        name = self.harness.agent.name
        assert name is not None
        assert (name.version, name.run_id) == (done.version, done.run_id)
        assert (self.harness.state.phase, self.harness.state.run_id) == (Phase.SERVING, name.run_id)
        return name


async def test_a_trainer_that_resumes_and_sends_a_version_again_gives_it_another_name(
    serving: WorkerHarness,
) -> None:
    """It resumes from step 40, joins again, and trains step 41 again."""
    sender = Sender.of(serving)
    first = await sender.join()
    await sender.send("40")
    before = await sender.send("41")
    label = serving.engine.raw_label
    await sender.trainer.collective.leave_transfer(HOLDER)
    second = await sender.join()
    after = await sender.send("41")

    assert GROUP.fullmatch(first)
    assert GROUP.fullmatch(second)
    assert (before, after) == (WeightName("41", first), WeightName("41", second))
    assert before != after
    assert serving.engine.raw_label != label, "vLLM would join their tokens to one span"
    assert serving.ended == []


async def test_two_processes_of_a_pod_join_two_groups(
    serving: WorkerHarness, joining: WorkerHarness
) -> None:
    runs = [await Sender.of(harness).join() for harness in (serving, joining)]

    assert len(set(runs)) == 2


@pytest.mark.parametrize(
    ("of_engine", "of_caller", "agree"),
    [
        ("drawn by NCCL", None, True),
        ("drawn by NCCL", "one for each worker", True),
        (None, "of the control root", True),
        (None, None, False),
    ],
)
async def test_workers_that_join_one_group_agree_on_its_run(
    serving: WorkerHarness,
    tmp_path_factory: pytest.TempPathFactory,
    of_engine: str | None,
    of_caller: str | None,
    agree: bool,
) -> None:
    """By what NCCL draws for each group, or by what the control root sends to all workers."""
    async with start_worker(tmp_path_factory.mktemp("another")) as another:
        runs = []
        for number, harness in enumerate((serving, another)):
            harness.engine.group = of_engine
            each = of_caller and of_caller.replace("each", str(number))
            runs.append(await Sender.of(harness).join(each))

    assert (runs[0] == runs[1]) is agree


async def test_the_state_shows_the_run_of_the_joined_group(serving: WorkerHarness) -> None:
    sender = Sender.of(serving)
    run = await sender.join()
    joined = sender.trainer.transfers.state
    await sender.trainer.collective.leave_transfer(HOLDER)
    left = sender.trainer.transfers.state

    assert joined is not None
    assert left is not None
    assert (joined.run_id, left.run_id, left.connected) == (run, None, False)


async def test_a_demand_names_the_run_of_a_group(serving: WorkerHarness) -> None:
    sender = Sender.of(serving)
    run = await sender.join()
    first = await sender.send("41")
    await sender.join()
    again = await sender.send("41")

    assert demand_of("41", None, run).is_met_by(first)
    assert not demand_of("41", None, run).is_met_by(again)
    assert demand_of("41", None).is_met_by(again), "without a run it gets what was sent last"
    assert not demand_of(None, "3").bound_to(first, by_scope=True).is_met_by(again)


@pytest.mark.parametrize("known", [True, False], ids=["by all values", "not all values are known"])
async def test_a_version_that_comes_again_in_its_group_never_names_two_sets_of_weights(
    serving: WorkerHarness, known: bool
) -> None:
    """A trainer repeats an update that has failed at another worker, or goes back without joining."""
    serving.engine.values_known = known
    sender = Sender.of(serving)
    run = await sender.join()
    first = await sender.send("41", "one")
    same = await sender.send("41", "one")
    other = await sender.send("41", "two")
    next_one = await sender.send("42", "three")

    assert first == WeightName("41", run)
    assert (same == first) is known, "other weights may have an incomplete checksum, too"
    assert other.run_id == (f"{run}.2" if known else f"{run}.3")
    assert next_one == WeightName("42", run)


async def test_an_update_without_a_name_gets_another_run_if_its_checksum_may_be_that_of_others(
    serving: WorkerHarness,
) -> None:
    serving.engine.values_known = False
    sender = Sender.of(serving)
    await sender.join()
    one, two = await sender.send(None), await sender.send(None)

    assert one.version == two.version
    assert one != two


async def test_received_weights_are_named_again_in_a_run_in_which_the_name_is_free(
    serving: WorkerHarness,
) -> None:
    sender = Sender.of(serving)
    run = await sender.join()
    await sender.send("41")
    await sender.trainer.seat.pause(HOLDER, PauseMode.KEEP)
    collective = sender.trainer.collective
    await collective.begin_transfer(HOLDER)
    await collective.receive(HOLDER, {"weights": "others"})
    await collective.end_transfer(HOLDER, None)
    await sender.trainer.files.name_version(HOLDER, "41")
    assert serving.agent.name == WeightName("41", f"{run}.2")
    await sender.trainer.files.name_version(HOLDER, "43")

    assert serving.agent.name == WeightName("43", run)


async def test_a_checksum_that_fails_breaks_no_update_that_has_a_name(
    serving: WorkerHarness,
) -> None:
    serving.engine.failures["checksum"] = [touched()]
    sender = Sender.of(serving)
    run = await sender.join()

    assert await sender.send("41") == WeightName("41", run)


async def test_an_update_that_began_in_another_group_is_begun_again(serving: WorkerHarness) -> None:
    """The trainer has ended in the middle of an update. Parts of two runs would have one name."""
    sender = Sender.of(serving)
    collective = sender.trainer.collective
    await sender.join()
    await collective.begin_transfer(HOLDER)
    run = await sender.join()
    for call in (collective.receive(HOLDER, {}), collective.end_transfer(HOLDER, "41")):
        assert (await refused(call)).reason is Reason.WRONG_PHASE

    assert await sender.send("41") == WeightName("41", run)
    assert serving.ended == []


async def test_an_invalid_name_is_refused_at_the_start_and_the_engine_is_not_touched(
    transfer_port: TrainerPort, serving: WorkerHarness
) -> None:
    joined: dict[str, Any] = {"init_info": {"world_size": 2}}
    assert (await transfer_port.post("/init_weight_transfer_engine", **joined))[0] == 200
    calls = list(serving.engine.calls)
    bad = {"weight_version": "no name"}
    status, _ = await transfer_port.post("/start_weight_update", **bad)
    step = {"engine_rpc": "start_weight_update", "allow_unpaused": True}
    by_dynamo = {**step, "reset_prefix_cache": False, **bad}
    _, reply = await transfer_port.post("/engine/update_weights_from_distributed", **by_dynamo)

    assert (status, reply["reason"]) == (400, "BadRequest")
    assert (serving.engine.calls, serving.state.phase) == (calls, Phase.SERVING)


async def test_an_invalid_name_at_the_end_leaves_the_update_open_for_another_one(
    serving: WorkerHarness,
) -> None:
    sender = Sender.of(serving)
    collective = sender.trainer.collective
    run = await sender.join()
    await collective.begin_transfer(HOLDER)
    assert (await refused(collective.end_transfer(HOLDER, "no name"))).reason is Reason.BAD_REQUEST
    await collective.end_transfer(HOLDER, "41")

    assert serving.agent.name == WeightName("41", run)


async def test_a_join_that_fails_leaves_no_run(serving: WorkerHarness) -> None:
    sender = Sender.of(serving)
    await sender.join()
    serving.engine.failures["join_transfer"] = [touched()]
    await failing(sender.join())

    state = sender.trainer.transfers.state
    assert state is not None
    assert (state.run_id, state.connected) == (None, False)


JOINS = [
    ("/init_weight_transfer_engine", {"init_info": {"world_size": 2}}),
    ("/init_broadcaster", {"host": "h", "port": 1, "rank_offset": 0, "inference_world_size": 1}),
    ("/engine/init_weights_update_group", {"init_info": {"world_size": 2}}),
    ("/engine/update/init_weight_transfer_engine", {"init_info": {"world_size": 2}}),
]


@pytest.mark.parametrize(("path", "body"), JOINS, ids=[path for path, _ in JOINS])
async def test_the_answers_of_each_dialect_name_the_run(
    transfer_port: TrainerPort, serving: WorkerHarness, path: str, body: dict[str, Any]
) -> None:
    joins = [await transfer_port.post(path, **body, join_id=f"of join {n}") for n in (1, 2, 2)]
    (_, first), (_, second), (_, repeated) = joins
    begin, end = "/start_weight_update", "/finish_weight_update"
    assert (await transfer_port.post(begin))[0] == 200
    _, finished = await transfer_port.post(end, weight_version="41")

    assert first["run_id"] != second["run_id"] == finished["run_id"]
    assert "BadRequest" in str(repeated), "a text of an earlier group names no other group"
    assert finished["weight_version"] == "41"
    assert len(passed := [c for c in serving.engine.calls if c.startswith("join_transfer")]) == 2
    assert "join_id" not in str(passed), "the engine does not know it"

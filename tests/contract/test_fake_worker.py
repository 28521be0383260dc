"""The fake worker of the simulator and of the cluster's tests follows the rules of the real one.

Random calls go to both, over the wire's own format. After each of them both must answer alike, and
report the same state.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.model.fake_worker import FakeWorker
from tests.support.worker_pair import NOT_COMPARED, Pair

from fleet_worker import protocol
from fleet_worker.protocol import Phase, Request, WorkerState

STEPS = 60
SEEDS = [*range(10), *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 200))]
VERSIONS, RUNS = ("1", "2", "3"), (None, "run-a", "run-b")
WRONG_DIGEST = f"sha256:{'0' * 64}"
CALLS: list[tuple[int, type[Request]]] = [
    (6, protocol.StageRequest),
    (4, protocol.PauseRequest),
    (4, protocol.LoadRequest),
    (3, protocol.ApplyRequest),
    (4, protocol.ResumeRequest),
    (4, protocol.AdmitRequest),
    (1, protocol.FenceRequest),
    (1, protocol.PromptsRequest),
    (1, protocol.WantedRequest),
    (5, protocol.AdapterRequest),
    (1, protocol.AdapterRemoval),
]

Field = tuple[type[Request], str]

IGNORED: dict[Field, str] = {
    (protocol.FenceRequest, "reason"): "for the log of the worker",
    (protocol.StageRequest, "peers"): "the games with peers have readers of their own",
    (protocol.PromptsRequest, "prompts"): "the fake has no engine that samples",
    (protocol.PromptsRequest, "max_tokens"): "as above",
    (protocol.WantedRequest, "complete"): "the fake refuses no requests",
}
"""Fields of requests → why the fake does not use them."""


class Play:
    """One random play."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.chance = random.Random(seed)  # noqa: S311 - a seed to repeat
        self.sequence = 1
        self.log: list[str] = []
        self.outcomes: Counter[tuple[str, str | None]] = Counter()

    async def step(self) -> None:
        """One call, or something that happens between two calls."""
        await self.chance.choices(
            [self.call, self.time, self.files, self.hold, self.let_go], [30, 4, 4, 1, 3]
        )[0]()
        self.must_be_alike(self.pair.differences())

    async def call(self) -> None:
        kind = self.chance.choices([k for _, k in CALLS], [n for n, _ in CALLS])[0]
        adapter = (
            self.chance.choice(["lora-a", "lora-b", "lora-c"]) if "Adapter" in kind.__name__ else ""
        )
        if adapter and any(adapter in described for described, *_ in self.pair.pending):
            return  # the fake does not know which calls about an adapter supersede others
        body = self.body(kind, adapter)
        self.log.append(f"{kind.__name__} {adapter} {body}")
        fails = self.chance.random() < 0.1
        what = "add_adapter" if adapter else "load"
        with self.pair.failing_engine(what if fails else ""):
            answers = await self.pair.call(kind, body, adapter=adapter)
        if answers is not None:
            real, fake = answers
            self.outcomes[kind.__name__, real.reason] += 1
            self.must_be_alike(real.differences(fake))

    async def time(self) -> None:
        seconds = self.chance.choice([0.5, 4.0, 31.0])
        self.log.append(f"{seconds} s pass")
        await self.pair.advance(seconds)

    async def files(self) -> None:
        path = self.pair.path(self.chance.choice(["step_1", "step_2", "lora_1"]))
        what = self.chance.choice(
            [self.pair.rewrite, self.pair.rewrite, self.pair.remove, self.pair.damage]
        )
        self.log.append(f"{what.__name__} {path}")
        what(path)

    async def hold(self) -> None:
        self.log.append("loads do not end")
        await self.pair.hold_loads()

    async def let_go(self) -> None:
        self.log.append("what is held ends")
        for described, real, fake in await self.pair.let_go():
            self.log.append(f"{described} has ended")
            assert (real.status, real.reason) == (fake.status, fake.reason), "\n".join(self.log)

    def must_be_alike(self, differences: dict[str, tuple[Any, Any]]) -> None:
        said = "\n".join(f"{name}: real {r}, fake {f}" for name, (r, f) in differences.items())
        assert not differences, "\n".join([*self.log, said])

    def body(self, kind: type[Request], adapter: str) -> dict[str, Any]:
        """A body for each field of a request, with the names that both know as often as not."""
        chance, fake = self.chance, self.pair.fake
        version, run_id = chance.choice(VERSIONS), chance.choice(RUNS)
        held = ((fake.staged, fake.staged_run_id), (fake.label, fake.run_id))
        known = [(name, run) for name, run in held if name is not None]
        if known and chance.random() < 0.7:
            version, run_id = chance.choice(known)
            run_id = chance.choice([run_id, run_id, run_id, None])
        folder = f"lora_{version}" if adapter else f"step_{version}"
        own = version == "base" and not adapter
        path = fake.start_source if own else self.pair.path(folder)
        digest: Any = None
        if chance.random() < 0.4 and version != "base" and path not in fake.files.absent:
            digest = self.pair.digest(folder)
        if chance.random() < 0.05:
            digest = WRONG_DIGEST
        self.sequence += chance.random() < 0.1
        sequence = self.sequence - (chance.random() < 0.05)
        given: dict[str, Any] = {
            "version": version,
            "run_id": run_id,
            "digest": digest,
            "peers": (),
            "source": {"path": path},
            "mode": chance.choice(["keep", "abort", "wait"]),
            "drain_timeout_seconds": chance.choice([0, 0, 5]),
            "lease_seconds": chance.choice([5, 30]),
            "holder": chance.choice(["operator"] * 9 + ["trainer"]),
            "reason": "a test",
            "prompts": ["x"],
            "max_tokens": 4,
            "compare_with": chance.choice(["base", *VERSIONS]),
            "compare_with_run_id": chance.choice(RUNS),
            "compare_with_digest": None,
            "stage_only": chance.random() < 0.5,
            "epoch": {"term": 1, "sequence": sequence},
            "wanted": chance.choice([[], [{"version": version, "seconds": 1.0}]]),
            "complete": True,
            "max_versions": chance.choice([None, 1]),
            "max_seconds": chance.choice([None, 60]),
            "term": chance.choice([1, 1, 1, 0]),
        }
        return {name: given[name] for name in kind.model_fields if given[name] is not None}


async def play(pair: Pair, seed: int) -> None:
    """Play a random history."""
    its = Play(pair, seed)
    for _ in range(STEPS):
        await its.step()
        if pair.fake.phase is Phase.DRAINING or pair.harness.ended:
            break
    await its.let_go()


def drain_of_a_client() -> None:
    """Swaps that wait for a client: the engine of the real worker in these plays has none."""
    drains = {"mode": "wait", "drain_timeout_seconds": 1, "lease_seconds": 30}
    epoch = {"term": 1, "sequence": 1}
    for kind in (protocol.PauseRequest, protocol.ApplyRequest):
        fake = FakeWorker("uid-0", 0, "r", 0, start_seconds=0)
        fake.tick(0)
        fake.staged, fake.staged_weights, fake.staged_source = "2", "2", "/weights/step_2"
        fake.serve()
        fake.tick(1)
        named = {"version": "2"} if kind is protocol.ApplyRequest else {}
        fake.take(kind.model_validate(drains | named | {"epoch": epoch}), 1)
        fake.tick(1.5)
        assert fake.phase is Phase.PAUSING
        fake.tick(2)
        assert fake.phase is not Phase.PAUSING


def _subclasses(kind: type[Request]) -> Iterator[type[Request]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


@pytest.fixture
def read_by_fake(monkeypatch: pytest.MonkeyPatch) -> set[Field]:
    """The fields of requests that the fake worker reads."""
    found: set[Field] = set()
    at_work: list[str] = []

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            at_work.append(method.__name__)
            try:
                return method(*args, **named)
            finally:
                at_work.pop()

        return wrapped

    def get(request: Request, name: str) -> Any:
        if at_work and name in type(request).model_fields:
            found.add((type(request), name))
        return object.__getattribute__(request, name)

    for method in (FakeWorker.take, FakeWorker.tick, FakeWorker.hear):
        monkeypatch.setattr(FakeWorker, method.__name__, noted(method))
    monkeypatch.setattr(Request, "__getattribute__", get, raising=False)
    return found


async def test_the_fake_worker_uses_every_field_of_every_request_or_ignores_it_for_a_reason(
    tmp_path: Path, read_by_fake: set[Field]
) -> None:
    fields = {(kind, name) for _, kind in CALLS for name in kind.model_fields}
    for seed in range(10):
        async with Pair.start(tmp_path / str(seed)) as pair:
            await play(pair, seed)
    drain_of_a_client()

    assert read_by_fake | IGNORED.keys() == fields
    assert not read_by_fake & IGNORED.keys()


def test_every_request_of_the_operator_is_played() -> None:
    kinds = {kind for kind in _subclasses(Request) if "path" in kind.__dict__}

    assert {kind for _, kind in CALLS} == kinds


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_fake_worker_answers_as_the_real_one(seed: int, tmp_path: Path) -> None:
    async with Pair.start(tmp_path) as pair:
        await play(pair, seed)


def test_every_field_of_a_state_is_compared_or_has_a_reason() -> None:
    compared = {
        *("phase", "admitted", "version", "run_id", "lease_expiries", "epoch", "digest", "source"),
        *("staged", "operation", "pause", "stage_failure", "load_failure", "adapter_failures"),
        *("timings", "probe", "adapters", "limits_lag"),
    }

    assert compared | NOT_COMPARED.keys() == WorkerState.model_fields.keys()
    assert not compared & NOT_COMPARED.keys()

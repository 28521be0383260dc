"""The real agent and the fake worker of the simulator, side by side: each gets the same calls.

Both are behind the real worker's admin API, so a call is what comes over the wire, and an answer is what
the operator reads. The real agent has a fake engine and real files.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.model.fake_agent import FakeAgent
from tests.model.fake_requests import FakeRequests
from tests.model.fake_state import digest_of
from tests.model.fake_worker import FakeWorker
from tests.support.damage import WEIGHTS
from tests.support.fake_engine import touched
from tests.support.lora_harness import LoraHarness
from tests.support.tiny import TinyInspector, write_tiny
from tests.support.worker_harness import WorkerHarness, start_worker

from fleet_worker.admin.api import Api, Call
from fleet_worker.admin.operator import operator_api
from fleet_worker.errors import EngineFailure, Refusal, status_of
from fleet_worker.protocol import (
    ApplyRequest,
    ErrorReply,
    Failure,
    LoadRequest,
    Phase,
    Request,
    WorkerState,
)
from rlfleet_resources import weight_files

SLOTS = 2
ANSWER_SECONDS = 10.0
QUIET_SECONDS = 0.05
"""A call of the real agent that has not ended by then waits for something."""
HELD_SECONDS = 1e6
NOT_COMPARED = {
    "worker": "the name of a pod",
    "pod_uid": "the uid of a pod",
    "instance": "made for each process",
    "uptime_seconds": "an age of the process",
    "requests_running": "the fake has one client, and no engine that counts",
    "requests_held": "as above",
    "sessions": "set by the simulator",
    "management": "of the template; no call changes it",
    "protocol": "of the release",
    "effect": "of a model; promise 13 has an own fake of it",
    "remarks": "of a checkpoint; as above",
    "transfer": "a trainer's, not the operator's",
    "peers": "of a worker with a peer port; the games with peers have readers of their own",
    "engine": "of the image",
    "earlier_stage_failures": "compared with stage_failure",
    "adapter_failure": "the first of adapter_failures",
    "adapter_slots": "its number, see `SLOTS`",
}
"""Fields of a state → why the fake may differ."""


class NoRequests(FakeRequests):
    """No client sends anything: the fake engine of the real agent has no requests of its own."""

    def generate(self, seconds: float) -> None:
        """Nothing happens in this time."""


class Digest(NamedTuple):
    """The digest of one set of files. The fake digests the names of contents."""

    real: str
    fake: str


@dataclass(frozen=True)
class Answered:
    """An answer: its status, the reason of a refusal, and the facts of the state."""

    status: int
    reason: str | None
    facts: dict[str, Any]

    def differences(self, fake: Answered) -> dict[str, tuple[Any, Any]]:
        """The differences in the answer of the fake: the real one, and that of the fake."""
        ours = self.facts | {"status": self.status, "reason": self.reason}
        theirs = fake.facts | {"status": fake.status, "reason": fake.reason}
        return {k: (v, theirs[k]) for k, v in ours.items() if v != theirs[k]}


@dataclass
class Pair:
    """Fields:

    pending: calls that both have not answered yet.
    loads_held: whether loads of both engines do not end for now.
    """

    harness: WorkerHarness
    lora: LoraHarness
    fake: FakeWorker
    agent: FakeAgent
    real_api: Api
    inspector: TinyInspector
    pending: list[tuple[str, asyncio.Task[Answered], asyncio.Task[Answered]]] = field(
        default_factory=list
    )
    digests: dict[str, str] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    written: int = 0

    @property
    def now(self) -> float:
        return self.harness.clock()

    # --- files ------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """A directory of the shared store, written when it is named first."""
        path = self.harness.root / "weights" / name
        if not path.exists() and str(path) not in self.fake.files.absent:
            self._write(path)
        return str(path)

    def rewrite(self, path: str) -> None:
        """Other files take the place of those under a path."""
        files = self.fake.files
        files.rewritten[path] = f"{files.at(path)}~rewritten"
        self.fake.bad_sources.discard(path)
        files.absent.discard(path)
        self._write(Path(path))

    def remove(self, path: str) -> None:
        """The directory is gone."""
        shutil.rmtree(path, ignore_errors=True)
        self.fake.bad_sources.discard(path)
        self.fake.files.absent.add(path)

    def damage(self, path: str) -> None:
        """The last bytes of the weights are missing."""
        if path in self.fake.files.absent:
            return
        for file in (Path(path, WEIGHTS), Path(path, "adapter_model.safetensors")):
            if file.exists():
                shorter = file.with_suffix(".shorter")
                shorter.write_bytes(file.read_bytes()[:-1])
                self._age(shorter)
                shorter.replace(file)
        self.fake.bad_sources.add(path)

    def _write(self, path: Path) -> None:
        contents = self.fake.files.at(str(path))
        value = self.values.setdefault(contents, len(self.values) + 1)
        shutil.rmtree(path, ignore_errors=True)
        if path.name.startswith("lora"):
            self.lora.write(str(path.relative_to(self.harness.root)), seed=value)
        else:
            write_tiny(path, float(value))
        for file in path.iterdir():
            self._age(file)
        self._learn(path)

    def _learn(self, path: Path) -> None:
        """Note the digest of the files under a path, as each of the two has it."""
        hashes = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.iterdir()}
        self.digests[weight_files.digest_of(hashes)] = digest_of(self.fake.files.at(str(path)))

    def _age(self, file: Path) -> None:
        """Give a file a time of its own: the clock of the file system is coarse."""
        self.written += 1
        os.utime(file, ns=(self.written * 10**6, self.written * 10**6))

    def digest(self, name: str) -> Digest:
        """The digest of the contents under a name now."""
        fake = digest_of(self.fake.files.at(self.path(name)))
        return Digest(next(real for real, known in self.digests.items() if known == fake), fake)

    # --- time -------------------------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Time passes; leases end. The engine's own limits are of the real clock: no load is held meanwhile."""
        if self.pending:
            return
        self.harness.clock.advance(seconds)
        lease = self.harness.agent.lease
        if lease is not None and lease.has_expired(self.now):
            await self.harness.agent.expire_lease()
        self.fake.tick(self.now)

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self, request: type[Request], body: dict[str, Any], *, adapter: str = ""
    ) -> tuple[Answered, Answered] | None:
        """Send a call to both. Returns: both answers; None if both wait."""
        described = f"{request.__name__} {adapter} {body}"
        self.fake.slow_seconds = HELD_SECONDS if self._holds(request) else 0.0
        given = [
            {k: v[n] if isinstance(v, Digest) else v for k, v in body.items()} for n in range(2)
        ]
        real, fake = (
            asyncio.create_task(self._answer(api, request, content, adapter, whose))
            for api, content, whose in zip(
                (self.real_api, self.agent.api()), given, ("real", "fake"), strict=True
            )
        )
        await asyncio.wait({fake}, timeout=QUIET_SECONDS)
        await asyncio.wait({real}, timeout=ANSWER_SECONDS if fake.done() else QUIET_SECONDS)
        assert real.done() == fake.done(), (
            f"{described}: only one of both has ended: {self.differences()}"
        )
        if not real.done():
            self.pending.append((described, real, fake))
            return None
        return real.result(), fake.result()

    async def hold_loads(self) -> None:
        """From now on no load ends, until `let_go`."""
        self.harness.engine.gates.setdefault("load", asyncio.Event())

    def _holds(self, request: type[Request]) -> bool:
        return "load" in self.harness.engine.gates and request in {LoadRequest, ApplyRequest}

    async def let_go(self) -> list[tuple[str, Answered, Answered]]:
        """End what is held. Returns: the calls that have ended with it, and both answers."""
        if (gate := self.harness.engine.gates.pop("load", None)) is not None:
            gate.set()
        self.fake.slow_seconds = 0.0
        if (load := self.fake.work) is not None:
            load.ends_at, load.cut = self.fake.now, False
        self.fake.tick(self.now)
        ended, self.pending = self.pending, []
        for _, *tasks in ended:
            await asyncio.wait_for(asyncio.gather(*tasks), ANSWER_SECONDS)
        return [(described, real.result(), fake.result()) for described, real, fake in ended]

    @contextlib.contextmanager
    def failing_engine(self, what: str) -> Iterator[None]:
        """The next `load`, or `add_adapter`, fails inside of both engines; empty: none fails."""
        engine, fake = self.harness.engine, self.fake
        if what:
            engine.failures = {what: [touched()]}
            fake.breaking_versions = {str(fake.staged)} if what == "load" else set()
            fake.failing_adapters = int(what == "add_adapter")
        try:
            yield
        finally:
            engine.failures = {}
            fake.breaking_versions, fake.failing_adapters = set(), 0

    async def _answer(
        self, api: Api, request: type[Request], body: dict[str, Any], adapter: str, whose: str
    ) -> Answered:
        route = (request.method, request.path)
        call = Call(*route, json.dumps(body).encode(), rest=adapter)
        try:
            answer = await api.routes[route](call)
        except (Refusal, EngineFailure) as error:
            answer = api.explain(error, status_of(error.reason))
            reply = ErrorReply.model_validate_json(_bytes(answer.content))
            assert reply.state is not None
            return Answered(answer.status, str(error.reason), self.facts(reply.state, whose))
        state = WorkerState.model_validate_json(_bytes(answer.content))
        return Answered(answer.status, None, self.facts(state, whose))

    # --- what can be compared ---------------------------------------------------------------------

    def facts(self, state: WorkerState, whose: str) -> dict[str, Any]:
        """The fields of a state in which the fake must equal the real worker."""
        known = self.digests if whose == "real" else {}

        def digest(found: str | None) -> str | None:
            return known.get(found, found) if found is not None else None

        facts: dict[str, Any] = {
            name: getattr(state, name)
            for name in (
                "phase",
                "admitted",
                "version",
                "run_id",
                "lease_expiries",
                "epoch",
                "limits_lag",
            )
        }
        facts["digest"] = digest(state.digest)
        facts["source"] = str(state.source)
        facts["staged"] = state.staged and (
            *(state.staged.version, state.staged.run_id, digest(state.staged.digest)),
            str(state.staged.source),
        )
        work = state.operation
        facts["operation"] = work and (work.kind, work.version, work.run_id)
        facts["pause"] = state.pause and state.pause.model_dump()
        failures = [f for f in (state.stage_failure, *state.earlier_stage_failures) if f]
        facts["stage_failure"] = [_about(f) for f in failures]
        facts["load_failure"] = state.load_failure and _about(state.load_failure)
        facts["adapter_failures"] = [(f.name, *_about(f)) for f in state.adapter_failures]
        held = state.phase is Phase.PAUSED
        facts["timings"] = bool(held and state.timings and state.timings.load_seconds is not None)
        facts["probe"] = state.probe and (
            *(state.probe.version, state.probe.run_id, digest(state.probe.digest)),
            *(state.probe.compared_with, state.probe.compared_with_run_id),
            digest(state.probe.compared_with_digest),
        )
        facts["adapters"] = [
            (
                *(a.name, a.version, a.run_id, str(a.source), digest(a.digest)),
                a.staged and (a.staged.version, a.staged.run_id, digest(a.staged.digest)),
            )
            for a in state.adapters
        ]
        return facts

    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The states that both report now."""
        real, fake = self.harness.state, self.fake.state(self.now)
        return self.facts(real, "real"), self.facts(fake, "fake")

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The differences of both states."""
        real, fake = self.states()
        return Answered(200, None, real).differences(Answered(200, None, fake))

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator[Self]:
        """Both have started on the model's own weights, and wait for admission."""
        async with start_worker(folder) as harness:
            lora = LoraHarness(harness)
            fake = FakeWorker("uid-0", 0, "r", harness.clock(), start_seconds=0)
            fake.start_source, fake.slots, fake.requests = str(folder / "base"), SLOTS, NoRequests()
            fake.room_for_adapters = 100
            fake.start()
            fake.tick(harness.clock())
            agent = FakeAgent(fake, harness.clock)
            api = operator_api(harness.agent, lambda: harness.state, _nothing)
            inspector = harness.agent.staging.rules.inspector
            assert isinstance(inspector, TinyInspector)
            pair = cls(harness, lora, fake, agent, api, inspector)
            pair._learn(folder / "base")
            yield pair


async def _nothing() -> None:
    return


def _bytes(content: Any) -> bytes:
    assert isinstance(content, bytes)
    return content


def _about(failure: Failure) -> tuple[Any, ...]:
    return failure.version, failure.run_id, str(failure.reason), round(failure.age_seconds, 3)

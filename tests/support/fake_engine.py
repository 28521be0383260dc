"""An engine without a model: it obeys every call, and keeps a list of the calls."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.digests import tensor_digest
from fleet_worker.engine.effect import Effect
from fleet_worker.engine.records import Checksum, EngineAdapter, HeldBytes, Position
from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import EngineInfo, PauseMode, Reason


@dataclass
class FakeEngine:
    """Follows the `Engine` port.

    Fields:
        calls: names of the calls, in order; loads with the path of their checkpoint.
        failures: call → what it raises, one a call.
        gates: call → event that it waits for.
        running: requests that have not ended; an abort ends them.
        stubborn: an abort does not end them.
        label: version of the tokens it would make; without what tells it from others of its name.
        raw_label: the label itself.
        logprobs: label → what every token gets; -1 unless it is named.
        adapters: number → name of those in slots.
        weights: path of the checkpoint in the model, or what was received.
        sent: what a trainer has sent last.
        effect: of every load.
        held: paths of the checkpoints to hold, one a call; None for nothing.
        holds: answers to these calls, in order; after them, done at once.
        compared: paths of the versions before, that these are compared with; None for none.
        rooms: bytes that what differs may take, one a call.
        samples: whether the model is sampled, one a call.
        why_full: why no load in place goes well; None if each does.
        group: what all members of a joined group have, and no other group.
        wakes: whether all of it comes back when it is woken.
        values_known: a checksum includes all values.
    """

    calls: list[str] = field(default_factory=list)
    failures: dict[str, list[EngineFailure]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    running: int = 0
    stubborn: bool = False
    paused: bool = False
    label: str = "default"
    raw_label: str = "default"
    logprobs: dict[str, float] = field(default_factory=dict)
    adapters: dict[int, str] = field(default_factory=dict)
    weights: str = ""
    sent: str = ""
    effect: Effect = Effect(0.25, compared_elements=8, elements=32)  # noqa: RUF009 - frozen
    held: list[str | None] = field(default_factory=list)
    holds: list[HeldBytes] = field(default_factory=list)
    compared: list[str | None] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    why_full: str | None = None
    group: str | None = None
    wakes: bool = True
    values_known: bool = True
    is_dead: bool = False

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(version="0.0", model="fake")

    def unfinished(self) -> int:
        return self.running

    async def ping(self) -> None:
        await self._do("ping")

    async def pause(self, mode: PauseMode, *, keep_cache: bool = False) -> None:
        await self._do(f"pause {mode}", f"pause {mode}" + " and keep" * keep_cache)
        if mode is PauseMode.ABORT and not self.stubborn:
            self.running = 0
        self.paused = True
        if (waiting := self.gates.get("pause wait")) is not None and mode is PauseMode.KEEP:
            waiting.set()  # a keep lets an armed wait come to its end

    async def is_paused(self) -> bool:
        await self._raise_or_wait("is paused")
        return self.paused

    async def drain(self, *, keep_cache: bool = False) -> None:
        await self.pause(PauseMode.WAIT, keep_cache=keep_cache)

    async def resume(self) -> None:
        await self._do("resume")
        self.paused = False

    async def hold(
        self,
        checkpoint: Checkpoint | None,
        base: Checkpoint | None = None,
        room: int = 0,
        *,
        samples: bool = False,
    ) -> HeldBytes:
        self.samples.append(samples)
        self.rooms.append(room)
        self.compared.append(base.path if base is not None else None)
        self.held.append(checkpoint.path if checkpoint is not None else None)
        await self._raise_or_wait("hold")
        line = "pageable: a fake" if checkpoint is not None else ""
        return self.holds.pop(0) if self.holds else HeldBytes(is_done=True, line=line)

    async def compare(self) -> Effect:
        await self._raise_or_wait("compare")
        return self.effect

    async def load_in_place(self, checkpoint: Checkpoint, base: Checkpoint) -> str | None:
        assert self.paused, "weights may only change while nothing generates"
        assert self.weights in ("", base.path), "the engine has the version before"
        await self._do("load_in_place", f"change {base.path} to {checkpoint.path}")
        if self.why_full is None:
            self.weights = checkpoint.path
        return self.why_full

    async def load(self, checkpoint: Checkpoint, *, again: bool = False) -> float:
        assert self.paused, "weights may only change while nothing generates"
        await self._do("load", f"load {checkpoint.path}")
        self.weights = "half"
        if not checkpoint.is_held and _digests_now(checkpoint) != checkpoint.tensor_digests():
            raise EngineFailure("changed", touched=True, reason=Reason.CHECKPOINT_CHANGED)
        self.weights = checkpoint.path
        self.adapters.clear()  # as vLLM does
        return 0.0

    async def probe(self) -> None:
        await self._do("probe")

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        await self._do("add_adapter", f"add_adapter {_unmarked(adapter)}")
        assert (Path(adapter.path) / "adapter_model.safetensors").read_bytes()
        self.adapters[adapter.number] = _unmarked(adapter)

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        await self._do("remove_adapter", f"remove_adapter {_unmarked(adapter)}")
        assert (Path(adapter.path) / "adapter_model.safetensors").exists(), "files go last"
        self.adapters.pop(adapter.number, None)

    def serve_adapter(self, name: str, source: str | None) -> None:
        self.calls.append(f"serve_adapter {name} {source is not None}")

    async def join_transfer(self, info: Mapping[str, Any]) -> str | None:
        await self._do("join_transfer", f"join_transfer {dict(info)}")
        return self.group

    async def leave_transfer(self) -> None:
        await self._do("leave_transfer")

    async def begin_transfer(self, *, again: bool = False) -> None:
        assert self.paused, "weights may only change while nothing generates"
        await self._do("begin_transfer", "begin_transfer again" if again else "begin_transfer")
        self.weights = "half"

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        self.sent = str(info)
        await self._do("receive")

    async def end_transfer(self) -> None:
        await self._do("end_transfer")
        self.weights = f"received {self.sent}"
        self.adapters.clear()  # as vLLM does

    async def cancel_transfer(self) -> None:
        await self._do("cancel_transfer")

    async def checksum(self) -> Checksum:
        await self._do("checksum")
        seen = str(self.weights) if self.values_known else ""
        text = hashlib.sha256(seen.encode()).hexdigest()
        return Checksum(text, is_complete=self.values_known)

    async def drop_prefixes(self, *, running: bool) -> bool:
        await self._do("drop_prefixes", f"drop_prefixes running={running}")
        return running or self.running == 0

    async def sleep(self, level: int) -> None:
        assert self.paused
        assert self.running == 0
        await self._do("sleep", f"sleep {level}")

    async def wake(self, tags: Sequence[str] | None) -> bool:
        await self._do("wake", f"wake {tags}")
        awake = self.wakes and (tags is None or "kv_cache" in tags)
        self.paused = self.paused and not awake  # as vLLM does
        return awake

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        await self._do("abort", f"abort {request_ids}")
        return len(request_ids or ())

    def describe(self) -> dict[str, Any]:
        return {"model_config": {"dtype": "torch.bfloat16"}}

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": "fake", "max_model_len": 16}]

    async def sample(self, prompt: str, max_tokens: int) -> tuple[list[int], list[int]]:
        assert not self.paused, "nothing generates while paused"
        await self._do("sample", f"sample {prompt}")
        return [len(prompt)], list(range(max_tokens))

    async def score(self, tokens: Sequence[int], *, first: int) -> tuple[Position, ...]:
        assert not self.paused, "nothing generates while paused"
        await self._do("score")
        logprob = self.logprobs.get(self.label, -1.0)
        return tuple(Position(token, {token: logprob}) for token in tokens[first:])

    async def reset_caches(self) -> None:
        await self._do("reset_caches")

    async def set_version(self, label: str) -> None:
        assert self.paused, "labels may only change while nothing generates"
        version, _, mark = label.partition("@")
        assert mark, "a version alone names no weights"
        await self._do("set_version", f"set_version {version}")
        self.label, self.raw_label = version, label

    async def _do(self, name: str, noted: str | None = None) -> None:
        self.calls.append(noted or name)
        await self._raise_or_wait(name)

    async def _raise_or_wait(self, name: str) -> None:
        if (gate := self.gates.get(name)) is not None:
            await gate.wait()
        if self.failures.get(name):
            raise self.failures[name].pop(0)


def _digests_now(checkpoint: Checkpoint) -> dict[str, str]:
    """Digests of the tensors in the files as they are now."""
    digests = {}
    for file in checkpoint.files:
        for spec in checkpoint.specs[file.name]:
            digest = tensor_digest(*spec.signature)
            digest.update(file.read(spec.begin, spec.end - spec.begin))
            digests[spec.name] = digest.hexdigest()
    return digests


def _unmarked(adapter: EngineAdapter) -> str:
    """Name and version; the digest behind them is there."""
    name, version, mark, *_ = adapter.name.split("@")
    unmarked = f"{name}@{version}"
    assert len(mark) == 12
    return unmarked


def touched(reason: Reason = Reason.ENGINE_FAILED) -> EngineFailure:
    """A failure after which the weights are not to be trusted."""
    return EngineFailure("it broke", touched=True, reason=reason)


def untouched() -> EngineFailure:
    """A failure before anything was changed."""
    return EngineFailure("it could not begin", touched=False)


@dataclass(frozen=True)
class FakeFault:
    """A fault in one call of the engine, or in it and all later ones of its name.

    Fields:
        number: of the call, from 0, counted since the fault was set.
        late: it takes effect, and what fails or hangs is its answer.
    """

    number: int
    hangs: bool = False
    late: bool = False
    always: bool = False


class FaultyFakeEngine:
    """A fake engine whose calls can fail or hang, by their number.

    Fields:
        names: of the calls since the last fault was set, in order.
        violations: changes of weights or labels while the engine generated.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._fault: FakeFault | None = None
        self._always: str | None = None
        self.names: list[str] = []
        self.violations: list[str] = []

    def set_fault(self, fault: FakeFault | None) -> None:
        """The fault from now on; None: no fault."""
        self._fault, self._always, self.names = fault, None, []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return partial(self._call, name, found) if inspect.iscoroutinefunction(found) else found

    async def _call(self, name: str, call: Any, *arguments: Any, **named: Any) -> Any:
        fault, number = self._fault, len(self.names)
        self.names.append(name)
        if name in _WHILE_PAUSED and not self._engine.paused:
            self.violations.append(f"{name} while the engine generates")
        if fault is not None and number == fault.number and fault.always:
            self._always = name
        faulty = fault is not None and (number == fault.number or name == self._always)
        if fault is None or not faulty:
            return await call(*arguments, **named)
        if fault.late:
            await call(*arguments, **named)
        if fault.hangs:
            await asyncio.Event().wait()
        raise EngineFailure(f"{name} broke", touched=name in _TOUCHING)


_WHILE_PAUSED = ("load", "set_version", "begin_transfer", "receive", "end_transfer", "sleep")
_TOUCHING = ("load", "probe", "set_version", "reset_caches", "checksum", *_WHILE_PAUSED[2:5])

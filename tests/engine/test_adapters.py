"""LoRA adapters on a real engine: versions, swaps under requests, and files that vanish."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.adapters import QWEN_MODULES, WEIGHTS_FILE, write_adapter
from tests.support.selection import others_long
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, events_of, token_request

_labels = itertools.count(1)


class Lab:
    """A worker, and where its adapters are written."""

    def __init__(self, worker: WorkerProcess, folder: Path) -> None:
        self.worker = worker
        self.folder = folder
        self.name = f"tuned-{next(_labels)}"

    def write(self, seed: int, **options: Any) -> Path:
        return write_adapter(self.folder / f"{seed}-{next(_labels)}", seed=seed, **options)

    def put(self, version: str, path: Path, *, name: str | None = None) -> dict[str, Any]:
        call = f"adapters/{name or self.name}"
        return self.worker.must(call, version=version, source={"path": str(path)})

    def refusal(self, version: str, path: Path) -> tuple[int, str, str]:
        call = f"adapters/{self.name}"
        return self.worker.refusal(call, version=version, source={"path": str(path)})

    def ask(self, *, model: str | None = None, **sampling: Any) -> httpx.Response:
        body = token_request([5, 6, 7], **{"max_tokens": 12, "temperature": 0, **sampling})
        request = {"model": model or self.name, **body}
        return self.worker.public.post("/inference/v1/generate", json=request)

    def tokens(self, **options: Any) -> list[int]:
        reply = self.ask(**options)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["choices"][0]["token_ids"])

    def numbers(self) -> list[tuple[int, float]]:
        """Greedy tokens with their log-probabilities: what the adapter computes, bit for bit."""
        content = self.ask().json()["choices"][0]["logprobs"]["content"]
        return [(entry["token_id"], entry["logprob"]) for entry in content]

    def models(self) -> list[dict[str, Any]]:
        """The models that the public port lists, without their times."""
        listed = self.worker.public.get("/v1/models").json()["data"]
        return [{key: model[key] for key in ("id", "root", "parent")} for model in listed]

    def held(self) -> list[Path]:
        """The folders that the worker holds for its engine."""
        ours = f"/proc/{self.worker.process.pid}/"
        folders = Path(tempfile.gettempdir()).glob("rlfleet-adapter-*")
        return sorted(f for f in folders if _target(f / WEIGHTS_FILE).startswith(ours))

    @property
    def state(self) -> dict[str, Any]:
        found = [a for a in self.worker.state()["adapters"] if a["name"] == self.name]
        return found[0] if found else {}


@pytest.fixture
def lab(driven: WorkerProcess, weights: Weights) -> Lab:
    number = next(_labels)
    return Lab(driven, weights.root / f"adapters-{number}")


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # another worker's, gone meanwhile
        return ""


@contextmanager
def away(folders: list[Path]) -> Iterator[None]:
    """No process reads these folders meanwhile."""
    for folder in folders:
        folder.rename(f"{folder}.away")
    try:
        yield
    finally:
        for folder in folders:
            Path(f"{folder}.away").rename(folder)


def in_background(work: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work().json()))
    thread.start()
    return thread, found


def test_an_adapter_is_served_under_its_name_in_addition_to_the_model(lab: Lab) -> None:
    base = lab.tokens(model="policy")
    assert lab.ask().status_code == 404
    path = lab.write(1)
    state = lab.put("41", path)

    assert lab.tokens() != base
    assert lab.tokens(model="policy") == base
    assert state["adapter_slots"] == {"total": 3, "used": 1, "max_rank": 8}
    assert (lab.state["version"], lab.state["requests"]) == ("41", 0)
    models = {m["id"]: m for m in lab.worker.public.get("/v1/models").json()["data"]}
    assert models[lab.name]["root"] == str(path)
    assert models[lab.name]["parent"] == "policy"


def test_a_swap_never_serves_old_weights_under_the_new_version(lab: Lab) -> None:
    first, second = lab.write(1), lab.write(2)
    lab.put("1", first)
    one = lab.tokens()
    lab.put("2", second)
    two = lab.tokens()
    lab.put("3", shutil.copytree(first, lab.folder / "again"))
    again = lab.tokens()

    assert one != two
    assert again == one
    assert lab.state["retiring"] == []
    assert lab.worker.state()["adapter_slots"]["used"] == 1


def test_no_cached_prefix_outlives_a_swap(lab: Lab) -> None:
    prompt = list(range(5, 250))
    body = {**token_request(prompt, max_tokens=8, temperature=0), "model": lab.name}

    def answer() -> list[int]:
        reply = lab.worker.public.post("/inference/v1/generate", json=body).json()
        return list(reply["choices"][0]["token_ids"])

    lab.put("1", lab.write(1))
    first = [answer(), answer()]
    lab.put("2", lab.write(2))
    second = answer()
    lab.worker.must_remove(lab.name)
    lab.put("3", lab.write(2))

    assert first[0] == first[1]
    assert answer() == second != first[0]


def test_every_token_says_which_version_of_the_adapter_made_it(lab: Lab) -> None:
    lab.put("41", lab.write(1))
    chat = {
        "model": lab.name,
        "messages": [{"role": "user", "content": "one"}],
        "max_tokens": 4,
        "n": 2,
    }
    whole = lab.worker.public.post("/v1/chat/completions", json=chat).json()
    stream = lab.worker.public.post("/v1/chat/completions", json={**chat, "stream": True})
    home = lab.worker.state()["version"]

    assert whole["model"] == lab.name
    ends = [e for event in events_of(stream.text) for e in event["choices"] if e["finish_reason"]]
    assert [c["index"] for c in ends] in ([0, 1], [1, 0])
    for choice in [*whole["choices"], *ends]:
        (span,) = choice["weight_versions"]
        assert (span["version"], span["adapter"], span["start"]) == (home, "41", 0)
    (plain,) = lab.ask(model="policy").json()["choices"][0]["weight_versions"]
    assert "adapter" not in plain


def test_a_running_request_keeps_its_version_over_a_swap(lab: Lab) -> None:
    first, second = lab.write(1), lab.write(2)
    lab.put("1", first)
    alone = lab.tokens(max_tokens=3000)
    thread, found = in_background(lambda: lab.ask(max_tokens=3000))
    eventually(lambda: lab.state.get("requests") == 1)
    lab.put("2", second)
    retiring = lab.state["retiring"]
    thread.join(timeout=REPLY_SECONDS)

    assert retiring == [{"version": "1", "requests": 1}]
    (choice,) = found[0]["choices"]
    assert choice["token_ids"] == alone
    (span,) = choice["weight_versions"]
    assert span.pop("adapter_digest")
    assert span == lab.worker.span(0, 3000, adapter="1")
    eventually(lambda: lab.state["retiring"] == [])
    assert lab.worker.state()["adapter_slots"]["used"] == 1


@pytest.mark.long
def test_versions_and_the_model_run_in_one_batch_without_touching_each_other(lab: Lab) -> None:
    # One adapter in every slot: what the last slot holds is not part of the model (vLLM's CPU kernels).
    lab.put("1", lab.write(1))
    others = []
    while (slots := lab.worker.state()["adapter_slots"])["used"] < slots["total"]:
        others.append(f"other-{next(_labels)}")
        lab.put("1", lab.write(2), name=others[-1])
    names = [lab.name, *others, "policy"] * 3
    alone = {name: lab.tokens(model=name, max_tokens=100) for name in names}
    running = [
        in_background(lambda name=name: lab.ask(model=name, max_tokens=100)) for name in names
    ]
    for thread, _ in running:
        thread.join(timeout=REPLY_SECONDS)

    for name, (_, found) in zip(names, running, strict=True):
        assert found[0]["choices"][0]["token_ids"] == alone[name]


@pytest.mark.long
def test_a_deleted_directory_does_not_end_the_engine(lab: Lab, weights: Weights) -> None:
    path = lab.write(1)
    lab.put("1", path)
    before = lab.tokens()
    os.truncate(path / WEIGHTS_FILE, 0)
    shutil.rmtree(path)
    # vLLM throws adapters out when base weights are loaded, and reads them again.
    lab.worker.swap(f"b-{next(_labels)}", weights.b)
    on_b = lab.tokens()
    lab.worker.swap(f"a-{next(_labels)}", weights.a)

    assert lab.tokens() == before != on_b
    assert lab.worker.state()["adapter_slots"]["used"] == 1


@pytest.mark.long
def test_a_held_request_keeps_its_adapter_over_new_base_weights(lab: Lab, weights: Weights) -> None:
    lab.put("1", lab.write(1))
    thread, found = in_background(lambda: lab.ask(max_tokens=1500))
    eventually(lambda: lab.state.get("requests") == 1)
    version = f"b-{next(_labels)}"
    lab.worker.swap(version, weights.b)
    thread.join(timeout=REPLY_SECONDS)

    choice = found[0]["choices"][0]
    assert (choice["finish_reason"], len(choice["token_ids"])) == ("length", 1500)
    spans = choice["weight_versions"]
    assert spans[-1]["version"] == version
    assert [span["end"] for span in spans[:-1]] == [span["start"] for span in spans[1:]]
    assert lab.state["requests"] == 0


def test_unloading_is_idempotent_and_removes_the_name(lab: Lab) -> None:
    lab.put("1", lab.write(1))
    thread, found = in_background(lambda: lab.ask(max_tokens=500))
    eventually(lambda: lab.state.get("requests") == 1)
    lab.worker.must_remove(lab.name)
    lab.worker.must_remove(lab.name)
    gone = lab.ask()
    thread.join(timeout=REPLY_SECONDS)

    assert gone.status_code == 404
    assert found[0]["choices"][0]["finish_reason"] == "length"
    eventually(lambda: lab.worker.state()["adapter_slots"]["used"] == 0)


def _wrong_shape(path: Path) -> None:
    tensors = damage.read_tensors(path / WEIGHTS_FILE)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name] = ("F32", [8, 32], bytes(4 * 8 * 32))
    damage.write_tensors(path / WEIGHTS_FILE, tensors)


def _cut(path: Path) -> None:
    os.truncate(path / WEIGHTS_FILE, 5000)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    others_long(
        {"truncated"},
        [
            pytest.param(_wrong_shape, {}, "CheckpointMismatch", id="wrong inner shape"),
            pytest.param(_cut, {}, "CheckpointTruncated", id="truncated"),
            pytest.param(shutil.rmtree, {}, "SourceAbsent", id="missing"),
            pytest.param(lambda _: None, {"rank": 16}, "CheckpointMismatch", id="rank too large"),
            pytest.param(
                lambda _: None,
                {"modules": {"model.embed_tokens": (512, 64)}, "use_dora": True},
                "CheckpointMismatch",
                id="DoRA",
            ),
        ],
    ),
)
def test_a_bad_adapter_is_refused_and_the_version_before_keeps_serving(
    lab: Lab, change: Callable[[Path], None], options: dict[str, Any], reason: str
) -> None:
    lab.put("1", lab.write(1))
    before = lab.tokens()
    path = lab.write(2, **options)
    change(path)
    status, found, _ = lab.refusal("2", path)

    assert (status, found) == (422, reason)
    assert lab.worker.state()["adapter_failure"]["reason"] == reason
    assert lab.tokens() == before


@pytest.mark.long
def test_an_adapter_that_fails_inside_the_engine_is_neither_listed_nor_kept(
    lab: Lab,
) -> None:
    lab.put("1", lab.write(1))
    before, listed, state = lab.numbers(), lab.models(), lab.worker.state()
    held = lab.held()
    assert len(held) == 1
    # No file shows whether a matrix is multiplied by or looked up. vLLM finds the shapes of an
    # embedding's adapter to be transposed only when the adapter has a slot.
    path = lab.write(2, modules=QWEN_MODULES | {"model.embed_tokens": (512, 64)})
    status, reason, message = lab.refusal("2", path)

    assert (status, reason) == (500, "EngineFailed")
    assert "size of tensor" in message
    after = lab.worker.state()
    same = ("adapters", "adapter_slots", "phase")
    assert [after[key] for key in same] == [state[key] for key in same]
    failure = after["adapter_failure"]
    assert (failure["name"], failure["version"]) == (lab.name, "2")
    assert (lab.models(), lab.numbers(), lab.held()) == (listed, before, held)

    other = f"other-{next(_labels)}"
    call = {"version": "2", "source": {"path": str(path)}}
    for _ in range(2):
        assert lab.worker.refusal(f"adapters/{other}", **call)[:2] == (500, "EngineFailed")
    assert lab.models() == listed
    assert lab.ask(model=other).status_code == 404

    # Good ones fill all slots, under a label that failed, too. Had the engine kept what it failed
    # at, it would have had to throw version 1 out, and would now look for its files.
    lab.put("2", lab.write(3), name=other)
    lab.put("2", lab.write(4), name=f"{other}-too")
    assert lab.worker.state()["adapter_slots"]["used"] == 3
    with away(held):
        assert lab.numbers() == before
    lab.worker.must_remove(other)
    lab.put("2", lab.write(5))
    assert lab.numbers() != before
    assert lab.state["version"] == "2"


@pytest.mark.long
def test_an_adapter_that_the_engine_cannot_load_is_refused_before_the_load(lab: Lab) -> None:
    lab.put("1", lab.write(1))
    before = lab.tokens()
    path = lab.write(2, modules={"lm_head": (512, 64)}, init_lora_weights="pissa")
    status, reason, _ = lab.refusal("2", path)

    assert (status, reason) == (422, "CheckpointMismatch")
    assert lab.tokens() == before
    assert lab.state["version"] == "1"
    assert lab.worker.state()["adapter_slots"]["used"] == 1


def test_without_room_for_adapters_the_call_is_refused_with_that_reason(
    worker: WorkerProcess, weights: Weights
) -> None:
    path = write_adapter(weights.root / f"nowhere-{next(_labels)}", seed=1)
    status, reason, message = worker.refusal(
        "adapters/tuned", version="1", source={"path": str(path)}
    )

    assert (status, reason) == (409, "AdaptersOff")
    assert "--max-loras" in message
    assert worker.state()["adapter_slots"] is None

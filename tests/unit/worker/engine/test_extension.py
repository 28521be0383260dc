"""The extension inside the engine: whether a load touched the model, and wrote all of it.

The engine and torch are fakes here; `tests/engine` does the same with real ones.
"""

from __future__ import annotations

import importlib
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.fake_modules import install
from tests.support.fake_torch import DTYPES, FakeTensor, imported_over_fake_torch
from tests.support.waiting import eventually

from fleet_worker.checkpoint.digests import tensor_digest
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.engine.vllm_names import LAYERWISE, LOADERS, META


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    loaders = {
        "DefaultModelLoader": object,
        "register_model_loader": lambda _: lambda loader: loader,
    }
    install(monkeypatch, {LOADERS: loaders, LAYERWISE: {}, META: {"SKIP_TENSORS": set()}})
    with imported_over_fake_torch("fleet_worker.engine.extension") as module:
        module.drop_unfinished = lambda model: model.drop_unfinished()
        module.take_new_shapes = lambda model: model.take_new_shapes()
        module.renew_copies = lambda model, left_out: None
        module.forward_pass = lambda worker, tokens, *, wait: worker.forward_pass(tokens)
        yield module


@pytest.fixture
def layerwise(monkeypatch: pytest.MonkeyPatch, worker: Any) -> Callable[..., None]:
    """Called: vLLM's loaders have kept no value of `embed.weight`."""

    def lose() -> None:
        info = SimpleNamespace(can_load=lambda: True, loaded_weights=[], restore_metadata=({}, {}))
        install(monkeypatch, {LAYERWISE: {"get_layerwise_info": lambda _layer: info}})
        parameter = SimpleNamespace(is_meta=True)
        layer = SimpleNamespace(named_parameters=lambda *, recurse: [("weight", parameter)])
        worker.model.named_modules = lambda: [("embed", layer)]

    return lose


class FakeModel:
    """Parameters by name; takes what it is given, and says what it has written."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.written: dict[str, tuple[tuple[int, ...], bytes]] = {}
        self.order: list[str] = []
        self.tells = True
        self.loads = 0
        self.dropped_before: list[int] = []
        """The number of loads before each drop of unfinished layers."""
        self.reshaped_before: list[int] = []
        """The number of loads before tensors were made ready for new shapes."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        for name, size in self.sizes.items():
            yield name.replace("__", "."), SimpleNamespace(numel=lambda size=size: size)

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield from ()

    def load_weights(self, weights: Iterable[tuple[str, FakeTensor]]) -> set[str] | None:
        self.loads += 1
        for name, tensor in weights:
            self.order.append(name)
            self.written[name] = (tensor.shape, tensor.raw())
        return set(self.written) if self.tells else None

    def compute_logits(self, hidden: FakeTensor) -> FakeTensor:
        return hidden

    def drop_unfinished(self) -> None:
        self.dropped_before.append(self.loads)

    def take_new_shapes(self) -> None:
        self.reshaped_before.append(self.loads)


class FakeRunner:
    """vLLM's model runner, as far as the extension uses it."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def get_model(self) -> FakeModel:
        return self._worker.model


@pytest.fixture
def worker(extension: Any) -> Any:
    """vLLM's worker with our extension mixed in."""

    class FakeWorker(extension.WorkerExtension):
        def __init__(self) -> None:
            self.model = FakeModel(embed__weight=8, head__weight=4)
            self.hidden: Any = FakeTensor([0.5] * 8, DTYPES["float32"])
            self.output: Any = None
            self.model_runner = FakeRunner(self)
            config = SimpleNamespace(model_config=SimpleNamespace(quantization=None))
            self.vllm_config = config
            self.weight_transfer_engine: Any = None
            self._weight_update_active = True

        def reload_weights(self, *, weights_iterator: Any) -> None:
            self.model.load_weights(weights_iterator)

        def forward_pass(self, tokens: int) -> tuple[None, Any]:
            assert tokens == 8
            if isinstance(self.hidden, Exception):
                raise self.hidden
            return self.output, self.hidden

    return FakeWorker()


TENSORS: damage.Tensors = {
    "embed.weight": ("BF16", [2, 4], bytes(range(16))),
    "head.weight": ("F32", [4], bytes(range(16))),
}


def file_of(folder: Path, tensors: damage.Tensors = TENSORS, name: str = "a") -> Path:
    file = folder / f"{name}.safetensors"
    damage.write_tensors(file, tensors)
    return file


def loaded(
    worker: Any, *files: Path, in_memory: bool = False, started: bool = False, **copies: str
) -> dict[str, Any]:
    """The answer to a load of files, or of sealed copies of them, that have not changed since they were staged."""
    names = {name.replace("__", "."): original for name, original in copies.items()}
    with ExitStack() as copied:
        paths = [copied.enter_context(sealed(f)) if in_memory else str(f) for f in files]
        digests = None if in_memory else digests_of(*files)
        return dict(worker.rlfleet_load(paths, names, {}, digests=digests, started=started))


@contextmanager
def sealed(file: Path) -> Iterator[str]:
    """A path of a sealed copy in memory."""
    content = file.read_bytes()
    copy = MemoryFile(file.name, len(content))
    copy.write(memoryview(content), 0)
    copy.seal()
    yield f"/proc/self/fd/{copy.descriptor}"
    copy.close()


def digests_of(*files: Path) -> dict[str, str]:
    """Tensor name → digest, of the files that can be read."""
    digests = {}
    for file in files:
        with suppress(OSError, ValueError, struct.error):
            for name, (dtype, shape, content) in damage.read_tensors(file).items():
                digest = tensor_digest(dtype, shape)
                digest.update(content)
                digests[name] = digest.hexdigest()
    return digests


# --- loads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_load_writes_the_bytes_of_every_tensor_in_its_shape(
    worker: Any, tmp_path: Path, in_memory: bool
) -> None:
    answer = loaded(worker, file_of(tmp_path), in_memory=in_memory)

    assert (answer["ok"], answer["touched"], answer["error"]) == (True, True, None)
    assert (worker.model.dropped_before, worker.model.reshaped_before) == ([0], [0])
    assert worker.model.written == {
        "embed.weight": ((2, 4), bytes(range(16))),
        "head.weight": ((4,), bytes(range(16))),
    }


def test_tensors_of_one_layer_are_loaded_together_across_files(worker: Any, tmp_path: Path) -> None:
    def some(*names: str) -> damage.Tensors:
        return {name: ("U8", [2], b"xy") for name in names}

    first = file_of(tmp_path, some("layers.1.q", "layers.0.q", "embed.weight"), "a")
    second = file_of(tmp_path, some("layers.0.k", "head.weight", "layers.1.k"), "b")
    loaded(worker, first, second)

    layers = [name.rpartition(".")[0] for name in worker.model.order]
    assert layers == sorted(layers)
    assert sorted(worker.model.order) == sorted(
        ["layers.1.q", "layers.0.q", "embed.weight", "layers.0.k", "head.weight", "layers.1.k"]
    )


def test_empty_tensors_and_scalars_are_loaded(worker: Any, tmp_path: Path) -> None:
    tensors: damage.Tensors = {
        **TENSORS,
        "none": ("F32", [0, 4], b""),
        "scale": ("F32", [], b"\0\0\x80\x3f"),
    }
    assert loaded(worker, file_of(tmp_path, tensors))["ok"]

    assert worker.model.written["none"] == ((0, 4), b"")
    assert worker.model.written["scale"] == ((), b"\0\0\x80\x3f")


def test_a_tensor_that_the_files_lack_is_loaded_from_the_one_that_it_equals(
    worker: Any, tmp_path: Path
) -> None:
    worker.model = FakeModel(embed__weight=8, lm_head__weight=8)
    tensors: damage.Tensors = {"embed.weight": TENSORS["embed.weight"]}
    answer = loaded(worker, file_of(tmp_path, tensors), lm_head__weight="embed.weight")

    assert answer["ok"]
    assert worker.model.written["lm_head.weight"] == worker.model.written["embed.weight"]


def _gone(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    os.truncate(file, 40)


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _text(file: Path) -> None:
    file.write_bytes(b"this is a text, not a checkpoint")


@pytest.mark.parametrize("harm", [_gone, _cut, _empty, _text])
def test_an_unreadable_file_fails_before_the_model_changes(
    worker: Any, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    good, bad = file_of(tmp_path), file_of(tmp_path, {"x": ("U8", [64], bytes(64))}, "b")
    harm(bad)
    before = open_descriptors()
    worker._rlfleet_memory = "of the load before"
    answer = loaded(worker, good, bad)

    assert (answer["ok"], answer["touched"]) == (False, False)
    assert answer["error"]
    assert worker.rlfleet_effect()["why_not"] == "of the load before"
    assert worker.model.loads == 0
    assert not left_open(before), "the good one was open already"


def test_an_attempt_in_place_that_finds_no_file_leaves_none_open(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"change": None, "unfit_for_changes": lambda model, config: None}
    install(monkeypatch, {"fleet_worker.engine.in_place": members})
    one, other = file_of(tmp_path, name="one"), file_of(tmp_path, name="other")
    with sealed(one) as base, sealed(other) as now:

        def attempts() -> None:
            for base_files, files in (([base, "/gone"], [now]), ([base], [now, "/gone"])):
                with pytest.raises(FileNotFoundError):
                    worker._rlfleet_change(files, base_files, {}, {})

        attempts()  # the version stays mapped for the full load
        before = open_descriptors()
        attempts()
        assert not left_open(before)


@pytest.fixture
def before_reading(worker: Any) -> Callable[[Callable[[], None]], None]:
    """Called: does something once the load has opened its files, and before it reads a tensor."""

    def set_(act: Callable[[], None]) -> None:
        def reload(*, weights_iterator: Any) -> None:
            act()
            worker.model.load_weights(weights_iterator)

        worker.reload_weights = reload

    return set_


BeforeReading = Callable[[Callable[[], None]], None]


def test_a_file_that_shrinks_during_the_load_fails_the_load_only(
    worker: Any, tmp_path: Path, before_reading: BeforeReading
) -> None:
    file = file_of(tmp_path)
    before_reading(lambda: _cut(file))
    answer = loaded(worker, file)

    assert (answer["ok"], answer["touched"]) == (False, True)
    assert answer["reason"] == "CheckpointChanged"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[mmap.mmap]:
    """The mapping of a process that writes to `a.safetensors`, whose pages are all dirty.

    Its next writes change neither size nor times of the file.
    """
    with file_of(tmp_path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:] = mapping[:]
        yield mapping


def test_bytes_that_a_mapping_changes_after_the_digest_fail_the_load(
    worker: Any, tmp_path: Path, writer: mmap.mmap, before_reading: BeforeReading
) -> None:
    before_reading(lambda: writer.__setitem__(-1, 99))
    answer = loaded(worker, tmp_path / "a.safetensors")

    assert (answer["ok"], answer["touched"]) == (False, True)
    assert answer["reason"] == "CheckpointChanged"
    assert "head.weight" in answer["error"]
    assert "head.weight" not in worker.model.written, "no such byte reaches the model"


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"embed.weight": ("BF16", [4, 2])}, id="a shape"),
        pytest.param({"embed.weight": ("F16", [2, 4])}, id="a type"),
        pytest.param({"embed.weight": None, "other.weight": ("BF16", [2, 4])}, id="a name"),
        pytest.param({"head.weight": None}, id="a tensor less"),
    ],
)
def test_a_header_that_changes_after_the_digest_fails_the_load(
    worker: Any, tmp_path: Path, header: dict[str, tuple[str, list[int]] | None]
) -> None:
    file = file_of(tmp_path)
    digests = digests_of(file)
    tensors: damage.Tensors = dict(TENSORS)
    for name, changed in header.items():
        content = tensors.pop(name, TENSORS["embed.weight"])[2]
        if changed is not None:
            tensors[name] = (*changed, content)
    damage.write_tensors(file, tensors)
    answer = worker.rlfleet_load([str(file)], {}, {}, digests=digests, started=False)

    assert (answer["ok"], answer["reason"]) == (False, "CheckpointChanged")


def test_a_file_that_is_not_sealed_memory_is_not_loaded_without_digests(
    worker: Any, tmp_path: Path
) -> None:
    answer = worker.rlfleet_load([str(file_of(tmp_path))], {}, {}, digests=None, started=False)

    assert (answer["ok"], answer["touched"]) == (False, False)
    assert worker.model.loads == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_leaves_the_unmapping_of_its_bytes_to_the_next_call(
    worker: Any, tmp_path: Path, fails: bool
) -> None:
    def mappings() -> int:  # by inode: the thread of an earlier test may have such a file, too
        return Path("/proc/self/maps").read_text().count(f" {inode} ")

    if fails:
        worker.model.sizes["missing"] = 8
    with sealed(file_of(tmp_path)) as link:
        inode = Path(link).stat().st_ino
        answer = worker.rlfleet_load([link], {}, {}, digests=None, started=False)
        after = mappings()
        while not worker.rlfleet_hold([])["done"]:
            pass

    assert answer["ok"] is not fails
    assert (after, mappings()) == (1, 0)


class FakeDevice:
    """A device that says what it does."""

    has_buffers = False

    def __init__(self, said: Callable[[str], None], refuses: Exception | None = None) -> None:
        self._said = said
        self._refuses = refuses

    def open(self) -> None:
        if self._refuses is not None:
            raise self._refuses

    def register(self, content: mmap.mmap) -> int:
        del content
        self._said("register")
        return 1

    def unregister(self, address: int) -> None:
        del address
        self._said("unregister")


def held_once(
    worker: Any, now: str, base: Sequence[str] = (), *, samples: bool = False
) -> dict[str, Any]:
    """The answer once no work is left."""
    hold = partial(worker.rlfleet_hold, [now], base, samples=samples)
    answer = eventually(lambda: (a := hold())["done"] and a)
    return dict(answer)


def test_bytes_are_ready_and_those_of_before_are_free_before_versions_are_compared(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: Any = importlib.import_module("fleet_worker.engine.held")
    changes: Any = importlib.import_module("fleet_worker.engine.changes")
    done, compares = list[str](), threading.Event()

    def differing(*_: object) -> dict[str, Any]:
        done.append("compare")
        assert compares.wait(10)
        return {}

    worker._rlfleet_bytes = held.Held(FakeDevice(done.append))
    worker._rlfleet_unfit = lambda: None
    monkeypatch.setattr(changes, "differing", differing)
    with ExitStack() as open_files:
        names = ("before", "base", "now")
        before, base, now = (
            open_files.enter_context(sealed(file_of(tmp_path, name=name))) for name in names
        )
        held_once(worker, before)
        worker.rlfleet_hold([now], [base])
        eventually(lambda: "compare" in done)
        working = worker.rlfleet_hold([now], [base])
        compares.set()
        answer = held_once(worker, now, [base])

    assert done == ["register", "register", "unregister", "compare"]
    assert (working["done"], answer["done"]) == (False, True)


def test_versions_are_compared_that_the_device_does_not_register(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: Any = importlib.import_module("fleet_worker.engine.held")
    changes: Any = importlib.import_module("fleet_worker.engine.changes")
    refusal = held.RegistrationError("it registers nothing")
    worker._rlfleet_bytes = held.Held(FakeDevice([].append, refusal))
    worker._rlfleet_unfit = lambda: None
    monkeypatch.setattr(changes, "differing", lambda base, files, room, is_wanted: {})
    one, other = file_of(tmp_path, name="one"), file_of(tmp_path, name="other")
    with sealed(one) as base, sealed(other) as now:
        answer = held_once(worker, now, [base])
        keys = [frozenset({_key(each)}) for each in (base, now)]
        found = worker._rlfleet_finding().found(*keys)

    assert answer["why_not"] == "it registers nothing"
    assert found.tensors == {}


@pytest.mark.parametrize("unfit", ["of a model that no load changes in place", "broken"])
def test_a_process_that_loads_nothing_in_place_compares_nothing_and_says_why(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: str
) -> None:
    changes: Any = importlib.import_module("fleet_worker.engine.changes")
    in_place: Any = SimpleNamespace()

    def unfit_for_changes(model: Any, config: Any) -> str:
        assert (model, config) == (worker.model, worker.vllm_config)
        if unfit == "broken":
            raise AttributeError(unfit)
        return unfit

    in_place.unfit_for_changes = unfit_for_changes
    monkeypatch.setitem(sys.modules, "fleet_worker.engine.in_place", in_place)
    compared = list[object]()
    monkeypatch.setattr(changes, "differing", lambda *given: compared.append(given) or {})
    one, other = file_of(tmp_path, name="one"), file_of(tmp_path, name="other")
    with sealed(one) as base, sealed(other) as now:
        answer = held_once(worker, now, [base])
        keys = [frozenset({_key(each)}) for each in (base, now)]
        with pytest.raises(changes.NotInPlaceError, match=unfit):
            worker._rlfleet_finding().found(*keys)

    assert compared == []
    assert (answer["bytes"], answer["changes"]) == (other.stat().st_size, 0)


@pytest.mark.parametrize("change", ["load in place", "load", "update"])
def test_parameters_are_sampled_once_before_the_pause_of_a_change(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    changes: Any = importlib.import_module("fleet_worker.engine.changes")

    def write(*_: object, about_to_write: Callable[[], None]) -> None:
        about_to_write()

    members = {"change": write, "unfit_for_changes": lambda model, config: None}
    install(monkeypatch, {"fleet_worker.engine.in_place": members})
    monkeypatch.setattr(changes, "differing", lambda *_: {})
    sampled = list[str]()
    worker._rlfleet_sample = lambda: sampled.append(f"sample {len(sampled)}") or sampled[-1]
    one, other = file_of(tmp_path, name="one"), file_of(tmp_path, name="other")
    with sealed(one) as base, sealed(other) as now:
        worker._rlfleet_loaded = frozenset({_key(base)})
        for _ in range(2):
            held_once(worker, now, [base], samples=True)
        before = [*sampled]
        if change == "load in place":
            worker._rlfleet_change([now], [base], {}, {})
        elif change == "load":
            worker.rlfleet_load([now], {}, {}, digests=None, started=False)
        else:
            worker.rlfleet_remember()
        assert (before, sampled) == (["sample 0"], ["sample 0"])
        assert worker._rlfleet_memory == "sample 0"

        held_once(worker, base, [now], samples=True)
        assert sampled == ["sample 0", "sample 1"], "the model has changed"


def test_an_update_over_a_collective_is_compared_with_the_weights_before_it(
    worker: Any, tmp_path: Path
) -> None:
    sampled = list[str]()
    worker._rlfleet_sample = lambda: sampled.append("sample") or sampled[-1]
    worker._rlfleet_recorder = SimpleNamespace(remove=lambda: None)
    with sealed(file_of(tmp_path)) as now:
        held_once(worker, now, samples=True)
        assert sampled == []
        worker._rlfleet_stop_recording()
        held_once(worker, now, samples=True)

    assert sampled == ["sample"]


def _key(link: str) -> tuple[int, int]:
    state = os.stat(link)  # noqa: PTH116 - as the product does
    return state.st_dev, state.st_ino


def test_large_tensors_are_digested_ahead_of_the_model_within_bounds(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_tensors: Any = importlib.import_module("fleet_worker.engine.file_tensors")
    monkeypatch.setattr(file_tensors, "_AHEAD_BYTES", 16)
    names = [f"layers.{number:02}.weight" for number in range(20)]
    tensors: damage.Tensors = {name: ("U8", [7], name.encode()[:7]) for name in names}
    read, taken = list[str](), list[str]()
    content = file_tensors.Reader.content

    def noting(reader: Any, spec: Any) -> Any:
        read.append(spec.name)
        return content(reader, spec)

    monkeypatch.setattr(file_tensors.Reader, "content", noting)
    file = file_of(tmp_path, tensors)
    with ExitStack() as opened:
        reader = file_tensors.Reader(str(file), file_tensors.Digested(digests_of(file)))
        opened.callback(reader.close)
        for name, tensor in file_tensors.tensors_of([reader], {}, {}):
            taken.append(name)
            assert tensor.raw() == name.encode()[:7]
            assert len(read) <= len(taken) + 3

    assert taken == sorted(read) == names


def test_a_load_that_fails_midway_reports_a_changed_model_and_the_error(
    worker: Any, tmp_path: Path
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("shape mismatch " + "x" * 1000)

    worker.reload_weights = broken
    before = open_descriptors()
    answer = loaded(worker, file_of(tmp_path))

    assert (answer["ok"], answer["touched"]) == (False, True)
    assert answer["error"].startswith("RuntimeError: shape mismatch")
    assert len(answer["error"]) <= 500
    assert len(worker.model.dropped_before) == 2, "no layer is left without tensors"
    assert not left_open(before)


@pytest.mark.parametrize("fails", [False, True])
def test_the_models_own_loader_is_restored(worker: Any, tmp_path: Path, fails: bool) -> None:
    file = file_of(tmp_path)
    loaded(worker, file)
    if fails:
        worker.model.sizes["other__weight"] = 4
    loaded(worker, file)

    assert "load_weights" not in vars(worker.model)
    assert worker.model.loads == 2


# --- what was written -----------------------------------------------------------------------------


def test_a_parameter_that_no_tensor_wrote_fails_the_load(worker: Any, tmp_path: Path) -> None:
    worker.model.sizes |= {"b__weight": 4, "a__weight": 4}
    answer = loaded(worker, file_of(tmp_path))

    assert (answer["ok"], answer["touched"]) == (False, True)
    assert "2 missing, such as a.weight" in answer["error"]


def _single_number(worker: Any) -> None:
    worker.model.sizes["cache__scale"] = 1


def _quantised(worker: Any) -> None:
    worker.model.sizes["packed__weight"] = 4
    worker.vllm_config.model_config.quantization = "fp8"


def _silent(worker: Any) -> None:
    worker.model.sizes["unknown__weight"] = 4
    worker.model.tells = False


@pytest.mark.parametrize("excuse", [_single_number, _quantised, _silent])
def test_parameters_that_no_checkpoint_holds_are_not_required(
    worker: Any, tmp_path: Path, excuse: Callable[[Any], None]
) -> None:
    excuse(worker)

    assert loaded(worker, file_of(tmp_path))["ok"]


# --- transfers and probes -------------------------------------------------------------------------


@pytest.mark.parametrize("connected", [False, True])
def test_a_transfer_is_cancelled_with_or_without_a_group(worker: Any, connected: bool) -> None:
    resets: list[int] = []
    if connected:
        engine = SimpleNamespace(reset_weight_update_target=lambda: resets.append(1))
        worker.weight_transfer_engine = engine

    assert worker.rlfleet_cancel_transfer() == {"ok": True}
    assert worker._weight_update_active is False
    assert len(resets) == connected
    assert worker.model.dropped_before == [0]


@pytest.mark.parametrize("started", [False, True])
def test_values_that_vllm_loses_fail_all_loads_but_that_of_the_start(
    worker: Any, layerwise: Callable[..., None], tmp_path: Path, started: bool
) -> None:
    layerwise()

    answer = loaded(worker, file_of(tmp_path), started=started)

    assert answer["ok"] is started


def test_values_that_vllm_loses_fail_a_transfer_before_it_ends(
    worker: Any, layerwise: Callable[..., None]
) -> None:
    ended: list[int] = []
    worker.start_weight_update = lambda: None
    worker.finish_weight_update = lambda: ended.append(1)
    worker.rlfleet_start_transfer()
    layerwise()
    worker.model.written["embed.weight"] = ((1,), b"")
    worker.model.load_weights(())

    with pytest.raises(RuntimeError, match=r"embed\.weight"):
        worker.rlfleet_finish_transfer()
    assert ended == []


def test_a_transfer_records_what_it_writes_until_it_ends(worker: Any) -> None:
    worker.start_weight_update = worker.finish_weight_update = lambda: None
    for end in (worker.rlfleet_finish_transfer, worker.rlfleet_cancel_transfer):
        worker.rlfleet_start_transfer()
        assert worker.model.reshaped_before
        assert "load_weights" in vars(worker.model)
        end()
        assert "load_weights" not in vars(worker.model)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_logit_of_nan_fails_the_check(worker: Any, bad: float) -> None:
    worker.hidden = FakeTensor([0.5] * 7 + [bad], DTYPES["float32"])
    answer = worker.rlfleet_probe()

    assert answer["ok"] is False
    assert "logits" in answer["error"]


class FakeIntermediateTensors:
    """The output of a stage of a pipeline; only the last stage has logits."""

    def __init__(self, **values: list[float]) -> None:
        self.tensors = {n: FakeTensor(v, DTYPES["float32"]) for n, v in values.items()}


GOOD_STAGE = {"hidden_states": [0.5] * 8, "residual": [0.25] * 8}
NAN_STAGE = {"hidden_states": [0.5] * 8, "residual": [0.25] * 7 + [float("nan")]}


def test_a_pipeline_stage_is_checked_by_its_output(worker: Any) -> None:
    worker.hidden, worker.output = None, FakeIntermediateTensors(**GOOD_STAGE)
    assert worker.rlfleet_probe() == {"ok": True, "error": None}
    worker.output = FakeIntermediateTensors(**NAN_STAGE)
    answer = worker.rlfleet_probe()

    assert answer["ok"] is False
    assert "residual" in answer["error"]


def test_padding_after_the_tokens_of_a_stage_is_not_checked(worker: Any) -> None:
    worker.hidden = FakeTensor([], DTYPES["float32"])
    worker.output = FakeIntermediateTensors(hidden_states=[0.5] * 8 + [float("nan")])

    assert worker.rlfleet_probe()["ok"]


def test_a_stage_without_output_fails_the_check(worker: Any) -> None:
    worker.hidden, worker.output = None, None

    assert worker.rlfleet_probe()["ok"] is False


def test_a_failed_forward_pass_is_reported(worker: Any) -> None:
    worker.hidden = RuntimeError("no kernel")
    answer = worker.rlfleet_probe()

    assert answer == {"ok": False, "error": "the forward pass failed: RuntimeError: no kernel"}


def test_the_first_call_to_an_engine_asks_for_the_matrix_registers(
    extension: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a short first request ends vLLM on a CPU with AMX (seen)."""
    asked: list[bool] = []
    cpu = SimpleNamespace(_init_amx=lambda: asked.append(True))
    monkeypatch.setattr(extension.torch, "cpu", cpu, raising=False)

    worker.rlfleet_missing_names()

    assert asked == [True]


def test_an_engine_without_a_required_name_reports_it(worker: Any) -> None:
    missing = worker.rlfleet_missing_names()

    assert any(name.startswith("model_runner of vllm.v1.worker") for name in missing)

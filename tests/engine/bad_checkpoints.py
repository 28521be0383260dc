"""Checkpoints that a worker refuses, each with its reason and words of its message."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of


@dataclass(frozen=True)
class Place:
    """Where a test builds its bad checkpoint: a folder below the root, one outside of it."""

    weights: Weights
    inside: Path
    outside: Path

    def copy(self, of: Path | None = None) -> Path:
        return copy_of(of or self.weights.b, self.inside / "bad")


def _missing(place: Place) -> Path:
    return place.inside / "nothing-here"


def _file_not_directory(place: Place) -> Path:
    return place.weights.b / "model.safetensors"


def _outside(place: Place) -> Path:
    return copy_of(place.weights.b, place.outside / "elsewhere")


def _dots(place: Place) -> Path:
    copy_of(place.weights.b, place.outside / "elsewhere")
    return place.weights.root / ".." / place.outside.name / "elsewhere"


def _linked_directory(place: Place) -> Path:
    copy_of(place.weights.b, place.outside / "elsewhere")
    link = place.inside / "link"
    link.symlink_to(place.outside / "elsewhere")
    return link


def _linked_file(place: Place) -> Path:
    bad = place.copy()
    shutil.move(bad / damage.WEIGHTS, place.outside / damage.WEIGHTS)
    (bad / damage.WEIGHTS).symlink_to(place.outside / damage.WEIGHTS)
    return bad


def _no_weights(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).unlink()
    return bad


def _no_config(place: Place) -> Path:
    bad = place.copy()
    (bad / "config.json").unlink()
    return bad


def _missing_shard(place: Place) -> Path:
    bad = place.copy(place.weights.sharded)
    (bad / "model-00002-of-00002.safetensors").unlink()
    return bad


def _index_that_climbs(place: Place) -> Path:
    bad = place.copy(place.weights.sharded)
    index = bad / "model.safetensors.index.json"
    name = "model-00002-of-00002.safetensors"
    index.write_text(index.read_text().replace(name, f"../{place.weights.b.name}/{damage.WEIGHTS}"))
    return bad


def _index_that_lies(place: Place) -> Path:
    bad = place.copy(place.weights.sharded)
    index = bad / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model.norm.weight", "model.other.weight"))
    return bad


def _cut(length: float) -> Callable[[Place], Path]:
    def build(place: Place) -> Path:
        bad = place.copy()
        size = (bad / damage.WEIGHTS).stat().st_size
        os.truncate(bad / damage.WEIGHTS, length if isinstance(length, int) else int(size * length))
        return bad

    return build


def _too_long(place: Place) -> Path:
    bad = place.copy()
    with (bad / damage.WEIGHTS).open("ab") as file:
        file.write(b"\0" * 16)
    return bad


def _wide(place: Place) -> Path:
    return place.weights.wide


def _deep(place: Place) -> Path:
    return place.weights.deep


def _shallow(place: Place) -> Path:
    return place.weights.shallow


def _other_architecture(place: Place) -> Path:
    bad = place.copy()
    damage.edit_config(bad, architectures=["LlamaForCausalLM"], model_type="llama")
    return bad


def _many_labels(place: Place) -> Path:
    bad = place.copy()
    damage.edit_config(bad, num_labels=1_000_000)
    return bad


def _other_rotation(place: Place) -> Path:
    bad = place.copy()
    rope = {"rope_theta": 5000.0, "rope_type": "default"}
    damage.edit_config(bad, rope_parameters=rope)
    return bad


def _edited(edit: Callable[[damage.Tensors], None]) -> Callable[[Place], Path]:
    def build(place: Place) -> Path:
        bad = place.copy()
        damage.edit_tensors(bad, edit)
        return bad

    return build


def _to_float16(tensors: damage.Tensors) -> None:
    _, shape, data = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = ("F16", shape, data)


def _transpose(tensors: damage.Tensors) -> None:
    dtype, shape, data = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = (dtype, shape[::-1], data)


def _add(tensors: damage.Tensors) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = ("BF16", [128], bytes(256))


def _drop(tensors: damage.Tensors) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _one_nan(tensors: damage.Tensors) -> None:
    damage.fill(tensors, "model.layers.1.mlp.up_proj.weight", float("nan"), first=1)


def _one_infinity(tensors: damage.Tensors) -> None:
    damage.fill(tensors, "model.norm.weight", float("inf"), first=1)


def _pickled(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).rename(bad / "pytorch_model.bin")
    return bad


def _pickle_in_disguise(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).write_bytes(b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR." * 10)
    return bad


def _pipe(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).unlink()
    os.mkfifo(bad / damage.WEIGHTS)
    return bad


def _unreadable(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).chmod(0)
    return bad


def _closed_directory(place: Place) -> Path:
    bad = place.copy()
    bad.chmod(0)
    return bad


def _empty_file(place: Place) -> Path:
    bad = place.copy()
    (bad / damage.WEIGHTS).write_bytes(b"")
    return bad


def _huge_header(place: Place) -> Path:
    bad = place.copy()
    with (bad / damage.WEIGHTS).open("r+b") as file:
        file.write(struct.pack("<Q", 1 << 62))
    return bad


def _header_beyond_the_file(place: Place) -> Path:
    bad = place.copy()
    with (bad / damage.WEIGHTS).open("r+b") as file:
        file.write(struct.pack("<Q", 50_000_000))
    return bad


def _header_is_no_json(place: Place) -> Path:
    bad = place.copy()
    with (bad / damage.WEIGHTS).open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xfe\xfd")
    return bad


def _zeros_at_the_end(place: Place) -> Path:
    """A file after a crash: its length was written before its content."""
    bad = place.copy()
    size = (bad / damage.WEIGHTS).stat().st_size
    (bad / damage.WEIGHTS).write_bytes(bytes(size))
    return bad


def _twice_in_two_shards(place: Place) -> Path:
    bad = place.copy(place.weights.sharded)
    first, second = (bad / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    tensors = damage.read_tensors(second)
    name, tensor = next(iter(damage.read_tensors(first).items()))
    damage.write_tensors(second, {**tensors, name: tensor})
    return bad


def _shards_without_an_index(place: Place) -> Path:
    """Read without an index, every file counts: one that is left over from another version, too."""
    bad = place.copy(place.weights.sharded)
    (bad / "model.safetensors.index.json").unlink()
    for number, shard in enumerate(sorted(bad.glob("*.safetensors"))):
        shard.rename(bad / f"part-{number}.safetensors")
    shutil.copy(place.weights.c / damage.WEIGHTS, bad / "left-over.safetensors")
    return bad


def _two_sets(place: Place) -> Path:
    """Shards of an earlier save, and the file of a later one."""
    bad = place.copy(place.weights.sharded)
    shutil.copy(place.weights.c / damage.WEIGHTS, bad / damage.WEIGHTS)
    return bad


def _empty_index(place: Place) -> Path:
    bad = place.copy(place.weights.sharded)
    (bad / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    return bad


def _quantised(place: Place) -> Path:
    bad = place.copy()
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    damage.edit_config(bad, quantization_config=quantised)
    damage.edit_tensors(bad, _to_float8)
    return bad


def _to_float8(tensors: damage.Tensors) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    _, shape, data = tensors[name]
    tensors[name] = ("F8_E4M3", shape, bytes(len(data) // 2))
    tensors[name + "_scale"] = ("F32", [1], bytes(4))


def _broken_config(place: Place) -> Path:
    bad = place.copy()
    (bad / "config.json").write_text("{")
    return bad


CASES = [
    pytest.param(_missing, "SourceAbsent", "does not exist", id="missing directory"),
    pytest.param(_file_not_directory, "SourceNotFound", "not a directory", id="a file"),
    pytest.param(_outside, "SourceOutsideRoots", "not below", id="outside of the roots"),
    pytest.param(_dots, "SourceOutsideRoots", "not below", id="out of the roots by dots"),
    pytest.param(_linked_directory, "SourceOutsideRoots", "a link", id="linked directory"),
    pytest.param(_linked_file, "SourceOutsideRoots", "a link", id="linked weight file"),
    pytest.param(_no_weights, "SourceNotFound", "no weight files", id="no weight files"),
    pytest.param(_no_config, "SourceNotFound", "config.json", id="no config"),
    pytest.param(_missing_shard, "SourceNotFound", "model-00002", id="missing shard"),
    pytest.param(_index_that_climbs, "CheckpointMalformed", "own directory", id="index climbs"),
    pytest.param(_index_that_lies, "CheckpointMalformed", "does not match", id="index lies"),
    pytest.param(_cut(5), "CheckpointTruncated", "first 8 bytes", id="cut in the length"),
    pytest.param(_cut(500), "CheckpointTruncated", "within its header", id="cut in the header"),
    pytest.param(_cut(0.9), "CheckpointTruncated", "header describes", id="cut in the data"),
    pytest.param(_too_long, "CheckpointTruncated", "header describes", id="bytes too many"),
    pytest.param(_wide, "CheckpointMismatch", "hidden_size is 96", id="wrong width"),
    pytest.param(_deep, "CheckpointMismatch", "num_hidden_layers is 3", id="a layer too many"),
    pytest.param(_shallow, "CheckpointMismatch", "num_hidden_layers is 1", id="a layer too few"),
    pytest.param(
        _other_architecture,
        "CheckpointMismatch",
        'model_type is "llama" where the running model has "qwen3"',
        id="wrong architecture",
    ),
    pytest.param(_many_labels, "CheckpointMismatch", "num_labels is 1000000", id="many labels"),
    pytest.param(_other_rotation, "CheckpointMismatch", "rope", id="wrong rotation base"),
    pytest.param(_edited(_to_float16), "CheckpointMismatch", "another type", id="wrong dtype"),
    pytest.param(_edited(_transpose), "CheckpointMismatch", "another shape", id="wrong shape"),
    pytest.param(_edited(_add), "CheckpointMismatch", "model lacks", id="extra tensor"),
    pytest.param(_edited(_drop), "CheckpointMismatch", "lacks 1 tensor", id="missing tensor"),
    pytest.param(_edited(_one_nan), "CheckpointNotFinite", "up_proj", id="one NaN"),
    pytest.param(_edited(_one_infinity), "CheckpointNotFinite", "norm", id="one infinity"),
    pytest.param(_pickled, "CheckpointMalformed", "pickled", id="pickle file"),
    pytest.param(_pickle_in_disguise, "CheckpointMalformed", "not a safe", id="named safetensors"),
    pytest.param(_pipe, "CheckpointMalformed", "not a regular file", id="a pipe"),
    pytest.param(_unreadable, "SourceUnreadable", "no permission to read", id="unreadable file"),
    pytest.param(
        _closed_directory,
        "SourceUnreadable",
        "no permission to read",
        id="unreadable directory",
    ),
    pytest.param(_empty_file, "CheckpointTruncated", "first 8 bytes", id="zero bytes"),
    pytest.param(_huge_header, "CheckpointMalformed", "not a safe", id="huge header length"),
    pytest.param(
        _header_beyond_the_file,
        "CheckpointTruncated",
        "within its header",
        id="header too long",
    ),
    pytest.param(_header_is_no_json, "CheckpointMalformed", "JSON", id="header is not JSON"),
    pytest.param(_zeros_at_the_end, "CheckpointMalformed", "JSON", id="nothing but zeros"),
    pytest.param(
        _twice_in_two_shards,
        "CheckpointMalformed",
        "another file",
        id="a tensor in two shards",
    ),
    pytest.param(
        _shards_without_an_index,
        "CheckpointAmbiguous",
        "another file",
        id="a file left over",
    ),
    pytest.param(
        _two_sets, "CheckpointAmbiguous", "and model.safetensors", id="two sets of weights"
    ),
    pytest.param(_empty_index, "CheckpointMalformed", "weight_map", id="empty index"),
    pytest.param(_quantised, "CheckpointMismatch", "quantization_config", id="quantised weights"),
    pytest.param(_broken_config, "CheckpointMalformed", "JSON", id="config is not JSON"),
]

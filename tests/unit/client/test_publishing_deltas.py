"""`publish` with weights: which versions are deltas, and what errors leave behind."""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.deltas import apply, metadata, read_tensors
from tests.support.fake_objects import FakeObjects, condition, patches
from tests.support.pages import blocks
from tests.support.present import present

from fleet_worker.process.manifest import digest_in
from rlfleet import (
    AsyncWeights,
    Deltas,
    Forbidden,
    NotConfigured,
    NotWritten,
    Refused,
    UnusableWeights,
    Weights,
)
from rlfleet.deltas import directories, sources
from rlfleet.deltas.sources import FromStateDict
from rlfleet.deltas.writing import write_full

SIZE = 1000
State = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A directory with the configuration of the model."""
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "generation_config.json").write_text("{}")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def objects(volume: Path) -> FakeObjects:
    return FakeObjects(source={"path": f"{volume}/step_{{version}}"})


@pytest.fixture
def weights(objects: FakeObjects) -> Weights:
    return Weights("policy", objects=objects)


def state(seed: int, **more: Any) -> State:
    """Weights of which those of another seed differ in 1 to 2 of 2000 elements."""
    body = np.ones(SIZE, np.float32)
    body[seed % SIZE] = 2
    return {"body": body, "head": np.zeros(SIZE, np.float16)} | more


def save(given: State, folder: Path, config: Path) -> Path:
    """A full checkpoint, as a trainer saves it."""
    folder.mkdir(parents=True)
    write_full(FromStateDict(given, config), folder, None, lambda _: None)
    return folder


def kinds(volume: Path) -> dict[str, str]:
    """Version → the version that it is a delta of; empty if it is full."""
    return {f.name: metadata(f).get("base_version", "") for f in sorted(volume.iterdir())}


def published(objects: FakeObjects) -> list[tuple[str, str]]:
    """The versions and digests that the fleet got."""
    return [(body["spec"]["version"], body["spec"]["digest"]) for body in patches(objects)]


def test_the_first_version_is_full_and_the_next_ones_are_deltas_with_the_digest_of_a_full_one(
    weights, objects, volume, config, tmp_path
):
    for step in (43, 44, 45):
        weights.publish(step, state_dict=state(step), config_from=config, delta=True)

    assert kinds(volume) == {"step_43": "", "step_44": "43", "step_45": "44"}
    result = read_tensors(volume / "step_43")
    digests = []
    for step in (43, 44, 45):
        if step > 43:
            result = apply(result, volume / f"step_{step}")
        full = save(state(step), tmp_path / f"full_{step}", config)
        assert result == read_tensors(full)
        digests.append((str(step), digest_in(str(full))))
    assert published(objects) == digests
    assert weights.written is not None
    assert weights.written.changed_share == pytest.approx(2 / (2 * SIZE))
    assert weights.written.base_version == "44"
    figures = weights.metrics()
    assert figures["rlfleet/written_bytes"] == sum(
        f.stat().st_size for f in (volume / "step_45").iterdir()
    )
    assert figures["rlfleet/changed_share"] == weights.written.changed_share


def test_a_version_from_a_directory_or_a_model_is_the_same_delta(objects, volume, config, tmp_path):
    def model(step: int) -> Any:
        def save_pretrained(folder: str) -> None:
            save(state(step), Path(folder) / "made", config)
            for path in (Path(folder) / "made").iterdir():
                path.rename(Path(folder) / path.name)
            (Path(folder) / "made").rmdir()

        return SimpleNamespace(save_pretrained=save_pretrained)

    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        "state_dict": lambda step: {"state_dict": state(step), "config_from": config},
        "directory": lambda step: {"directory": save(state(step), tmp_path / f"{step}", config)},
        "model": lambda step: {"model": model(step)},
    }
    contents = []
    for way, given in ways.items():
        weights = Weights("policy", objects=objects)
        for step in (43, 44):
            weights.publish(step, path=f"{volume}/{way}/step_{step}", delta=True, **given(step))
        assert kinds(volume / way) == {"step_43": "", "step_44": "43"}
        contents.append({f.name: f.read_bytes() for f in sorted((volume / way).glob("step_44/*"))})
    assert contents[0] == contents[1] == contents[2]


def test_without_delta_every_version_is_full(weights, volume, config):
    for step in (43, 44):
        weights.publish(step, state_dict=state(step), config_from=config)

    assert kinds(volume) == {"step_43": "", "step_44": ""}


def test_every_kth_version_is_full(weights, volume, config):
    for step in range(41, 49):
        weights.publish(
            step, state_dict=state(step), config_from=config, delta=Deltas(anchor_every=3)
        )

    assert [name for name, base in kinds(volume).items() if not base] == [
        "step_41",
        "step_44",
        "step_47",
    ]


def test_a_version_that_changes_more_than_a_share_is_full_and_the_next_one_a_delta_of_it(
    weights, volume, config
):
    third = state(43)
    third["head"][: SIZE // 2] = 1  # a quarter of all elements
    options = Deltas(max_changed_share=0.2)
    for step, given in ((42, state(42)), (43, third), (44, third)):
        weights.publish(step, state_dict=given, config_from=config, delta=options)

    assert kinds(volume) == {"step_42": "", "step_43": "", "step_44": "43"}
    assert read_tensors(volume / "step_43")["head"] == third["head"].tobytes()
    assert apply(read_tensors(volume / "step_43"), volume / "step_44") == read_tensors(
        volume / "step_43"
    )


def change_spec(objects: FakeObjects) -> None:
    objects.desire(version="42")


def stall(objects: FakeObjects) -> None:
    objects.stall("DeltaMismatch")


@pytest.mark.parametrize(
    ("before", "given", "more", "why"),
    [
        (None, state(44, new=np.zeros(1)), {}, "it has new tensors, such as new"),
        (None, {"body": np.zeros(SIZE, np.float32)}, {}, "it lacks tensors, such as head"),
        (None, state(44, head=np.zeros(SIZE)), {}, "head is F64 [1000], and was F16 [1000]"),
        (None, state(44), {"run_id": "other"}, "version 43 is of another run"),
        (None, state(44), {"path": "/elsewhere/step_44"}, "workers look for version 43 next to it"),
        (change_spec, state(44), {}, "the object asks for version 42, not for 43"),
        (stall, state(44), {}, "version 43 has stalled: DeltaMismatch"),
    ],
)
def test_where_a_delta_has_no_sure_base_the_version_is_full_and_says_why(
    weights, objects, volume, config, before, given, more, why
):
    weights.publish(43, state_dict=state(43), config_from=config, delta=True)
    if before is not None:
        before(objects)

    weights.publish(
        44,
        state_dict=given,
        config_from=config,
        delta=True,
        written_to=volume / "step_44",
        **more,
    )

    assert kinds(volume) == {"step_43": "", "step_44": ""}
    assert why in present(weights.written).why_full
    again = {name: str(value).replace("44", "45") for name, value in more.items()}
    weights.publish(
        45,
        state_dict=given,
        config_from=config,
        delta=True,
        written_to=volume / "step_45",
        **again,
    )
    assert kinds(volume)["step_45"] == "44"


def test_after_a_request_that_failed_the_next_version_is_full(weights, objects, volume, config):
    weights.publish(43, state_dict=state(43), config_from=config, delta=True)
    objects.forbidden = {"patch weightversions"}
    with pytest.raises(Forbidden):
        weights.publish(44, state_dict=state(44), config_from=config, delta=True)
    objects.forbidden = set()

    weights.publish(45, state_dict=state(45), config_from=config, delta=True)

    assert kinds(volume) == {"step_43": "", "step_44": "43", "step_45": ""}


def test_a_version_that_is_written_again_is_never_a_delta_of_itself(weights, volume, config):
    """The first time it was written to another place, or its directory was deleted."""
    for place in ("elsewhere", "volume"):
        weights.publish(
            43,
            state_dict=state(43),
            config_from=config,
            delta=True,
            written_to=volume / place / "step_43",
        )

    assert kinds(volume / "volume") == {"step_43": ""}
    assert "version 43 again" in present(weights.written).why_full


def test_a_version_that_no_worker_finds_is_not_a_base_and_its_refusal_says_where_it_is(
    objects, volume, config
):
    absent = condition("Ready", "WaitingForCheckpoint", 2, status="False", message="it is absent")
    progressing = condition("Progressing", "WaitingForCheckpoint", 2)
    objects.obeys = False
    objects.script.append(lambda: objects.look("Pending", absent, progressing))
    weights = Weights("policy", objects=objects)

    with pytest.raises(Refused, match="WaitingForCheckpoint") as refused:
        weights.publish(43, state_dict=state(43), config_from=config, delta=True)
    assert f"{volume}/step_43" in refused.value.message
    assert "written_to=" in refused.value.message
    weights.publish(44, state_dict=state(44), config_from=config, delta=True, wait=False)

    assert kinds(volume) == {"step_43": "", "step_44": ""}
    assert "no worker has found version 43" in present(weights.written).why_full


def test_another_configuration_makes_a_version_full(weights, volume, config):
    weights.publish(43, state_dict=state(43), config_from=config, delta=True)
    (config / "generation_config.json").write_text('{"top_k": 1}')

    weights.publish(44, state_dict=state(44), config_from=config, delta=True)

    assert kinds(volume)["step_44"] == ""
    assert (volume / "step_44/generation_config.json").read_text() == '{"top_k": 1}'


def test_after_a_restart_the_first_version_is_full(objects, volume, config):
    for step in (43, 44):
        Weights("policy", objects=objects).publish(
            step, state_dict=state(step), config_from=config, delta=True
        )

    assert kinds(volume) == {"step_43": "", "step_44": ""}


@pytest.mark.parametrize("step", [43, 44], ids=["full", "delta"])
def test_a_full_disk_leaves_nothing_and_the_next_version_is_full(
    weights, objects, volume, config, monkeypatch, step
):
    def publish(number: int) -> None:
        weights.publish(number, state_dict=state(number), config_from=config, delta=True)

    for number in range(43, step):
        publish(number)
    before = kinds(volume) if volume.exists() else {}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(directories.os, "fsync", full)
        with pytest.raises(NotWritten, match=f"step_{step} is not written: No space left"):
            publish(step)
    assert (kinds(volume) if volume.exists() else {}) == before
    assert [version for version, _ in published(objects)] == [str(n) for n in range(43, step)]

    publish(step)

    assert kinds(volume)[f"step_{step}"] == ""
    assert digest_in(str(volume / f"step_{step}")) == published(objects)[-1][1]


@pytest.mark.parametrize("step", [43, 44], ids=["full", "delta"])
def test_a_directory_appears_complete_with_its_index_last(
    weights, volume, config, monkeypatch, step
):
    monkeypatch.setattr("rlfleet.deltas.layout._SHARD_BYTES", 1)
    seen: list[tuple[set[str], list[str]]] = []
    order: list[str] = []
    new_file = directories.new_file

    def look(path: Path) -> Any:
        order.append(path.name)
        shown = {f.name for f in volume.iterdir() if not f.name.startswith(".")}
        seen.append((shown, order))
        return new_file(path)

    for number in range(43, step):
        weights.publish(number, state_dict=state(number), config_from=config, delta=True)
    for module in ("directories", "writing"):
        monkeypatch.setattr(f"rlfleet.deltas.{module}.new_file", look)
    weights.publish(step, state_dict=state(step), config_from=config, delta=True)

    assert order[-1] == "model.safetensors.index.json"
    assert f"step_{step}" not in set().union(*(shown for shown, _ in seen))
    assert (volume / f"step_{step}" / order[-1]).exists()


def test_a_version_that_has_its_name_is_published(weights, objects, volume, config, monkeypatch):
    sync = directories._sync

    def fail_for_parents(folder: Path) -> None:
        if folder == volume:
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    monkeypatch.setattr(directories, "_sync", fail_for_parents)

    weights.publish(43, state_dict=state(43), config_from=config, delta=True)

    assert published(objects) == [("43", digest_in(str(volume / "step_43")))]


def test_a_version_never_replaces_files_that_are_there(weights, objects, volume, config):
    (volume / "step_43").mkdir(parents=True)
    (volume / "step_43/model.safetensors").write_text("served")

    with pytest.raises(FileExistsError, match="step_43 has files"):
        weights.publish(43, state_dict=state(43), config_from=config, delta=True)

    assert (volume / "step_43/model.safetensors").read_text() == "served"
    assert published(objects) == []


def test_a_directory_that_another_writer_makes_meanwhile_stays_as_it_is(
    weights, volume, config, monkeypatch
):
    rename = directories._rename

    def late(folder: Path, target: Path) -> None:
        target.mkdir()
        (target / "model.safetensors").write_text("other")
        rename(folder, target)

    monkeypatch.setattr(directories, "_rename", late)

    with pytest.raises(FileExistsError, match="another writer"):
        weights.publish(43, state_dict=state(43), config_from=config, delta=True)

    assert {f.name: [g.name for g in f.iterdir()] for f in volume.iterdir()} == {
        "step_43": ["model.safetensors"]
    }


def test_files_that_change_during_the_read_are_refused(
    weights, volume, config, tmp_path, monkeypatch
):
    folder = save(state(43), tmp_path / "local", config)
    read = sources.FromDirectory.read

    def rewriting(self: Any, *arguments: Any) -> Any:
        (folder / "model.safetensors").touch()
        return read(self, *arguments)

    monkeypatch.setattr(sources.FromDirectory, "read", rewriting)

    with pytest.raises(UnusableWeights, match="changed while it was read"):
        weights.publish(43, directory=folder, delta=True)

    assert list(volume.iterdir()) == []


def bare(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04pickle")


def nameless(folder: Path) -> None:
    (folder / "config.json").unlink()


def doubled(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')


def parts(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for rank in (1, 2):
        (folder / f"shard-0000{rank}-model-00001-of-00001.safetensors").write_bytes(weights)


def mixed(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_text("adapter")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (mixed, "has weights next to model.safetensors, such as adapter_model"),
        (bare, "has no .safetensors file"),
        (short, "but its header describes"),
        (pickled, "is not a whole safetensors file"),
        (nameless, "has no config.json"),
        (doubled, "name different files"),
        (parts, "body is in shard-00001-.* and in shard-00002-.*, as parts of a sharded model are"),
    ],
)
def test_a_directory_that_holds_no_whole_checkpoint_is_refused(
    weights, objects, config, tmp_path, damage, words
):
    folder = save(state(43), tmp_path / "local", config)
    damage(folder)

    with pytest.raises(UnusableWeights, match=words):
        weights.publish(43, directory=folder, delta=True)

    assert published(objects) == []


class FakeSharded:
    """A tensor as FSDP shards it."""

    def full_tensor(self) -> None:
        """Gather it."""


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (FakeSharded(), "is a part of a sharded tensor; gather it first"),
        (np.zeros(2, ">f4"), "is of type >f4"),
        (SimpleNamespace(device=SimpleNamespace(type="meta")), "has no data"),
        ([1.0], "is of type list"),
    ],
)
def test_a_tensor_that_cannot_be_written_is_named(weights, config, tensor, words):
    with pytest.raises(UnusableWeights, match=words):
        weights.publish(43, state_dict={"a": tensor}, config_from=config, delta=True)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"delta": True}, Refused),
        ({"directory": "/a", "model": SimpleNamespace(save_pretrained=print)}, ValueError),
        ({"state_dict": {}}, ValueError),
        ({"directory": "/a", "digest": "sha256:" + "0" * 64}, Refused),
    ],
)
def test_contradicting_arguments_change_nothing(weights, objects, given, error):
    with pytest.raises(error):
        weights.publish(43, **given)

    assert objects.requests == []


@pytest.mark.parametrize(
    "options", [{"anchor_every": 0}, {"anchor_every": 65}, {"max_changed_share": 1.1}]
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be between"):
        Deltas(**options)


def test_without_the_libraries_the_error_names_the_extra(weights, config, monkeypatch):
    find = builtins.__import__

    def lacking(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "rlfleet.deltas":
            raise ModuleNotFoundError("No module named 'zstandard'", name="zstandard")
        return find(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", lacking)

    with pytest.raises(NotConfigured, match=r"zstandard, .*extra delta"):
        weights.publish(43, state_dict=state(43), config_from=config, delta=True)


def test_other_tasks_run_while_a_version_is_written(objects, volume, config, monkeypatch):
    """The real places for asyncio write in a thread."""
    from rlfleet.kube import AsyncKube  # noqa: PLC0415 - the place is not used otherwise

    threads: list[int] = []

    async def publish() -> None:
        monkeypatch.setattr(
            objects, "in_background", lambda work: AsyncKube.in_background(objects, work)
        )
        weights = AsyncWeights("policy", objects=objects)
        await weights.publish(43, state_dict=state(43), config_from=config, delta=True)

    def note(*_: object) -> None:
        threads.append(threading.get_ident())

    monkeypatch.setattr("rlfleet.deltas.directories._sync", note)
    asyncio.run(publish())

    assert threads
    assert threading.get_ident() not in threads
    assert kinds(volume) == {"step_43": ""}


def test_a_machine_that_mounts_the_volume_elsewhere_writes_there(objects, tmp_path, config):
    objects.desire(source={"path": "/weights/step_{version}"})
    weights = Weights("policy", objects=objects)
    for step in (43, 44):
        weights.publish(
            step,
            state_dict=state(step),
            config_from=config,
            written_to=tmp_path / f"mine/step_{step}",
            delta=True,
        )

    assert kinds(tmp_path / "mine") == {"step_43": "", "step_44": "43"}
    assert present(objects.weights)["spec"]["source"]["path"] == "/weights/step_{version}"


def test_what_is_written_can_be_read_by_other_users(weights, volume, config):
    before = os.umask(0o077)
    try:
        weights.publish(43, state_dict=state(43), config_from=config, delta=True)
    finally:
        os.umask(before)

    assert (volume / "step_43").stat().st_mode & 0o555 == 0o555
    assert all(f.stat().st_mode & 0o444 == 0o444 for f in (volume / "step_43").iterdir())


def test_the_loop_of_the_page_publishes_deltas(objects, tmp_path, config, monkeypatch):
    (program,) = (
        block
        for block in blocks("docs/how-to/publish-deltas.md", "python")
        if block.startswith("# A training loop")
    )
    places = (("/models/start", config), ("/weights/run-7", tmp_path / "run-7"))
    for there, here in places:
        program = program.replace(there, str(here))
    monkeypatch.setattr("rlfleet.Weights", lambda *_, **__: Weights("policy", objects=objects))
    models = ((n, SimpleNamespace(state_dict=lambda n=n: state(n))) for n in (43, 44))

    exec(compile(program, "page", "exec"), {"training": lambda: models})  # noqa: S102 - our own page

    assert kinds(tmp_path / "run-7") == {"step_43": "", "step_44": "43"}

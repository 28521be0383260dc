"""Staging: one at a time, the newest wins, and a refusal changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import FakeClock
from tests.support.descriptors import left_open, open_descriptors
from tests.support.present import present
from tests.support.refusals import refusal_from
from tests.support.threads import threads_named
from tests.support.tiny import TinyInspector, tiny_rules, write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import refused, stage_request

from fleet_worker.checkpoint import store_threads
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.protocol import Epoch, Reason, Source, StageRequest


class SlowInspector(TinyInspector):
    """Waits in the finite check of one checkpoint until the test continues or cancels it."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.before_finite = self._wait

    def _wait(self, check_cancelled: Callable[[], None]) -> None:
        self.entered.set()
        # With a limit: a thread that never ends would keep a failed test run from ending.
        for _ in range(1000):
            if self.let_go.wait(0.005):
                return
            check_cancelled()


def staging(root: Path, inspector: TinyInspector | None = None, budget: int = 1 << 20) -> Staging:
    rules, initial = tiny_rules(root, inspector, budget_bytes=budget)
    initial.checkpoint.close()

    async def make_room(_size: int) -> int:
        return rules.budget_bytes

    return Staging(rules, Labels(), FakeClock(), make_room)


async def test_staging_the_same_version_again_returns_at_once(tmp_path: Path) -> None:
    inspector = TinyInspector()
    slot = staging(tmp_path, inspector)
    path = write_tiny(tmp_path / "1")
    await slot.stage(stage_request("1", path))
    first = slot.staged
    await slot.stage(stage_request("1", path))

    assert slot.staged is first
    assert len(inspector.checked) == 1


async def test_the_same_version_from_another_source_is_staged_again(tmp_path: Path) -> None:
    slot = staging(tmp_path)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    await slot.stage(stage_request("1", write_tiny(tmp_path / "other", 2.0)))

    assert present(slot.staged).source.path == str(tmp_path / "other")


async def test_a_directory_exchanged_during_the_read_is_refused(tmp_path: Path) -> None:
    inspector = SlowInspector("1")
    slot = staging(tmp_path, inspector)
    path = write_tiny(tmp_path / "1")
    staged = asyncio.create_task(slot.stage(stage_request("1", path)))
    await asyncio.to_thread(inspector.entered.wait, 5)
    path.rename(tmp_path / "moved")
    write_tiny(path, 2.0)
    inspector.let_go.set()
    assert (await refused(staged)).reason is Reason.CHECKPOINT_CHANGED
    assert slot.staged is None


async def test_two_callers_of_one_version_share_one_read(tmp_path: Path) -> None:
    inspector = SlowInspector("1")
    slot = staging(tmp_path, inspector)
    wanted = stage_request("1", write_tiny(tmp_path / "1"))
    both = [asyncio.create_task(slot.stage(wanted)) for _ in range(2)]
    await asyncio.to_thread(inspector.entered.wait, 5)
    inspector.let_go.set()
    await asyncio.gather(*both)

    assert len(inspector.checked) == 1


async def test_a_newer_version_overtakes_and_the_older_call_is_refused(tmp_path: Path) -> None:
    inspector = SlowInspector("1")
    slot = staging(tmp_path, inspector)
    older = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await asyncio.to_thread(inspector.entered.wait, 5)
    newer = asyncio.create_task(slot.stage(stage_request("2", write_tiny(tmp_path / "2"))))
    refusal = await refused(older)
    inspector.let_go.set()
    await newer

    assert refusal.reason is Reason.SUPERSEDED
    assert present(slot.staged).version == "2"


async def test_a_stage_overtaken_at_its_end_releases_its_memory(tmp_path: Path) -> None:
    def overtaken(_check_cancelled: Callable[[], None]) -> None:
        present(slot.running).superseded.set()

    slot = staging(tmp_path, TinyInspector(overtaken))
    before = open_descriptors()
    refusal = await refused(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    assert refusal.reason is Reason.SUPERSEDED
    assert slot.staged is None
    assert not left_open(before)


async def test_a_stage_that_hung_until_its_end_does_not_affect_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, let_go = threading.Event(), threading.Event()
    check = Checkpoint.check_same_on_disk

    def slow_look(checkpoint: Checkpoint, roots: Roots | None) -> None:
        if checkpoint.path.endswith("/1"):
            stuck.set()
            assert let_go.wait(10)
        check(checkpoint, roots)

    monkeypatch.setattr(Checkpoint, "check_same_on_disk", slow_look)
    slot = staging(tmp_path)
    older = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await asyncio.to_thread(stuck.wait, 10)
    await slot.stage(stage_request("2", write_tiny(tmp_path / "2")))
    newer = slot.staged
    let_go.set()
    assert (await refused(older)).reason is Reason.SUPERSEDED
    assert newer is not None
    assert slot.staged is newer, "the newer call has been answered with it"
    assert newer.checkpoint.files


class HangingStore(TinyInspector):
    """A file system whose reads of some versions hang until it is repaired."""

    def __init__(self, *versions: str) -> None:
        super().__init__()
        self.versions = versions
        self.repaired = threading.Event()
        self.reading: list[str] = []
        self.hanging = threading.Event()

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        def hang(_spec: TensorSpec, _block: memoryview) -> bool:
            if not self.repaired.is_set():
                self.hanging.set()
            assert self.repaired.wait(60)
            return True

        self.reading.append(Path(checkpoint.path).name)
        if Path(checkpoint.path).name not in self.versions:
            return super().read(checkpoint, budget=budget, check_cancelled=check_cancelled)
        return checkpoint.read_all(budget=budget, check_cancelled=check_cancelled, inspect=hang)


def time_out_while_it_hangs(store: HangingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read counts as silent for long exactly while it hangs, on a machine of any speed."""
    silence = property(lambda _: 1000.0 if store.hanging.is_set() else 0.0)
    monkeypatch.setattr(store_threads.Pulse, "silent_seconds", silence)


async def test_a_silent_file_system_is_reported_after_a_deadline_and_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HangingStore("1")
    time_out_while_it_hangs(store, monkeypatch)
    slot = staging(tmp_path, store)
    before = open_descriptors()
    slot.silence_seconds = 0.01
    refusal = await refused(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert refusal.retry_after_seconds is not None
    assert slot.running is None
    store.hanging.clear()
    await slot.stage(stage_request("2", write_tiny(tmp_path / "2")))
    assert present(slot.staged).version == "2"
    await slot.drop()
    store.repaired.set()
    await soon(lambda: not left_open(before))


async def test_a_newer_version_does_not_wait_for_a_hanging_read(tmp_path: Path) -> None:
    store = HangingStore("1")
    slot = staging(tmp_path, store)
    before = open_descriptors()
    older = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await soon(store.hanging.is_set)
    running = slot.running
    await slot.stage(stage_request("2", write_tiny(tmp_path / "2")))
    assert (await refused(older)).reason is Reason.SUPERSEDED
    assert present(slot.staged).version == "2"
    assert running is not None
    assert running.checkpoint is not None
    assert running.checkpoint.files, "its thread may still read them"
    assert not present(running.checkpoint._reading)._filling, "its memory is free already"
    store.repaired.set()
    await slot.drop()
    await soon(lambda: not left_open(before))


async def test_a_hanging_file_system_gets_a_bounded_number_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_threads, "_LEFT_FOR_SECONDS", 0.0)
    hung, other = tmp_path / "hung", tmp_path / "other"
    before = threads_named("rlfleet-store")
    store = HangingStore(*map(str, range(10)))
    time_out_while_it_hangs(store, monkeypatch)
    slot = staging(tmp_path, store)
    object.__setattr__(slot.rules, "roots", Roots([hung, other]))
    slot.silence_seconds = 0.01
    for number in range(10):
        store.hanging.clear()
        with pytest.raises(Refusal) as refused:
            await slot.stage(stage_request(str(number), write_tiny(hung / str(number))))
        assert refused.value.reason is Reason.SOURCE_UNREADABLE

    assert len(store.reading) == 4, "the other reads were refused without a thread"
    assert str(hung) in refused.value.message
    store.hanging.clear()
    await slot.stage(stage_request("good", write_tiny(other / "good")))
    store.repaired.set()
    store.hanging.clear()
    await soon(lambda: threads_named("rlfleet-store") <= before)
    await slot.stage(stage_request("better", write_tiny(hung / "better")))
    assert slot.staged is not None
    assert present(slot.staged).version == "better", "a store that answers again is read again"


async def test_an_overtaken_checkpoint_is_freed_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    for name in ("close", "release"):
        free = getattr(Checkpoint, name)

        def noting(checkpoint: Checkpoint, free: Callable[..., None] = free) -> None:
            freed.append(threading.current_thread() is threading.main_thread())
            free(checkpoint)

        monkeypatch.setattr(Checkpoint, name, noting)
    inspector = SlowInspector("1")
    slot = staging(tmp_path, inspector)
    freed.clear()
    older = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await asyncio.to_thread(inspector.entered.wait, 5)
    newer = asyncio.create_task(slot.stage(stage_request("2", write_tiny(tmp_path / "2"))))
    await refused(older)
    inspector.let_go.set()
    await newer
    await refused(slot.stage(stage_request("3", write_tiny(tmp_path / "3"), "sha256:" + "0" * 64)))
    await slot.drop()

    assert freed
    assert not any(freed), "memory is freed outside the event loop"


async def test_a_caller_that_disconnects_does_not_stop_the_stage(tmp_path: Path) -> None:
    inspector = SlowInspector("1")
    slot = staging(tmp_path, inspector)
    caller = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await asyncio.to_thread(inspector.entered.wait, 5)
    running = slot.running
    caller.cancel()
    inspector.let_go.set()
    assert running is not None
    assert running.task is not None
    await running.task

    assert slot.staged is not None


async def test_a_refused_version_leaves_the_staged_one(tmp_path: Path) -> None:
    slot = staging(tmp_path)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    for bad in (tmp_path / "nothing", write_tiny(tmp_path / "wide", hidden_size=8)):
        await refused(slot.stage(stage_request("2", bad)))

    assert present(slot.staged).version == "1"


async def test_the_staged_version_is_released_before_the_next_one_is_held(tmp_path: Path) -> None:
    inspector = SlowInspector("2")
    inspector.let_go.set()
    slot = staging(tmp_path, inspector)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    inspector.let_go.clear()
    inspector.entered.clear()
    newer = asyncio.create_task(slot.stage(stage_request("2", write_tiny(tmp_path / "2"))))
    await asyncio.to_thread(inspector.entered.wait, 5)

    assert slot.staged is None, "two versions in memory are one too many"
    inspector.let_go.set()
    await newer


async def test_a_version_beyond_the_budget_is_staged_without_memory(tmp_path: Path) -> None:
    slot = staging(tmp_path, budget=10)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))

    assert present(slot.staged).in_memory is False


async def test_a_cached_repository_is_staged_if_the_cache_is_below_a_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--org--name"
    write_tiny(repository / "blobs" / "x")
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/x/{name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    source = Source.model_validate({"huggingFace": {"repo": "org/name"}})
    wanted = StageRequest(version="1", source=source, epoch=Epoch(term=1, sequence=1))

    slot = staging(tmp_path)
    await slot.stage(wanted)
    assert present(slot.staged).as_state().source == source

    elsewhere = tmp_path / "root"
    slot = staging(elsewhere)
    refusal = await refused(slot.stage(wanted))
    assert refusal.reason is Reason.SOURCE_OUTSIDE_ROOTS


async def test_a_wrong_digest_is_refused_with_the_computed_one(tmp_path: Path) -> None:
    slot = staging(tmp_path)
    path = write_tiny(tmp_path / "1")
    refusal = await refused(slot.stage(stage_request("1", path, "sha256:" + "0" * 64)))
    assert refusal.reason is Reason.DIGEST_MISMATCH
    found = refusal.message.split()[4].rstrip(",")

    await slot.stage(stage_request("1", path, found))
    assert present(slot.staged).digest == found


async def test_the_files_of_a_reused_label_are_read_once_and_may_have_another_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = staging(tmp_path)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    for label in (staged := slot.take(stage_request("1", tmp_path))).labels_in_engine:
        slot._labels.remember(label, staged.digest, staged.origin)
    others = write_tiny(tmp_path / "2", 2.0)
    reads: list[str] = []
    read = slot._read
    monkeypatch.setattr(
        slot, "_read", lambda running: reads.append(running.request.version) or read(running)
    )

    waits = []
    for _ in range(3):
        refusal = await refused(slot.stage(stage_request("1", others)))
        assert refusal.reason is Reason.VERSION_REUSED
        waits.append(refusal.retry_after_seconds)
    await slot.stage(stage_request("2", others))
    # A trainer that names directories has another run there.
    await slot.stage(stage_request("1", others), by_directory=True)

    assert waits == [10, 20, 40]
    assert reads == ["1", "2", "1"]


async def test_a_staged_version_can_be_taken_once(tmp_path: Path) -> None:
    slot = staging(tmp_path)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    refusal = refusal_from(slot.take, stage_request("2", tmp_path))
    assert refusal.reason is Reason.NOT_STAGED
    assert refusal.message.startswith("version 2 is not staged; version 1 with digest sha256:")

    slot.take(stage_request("1", tmp_path))
    with pytest.raises(Refusal) as refused:
        slot.take(stage_request("1", tmp_path))
    assert "nothing is staged" in refused.value.message


async def test_an_unused_version_is_staged_again_unless_there_is_a_newer_one(
    tmp_path: Path,
) -> None:
    slot = staging(tmp_path)
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))
    taken = slot.take(stage_request("1", tmp_path))
    assert slot.give_back(taken)
    assert slot.staged is taken

    taken = slot.take(stage_request("1", tmp_path))
    await slot.stage(stage_request("2", write_tiny(tmp_path / "2")))
    assert not slot.give_back(taken)
    assert present(slot.staged).version == "2"
    taken.checkpoint.close()

"""Versions in an object store: real servers of two APIs, and a proxy in front of one that spoils its answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store
from tests.support import damage
from tests.support.clock import FakeClock
from tests.support.faulty_store import Answer, Asked, FaultyStore, faulty_store, honest
from tests.support.lora_harness import LoraHarness
from tests.support.programs import written_by
from tests.support.slime_deltas import write_delta
from tests.support.stagers import InspectorWithStagers
from tests.support.tiny import TinyInspector, tiny_rules, write_tiny
from tests.support.waiting import eventually
from tests.support.worker_harness import start_worker

import fleet_worker
import rlfleet_resources
from fleet_worker import object_stores
from fleet_worker.checkpoint import object_requests, objects, store_calls
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import FirstBase
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.stager_messages import FoundObjects, ListObjects
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import STORE_THREADS, Stagers
from fleet_worker.engine.start_names import DIGESTS_FILE
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.process.start_directory import start_directory
from fleet_worker.process.start_weights import open_model, read_model
from fleet_worker.protocol import (
    ENV_STORE_ENDPOINT,
    ENV_STORE_KEYS,
    AdapterRequest,
    Epoch,
    Reason,
    Source,
    StageRequest,
)
from free_ports import free_port
from object_store.server import Server, gcs_keys, serving, serving_gcs

ROOT = "s3://weights/run"
GOOGLE_ROOT = "gs://weights/run"
ENOUGH = 1 << 30
BOTH = pytest.mark.parametrize("server", ["s3", "gs"], indirect=True, scope="module")
"""Other tests run against S3."""


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    buckets = tmp_path_factory.mktemp("store") / "buckets"
    (buckets / "weights").mkdir(parents=True)
    serve = serving_gcs if getattr(request, "param", "s3") == "gs" else serving
    with serve(buckets) as running:
        yield running


@pytest.fixture
def proxy(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """The store as workers see it, empty, with the keys of the fleet's Secret."""
    shutil.rmtree(server.folder / "weights" / "run", ignore_errors=True)
    # Clients of Google Cloud Storage accept no server without TLS.
    signed = certificate(tmp_path, "store") if server.scheme == "gs" else None
    with faulty_store(server.endpoint, signed) as running:
        keys = server.keys
        if signed is not None:
            keys = gcs_keys(running.endpoint) | {"ca.crt": signed[0].read_text()}
        write_keys(tmp_path / "keys", keys)
        ours = (str(Path(each.__file__).parents[1]) for each in (fleet_worker, rlfleet_resources))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(ours))
        monkeypatch.setenv(ENV_STORE_KEYS, str(tmp_path / "keys"))
        monkeypatch.setenv(ENV_STORE_ENDPOINT, running.endpoint)
        yield running
    store_calls._stagers.close()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the store in the process of the test, which may then have other limits."""
    monkeypatch.setattr(store_calls, "ask", object_requests.answer_of)


def write_keys(folder: Path, keys: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, value in keys.items():
        (folder / name).write_text(value)


def upload(server: Server, folder: Path, name: str | None = None) -> str:
    """Put the files of a folder into the store; returns the URI."""
    version = f"run/{name or folder.name}"
    config: Any = {**server.keys, "AWS_ENDPOINT_URL": server.endpoint}
    store = S3Store("weights", config=config, client_options={"allow_http": True})
    for file in folder.iterdir():
        if server.scheme == "gs":
            upload = f"{server.endpoint}/upload/storage/v1/b/weights/o?uploadType=media&name="
            urllib.request.urlopen(f"{upload}{version}/{file.name}", file.read_bytes()).close()  # noqa: S310 - of the test
        else:
            obstore.put(store, f"{version}/{file.name}", file)
    return f"{server.scheme}://weights/{version}"


def staging(root: Path, budget: int = 1 << 20) -> Staging:
    rules, initial = tiny_rules(root, TinyInspector(), budget_bytes=budget)
    initial.checkpoint.close()

    async def make_room(_size: int) -> int:
        return rules.budget_bytes

    rules = replace(rules, roots=Roots([root, ROOT, GOOGLE_ROOT]))
    return Staging(rules, Labels(), FakeClock(), make_room)


async def stage(slot: Staging, uri: str, version: str = "1") -> Weights:
    source = Source(uri=uri)
    epoch = Epoch(term=1, sequence=1)
    return await slot.stage(StageRequest(version=version, source=source, epoch=epoch))


async def refused(slot: Staging, uri: str) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await stage(slot, uri)
    assert slot.staged is None
    return refusal.value


def digest_of(folder: Path) -> str:
    checkpoint = open_checkpoint(str(folder), None)
    try:
        return checkpoint.digest(lambda: None)
    finally:
        checkpoint.close()


def opened(uri: str) -> Checkpoint:
    return open_checkpoint(uri, Roots([ROOT, GOOGLE_ROOT]))


def write_large(folder: Path, files: int = 3, tensors: int = 5) -> Path:
    """Write a checkpoint of several files, each longer than some ranges of the tests."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for number in range(1, files + 1):
        name = f"model-{number:05}-of-{files:05}.safetensors"
        content: damage.Tensors = {
            f"t{number}.{n}": ("BF16", [100_003], damage.bfloat16(n + number) * 100_003)
            for n in range(tensors)
        }
        damage.write_tensors(folder / name, content)
    return folder


@BOTH
async def test_a_version_of_a_store_has_the_digest_of_the_same_files_in_a_directory(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "step_1")
    weights = await stage(staging(tmp_path), upload(server, folder))

    assert weights.digest == digest_of(folder)
    assert weights.in_memory
    assert weights.read_bytes == (folder / damage.WEIGHTS).stat().st_size


@BOTH
@pytest.mark.parametrize("reader", ["this process", "stager"])
def test_files_are_read_in_ranges_that_come_in_any_order(
    server: Server,
    proxy: FaultyStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
) -> None:
    monkeypatch.setattr(objects, "_RANGE_BYTES", 100_000)
    folder = write_large(tmp_path / "step_1")
    checkpoint = opened(upload(server, folder))
    stagers = Stagers()
    reading = StagerPass(stagers, {}) if reader == "stager" else own_pass({})
    try:
        assert checkpoint.read_in(reading, budget=ENOUGH, check_cancelled=lambda: None)
        assert checkpoint.digest(lambda: None) == digest_of(folder)
        for file in checkpoint.files:
            assert file.read(0, file.state.size) == (folder / file.name).read_bytes()
    finally:
        checkpoint.close()
        stagers.close()
    if reader != "stager":
        ranges = [each.headers["range"] for each in proxy.asked if "range" in each.headers]
        assert len(ranges) > 3 * 10
        assert all("if-match" in each.headers for each in proxy.asked if not each.is_listing)


@BOTH
async def test_a_delta_is_applied_to_its_base_in_the_same_store(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    folders = [write_tiny(tmp_path / "full" / f"weight_v{n:06d}", 1.0 + n) for n in range(4)]
    upload(server, folders[0])
    for n in (1, 2, 3):
        names = {"version": f"{n:06d}", "base_version": f"{n - 1:06d}"}
        delta = write_delta(folders[n - 1], folders[n], tmp_path / f"weight_v{n:06d}", **names)
        uri = upload(server, delta)
    weights = await stage(staging(tmp_path), uri, "3")

    assert weights.digest == digest_of(folders[3])
    assert weights.in_memory


async def test_an_adapter_comes_from_a_store(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    async with start_worker(tmp_path) as worker:
        await worker.admit("base")
        lora = LoraHarness(worker)
        staging = worker.agent.staging
        staging.rules = replace(staging.rules, roots=Roots([tmp_path, ROOT]))
        folder = lora.write("1")
        await lora.put("1", folder, name="by-path")
        source = Source(uri=upload(server, folder, "adapters/1"))
        asked = AdapterRequest(version="1", source=source, epoch=worker.epoch())
        await worker.agent.put_adapter("stored", asked)

        first, second = worker.state.adapters
        assert first.digest == second.digest
        assert second.digest is not None


@BOTH
async def test_an_absent_prefix_says_what_is_there(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    upload(server, write_tiny(tmp_path / "step_1"))
    found = await refused(staging(tmp_path), f"{server.scheme}://weights/run/step_2")

    assert found.reason is Reason.SOURCE_ABSENT
    assert f"{server.scheme}://weights/run has step_1" in found.message
    assert found.retry_after_seconds is not None


@pytest.mark.parametrize(
    "uri",
    [
        "s3://weights/other/step_1",
        "s3://weights/running/step_1",
        "s3://other/run/step_1",
        "s3://weights/run/../other/step_1",
        "s3://weights/run/./step_1",
        "s3://weights@127.0.0.1/run/step_1",
        "s3://weights:80/run/step_1",
        "s3://weights/run/step_1?acl",
        "s3://weights/run//step_1",
        "http://127.0.0.1/run/step_1",
        "file:///run/step_1",
    ],
)
async def test_a_uri_outside_of_the_roots_is_refused_before_any_request(
    proxy: FaultyStore, tmp_path: Path, uri: str
) -> None:
    found = await refused(staging(tmp_path), uri)

    assert found.reason is Reason.SOURCE_OUTSIDE_ROOTS
    assert proxy.asked == []


async def test_wrong_keys_are_refused_with_the_field_until_the_secret_is_right(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    write_keys(tmp_path / "keys", {"AWS_SECRET_ACCESS_KEY": "not-the-key"})
    slot = staging(tmp_path)
    found = await refused(slot, uri)

    assert found.reason is Reason.SOURCE_UNREADABLE
    assert "SignatureDoesNotMatch" in found.message
    assert "spec.weights.objectStore" in found.message
    assert "not-the-key" not in found.message

    write_keys(tmp_path / "keys", server.keys)
    assert (await stage(slot, uri)).in_memory


def a_key(private: str) -> str:
    """A service account's key."""
    return json.dumps({"client_email": "a@b", "private_key_id": "1", "private_key": private})


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "key",
    [
        "not-the-key",
        "{}",
        a_key("-----BEGIN PRIVATE KEY-----"),
        a_key("-----BEGIN PRIVATE KEY-----\nxx\n-----END PRIVATE KEY-----"),
    ],
    ids=["no JSON", "no fields", "cut", "no key"],
)
def test_a_malformed_key_of_google_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    write_keys(tmp_path / "keys", {"GOOGLE_SERVICE_ACCOUNT_KEY": key})
    monkeypatch.setenv(ENV_STORE_KEYS, str(tmp_path / "keys"))
    with pytest.raises(Refusal) as refusal:
        opened(f"{GOOGLE_ROOT}/step_1")

    assert refusal.value.reason is Reason.SOURCE_UNREADABLE
    assert "GOOGLE_SERVICE_ACCOUNT_KEY in the Secret" in refusal.value.message
    assert "not-the-key" not in refusal.value.message


async def test_a_bucket_that_does_not_exist_is_unreadable(
    proxy: FaultyStore, tmp_path: Path
) -> None:
    slot = staging(tmp_path)
    slot.rules = replace(slot.rules, roots=Roots(["s3://none/run"]))
    found = await refused(slot, "s3://none/run/step_1")

    assert found.reason is Reason.SOURCE_UNREADABLE
    assert "NoSuchBucket" in found.message


@BOTH
def test_an_object_that_is_replaced_while_it_is_read_is_a_change(
    server: Server, proxy: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_RANGE_BYTES", 100_000)
    monkeypatch.setattr(objects, "_RANGES_AHEAD", 1)
    uri = upload(server, write_large(tmp_path / "step_1", files=1))
    other = write_large(tmp_path / "other", files=1, tensors=5)
    (weights,) = other.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[::-1])
    checkpoint = opened(uri)
    asked = len(proxy.asked)

    def replace_later(_asked: Asked, answer: Answer) -> Answer:
        if len(proxy.asked) == asked + 3:
            upload(server, other, "step_1")
        return answer

    proxy.fault = replace_later
    with pytest.raises(Refusal) as refusal:
        checkpoint.read_in(own_pass({}), budget=ENOUGH, check_cancelled=lambda: None)
    checkpoint.close()

    assert refusal.value.reason is Reason.CHECKPOINT_CHANGED
    assert "another version" in refusal.value.message


@BOTH
async def test_a_version_that_was_replaced_after_it_was_staged_is_read_again(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    slot = staging(tmp_path)
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    first = await stage(slot, uri)
    assert await stage(slot, uri) is first

    again = upload(server, write_tiny(tmp_path / "again", 2.0), "step_1")
    assert (await stage(slot, again)).digest == digest_of(tmp_path / "again")


@BOTH
async def test_a_store_that_ignores_the_condition_of_a_read_is_noticed(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))

    def another(asked: Asked, answer: Answer) -> Answer:
        etag = {} if asked.is_listing else {"etag": '"0123456789abcdef"'}
        return replace(answer, headers=answer.headers | etag)

    proxy.fault = another
    assert (await refused(staging(tmp_path), uri)).reason is Reason.CHECKPOINT_CHANGED


@BOTH
@pytest.mark.parametrize(
    ("pattern", "lie", "reason"),
    [
        (rb"<Size>\d+</Size>", b"<Size>1000000000000</Size>", Reason.CHECKPOINT_MALFORMED),
        (rb"<Size>(\d+)\d</Size>", rb"<Size>\1</Size>", Reason.CHECKPOINT_CHANGED),
        (rb"model\.safetensors<", b"model-00001-of-00001.safetensors<", Reason.SOURCE_NOT_FOUND),
        (rb"<ETag>[^<]*</ETag>", b"", Reason.SOURCE_UNREADABLE),
        (rb"<Contents>", b"<Contents><", Reason.SOURCE_UNREADABLE),
    ],
)
async def test_a_false_listing_is_refused(
    server: Server,
    proxy: FaultyStore,
    tmp_path: Path,
    pattern: bytes,
    lie: bytes,
    reason: Reason,
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))

    def lying(asked: Asked, answer: Answer) -> Answer:
        return answer.with_body(re.sub(pattern, lie, answer.body)) if asked.is_listing else answer

    proxy.fault = lying
    assert (await refused(staging(tmp_path), uri)).reason is reason


async def test_etags_are_the_same_with_and_without_their_quotes(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    """As Azure lists them: https://github.com/Azure/azure-sdk-for-net/issues/16920."""
    uri = upload(server, write_tiny(tmp_path / "step_1"))

    def bare(asked: Asked, answer: Answer) -> Answer:
        if not asked.is_listing:
            return answer
        listed = re.sub(rb"<ETag>(&quot;|&#34;|\")(.*?)\1</ETag>", rb"<ETag>\2</ETag>", answer.body)
        assert listed != answer.body
        return answer.with_body(listed)

    proxy.fault = bare
    assert (await stage(staging(tmp_path), uri)).digest == digest_of(tmp_path / "step_1")
    assert {asked.headers["if-match"][0] for asked in proxy.asked if not asked.is_listing} == {'"'}


@pytest.mark.parametrize("in_key", [b"%d-%d</Key>", b"</Key>"], ids=["others", "the same"])
async def test_a_listing_without_end_is_refused(
    server: Server, proxy: FaultyStore, tmp_path: Path, in_key: bytes
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))

    def endless(asked: Asked, answer: Answer) -> Answer:
        if not asked.is_listing:
            return answer
        entry = re.search(rb"<Contents>.*?</Contents>", answer.body)
        assert entry is not None
        page = len(proxy.asked)
        many = b"".join(
            entry[0].replace(b"</Key>", in_key % (page, n) if b"%" in in_key else in_key)
            for n in range(1000)
        )
        more = b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
        body = answer.body.replace(entry[0], many).replace(b"</ListBucketResult>", more)
        return answer.with_body(body.replace(b">false</IsTruncated>", b">true</IsTruncated>"))

    proxy.fault = endless
    found = await refused(staging(tmp_path), uri)

    assert found.reason is Reason.CHECKPOINT_MALFORMED
    assert "10000" in found.message
    assert len(proxy.asked) < 50


@pytest.mark.usefixtures("in_this_process")
async def test_a_folder_without_end_is_left(
    server: Server, proxy: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_requests, "_MOST_BESIDE", 100)
    upload(server, write_tiny(tmp_path / "step_1"))

    def endless(asked: Asked, answer: Answer) -> Answer:
        if not asked.is_listing or "step_2" in asked.path:
            return answer
        more = b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
        body = answer.body.replace(b"</ListBucketResult>", more)
        return answer.with_body(body.replace(b">false</IsTruncated>", b">true</IsTruncated>"))

    proxy.fault = endless
    found = await refused(staging(tmp_path), f"{ROOT}/step_2")

    assert (found.reason, found.message) == (Reason.SOURCE_ABSENT, "the source does not exist")
    assert len(proxy.asked) < 1000


@pytest.fixture
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CONNECT_SECONDS", "_READ_SECONDS", "REQUEST_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(object_stores, name, 0.5)


@BOTH
@pytest.mark.usefixtures("_short_limits", "in_this_process")
@pytest.mark.parametrize("fault", ["cut", "hang", "fail"])
async def test_a_store_that_cuts_or_delays_its_answers_is_unreadable_in_time(
    server: Server, proxy: FaultyStore, tmp_path: Path, fault: str
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    done = threading.Event()

    def spoiled(asked: Asked, answer: Answer) -> Answer:
        if asked.is_listing:
            return answer
        if fault == "hang":
            done.wait(20)
        if fault == "fail":
            return replace(answer, status=503)
        return replace(answer, sent=len(answer.body) // 2)

    proxy.fault = spoiled
    found = await refused(staging(tmp_path), uri)
    done.set()

    assert found.reason is Reason.SOURCE_UNREADABLE
    assert f"{server.scheme}://weights" in found.message


async def test_a_redirect_to_elsewhere_gives_no_weights_and_no_keys(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    with faulty_store(server.endpoint) as elsewhere:
        elsewhere.fault = lambda _, __: Answer(200, {"etag": '"other"'}, b"{}")

        def redirected(asked: Asked, answer: Answer) -> Answer:
            if asked.is_listing:
                return answer
            target = elsewhere.endpoint.replace("127.0.0.1", "localhost") + asked.path
            return Answer(307, {"location": target}, b"")

        proxy.fault = redirected
        found = await refused(staging(tmp_path), uri)

        assert found.reason in {Reason.CHECKPOINT_CHANGED, Reason.SOURCE_UNREADABLE}
        assert all("authorization" not in each.headers for each in elsewhere.asked)


def test_threads_of_a_store_do_not_take_the_memory_of_a_question_on_large_machines(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    pool = Stagers()
    stager = pool.take()
    answer, _ = stager.ask(ListObjects(uri=uri), [], lambda: None)

    def threads() -> int:
        names = [each.read_text() for each in Path(f"/proc/{stager.pid}/task").glob("*/comm")]
        return sum(name.startswith("tokio") for name in names)

    # A thread has its name a moment after it has begun.
    eventually(lambda: threads() == STORE_THREADS, describe=lambda: f"{threads()} threads")
    pool.give_back(stager)
    pool.close()
    assert isinstance(answer, FoundObjects)


async def test_a_variable_of_the_engine_sets_no_option_of_a_store(
    server: Server, proxy: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spec.engine.env` is in the environment of the server: keys, hosts and proxies for other purposes."""
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    for name in ("AWS_SKIP_SIGNATURE", "AWS_PROXY_URL", "HTTP_PROXY"):
        monkeypatch.setenv(name, "true" if name == "AWS_SKIP_SIGNATURE" else "http://127.0.0.1:9")

    assert (await stage(staging(tmp_path), uri)).digest == digest_of(tmp_path / "step_1")


def test_an_answer_that_takes_all_memory_has_its_own_remedy(
    proxy: FaultyStore, in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(obstore, "list", full)
    with pytest.raises(Refusal, match="endpoint is one of an object store"):
        opened(f"{ROOT}/step_1")


class TestAHostileStore:
    """Bounds of memory and time, in the process that asks."""

    async def test_a_listing_without_end_in_one_answer_is_refused(
        self, server: Server, proxy: FaultyStore, tmp_path: Path
    ) -> None:
        proxy.fault = lambda _, __: Answer(200, {}, b" " * (1 << 20), times=1024)
        found = await refused(staging(tmp_path), f"{ROOT}/step_1")

        assert found.reason is Reason.SOURCE_UNREADABLE
        assert "more memory" in found.message

    def test_an_error_without_end_ends_a_pass(
        self, server: Server, proxy: FaultyStore, tmp_path: Path
    ) -> None:
        checkpoint = opened(upload(server, write_tiny(tmp_path / "step_1")))
        proxy.fault = lambda _, __: Answer(500, {}, b" " * (1 << 20), times=3000)
        stagers = Stagers()
        with pytest.raises(Refusal) as refusal:
            checkpoint.read_in(StagerPass(stagers, {}), budget=ENOUGH, check_cancelled=lambda: None)
        checkpoint.close()
        stagers.close()

        assert refusal.value.reason is Reason.SOURCE_UNREADABLE
        assert "more memory" in refusal.value.message

    async def test_empty_pages_without_end_are_refused_in_time(
        self,
        server: Server,
        proxy: FaultyStore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(store_calls, "_SECONDS", 2.0)

        def empty(asked: Asked, answer: Answer) -> Answer:
            body = re.sub(rb"<Contents>.*</Contents>", b"", answer.body)
            more = b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
            body = body.replace(b"</ListBucketResult>", more)
            return answer.with_body(body.replace(b">false</IsTruncated>", b">true</IsTruncated>"))

        proxy.fault = empty
        found = await refused(staging(tmp_path), f"{ROOT}/step_1")

        assert found.reason is Reason.SOURCE_UNREADABLE
        assert "has not ended its answer" in found.message

    async def test_redirects_without_end_are_refused(
        self, server: Server, proxy: FaultyStore, tmp_path: Path
    ) -> None:
        proxy.fault = lambda asked, _: Answer(307, {"location": proxy.endpoint + asked.path}, b"")
        found = await refused(staging(tmp_path), f"{ROOT}/step_1")

        assert found.reason is Reason.SOURCE_UNREADABLE
        assert "redirects" in found.message
        assert len(proxy.asked) < 100

    async def test_the_next_question_is_answered(
        self, server: Server, proxy: FaultyStore, tmp_path: Path
    ) -> None:
        proxy.fault = lambda _, __: Answer(200, {}, b" " * (1 << 20), times=1024)
        await refused(staging(tmp_path), uri := f"{ROOT}/step_1")
        proxy.fault = honest
        upload(server, write_tiny(tmp_path / "step_1"))

        assert (await stage(staging(tmp_path), uri)).in_memory


async def test_a_version_without_room_in_memory_is_refused_before_it_is_read(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    uri = upload(server, write_tiny(tmp_path / "step_1"))
    found = await refused(staging(tmp_path, budget=100), uri)

    assert found.reason is Reason.NOT_AVAILABLE
    assert "--staging-memory-bytes" in found.message


def test_a_pass_without_room_in_memory_is_refused(
    server: Server, proxy: FaultyStore, tmp_path: Path
) -> None:
    checkpoint = opened(upload(server, write_tiny(tmp_path / "step_1")))
    with pytest.raises(Refusal) as refusal:
        checkpoint.read_in(own_pass({}), budget=100, check_cancelled=lambda: None)
    checkpoint.close()

    assert refusal.value.reason is Reason.NOT_AVAILABLE


class TestAModelOfAStore:
    """vLLM starts on a folder with links to the weights in memory, and the small files themselves."""

    def test_a_start_has_the_weights_and_the_other_files_of_the_prefix(
        self,
        server: Server,
        proxy: FaultyStore,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        folder = write_tiny(tmp_path / "base")
        (folder / "tokenizer.json").write_text('{"a": 1}')
        (folder / DIGESTS_FILE).write_text("{}")  # it must not decide what is compared
        (folder / "pytorch_model.bin").write_text("weights")
        (folder / ".gitattributes").write_text("x")
        (folder / "m\xf6del.py").write_text("x")
        inspector = InspectorWithStagers()
        model = open_model(upload(server, folder), None)
        digest = read_model(model.checkpoint, inspector, ENOUGH)
        started = Path(start_directory(model.checkpoint, model.checkpoint, port=free_port()))
        inspector.stagers.close()

        (warned,) = [record.getMessage() for record in caplog.records]
        assert "1 objects" in warned
        assert "m\\xf6del.py" in warned

        assert digest == digest_of(folder)
        assert (started / damage.WEIGHTS).read_bytes() == (folder / damage.WEIGHTS).read_bytes()
        assert (started / "tokenizer.json").read_text() == '{"a": 1}'
        assert (started / DIGESTS_FILE).read_text() == "null", "sealed memory needs no comparison"
        assert {f.name for f in started.iterdir()} == {
            "config.json", damage.WEIGHTS, "tokenizer.json", DIGESTS_FILE,
        }  # fmt: skip
        shutil.rmtree(started)
        model.checkpoint.close()

    def test_files_that_are_too_large_are_refused(
        self,
        server: Server,
        proxy: FaultyStore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("fleet_worker.process.start_directory._MOST_BYTES", 1000)
        folder = write_tiny(tmp_path / "base")
        (folder / "notes.txt").write_text("x" * 2000)
        model = open_model(upload(server, folder), None)
        with pytest.raises(Refusal) as refusal:
            start_directory(model.checkpoint, model.checkpoint, port=free_port())
        model.checkpoint.close()

        assert refusal.value.reason is Reason.CHECKPOINT_MALFORMED
        assert "notes.txt" in refusal.value.message

    @pytest.mark.parametrize("budget", [0, 100])
    def test_weights_without_room_in_memory_are_refused(
        self, server: Server, proxy: FaultyStore, tmp_path: Path, budget: int
    ) -> None:
        model = open_model(upload(server, write_tiny(tmp_path / "base")), None)
        with pytest.raises(Refusal) as refusal:
            read_model(model.checkpoint, TinyInspector(), budget)
        model.checkpoint.close()

        assert refusal.value.reason is Reason.NOT_AVAILABLE

    async def test_the_first_delta_of_a_run_has_it_as_its_base(
        self, server: Server, proxy: FaultyStore, tmp_path: Path
    ) -> None:
        base, full = write_tiny(tmp_path / "base"), write_tiny(tmp_path / "full", 2.0)
        delta = write_delta(base, full, tmp_path / "step_1", version=1, base_version=0)
        slot = staging(tmp_path)
        slot.rules = replace(slot.rules, first_base=FirstBase(upload(server, base), "base"))

        assert (await stage(slot, upload(server, delta))).digest == digest_of(full)


def certificate(folder: Path, name: str, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """Make a certificate for an address that no authority has signed, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=IP:{address}"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    written_by([*command, "-keyout", key, "-out", made])
    return made, key


_SIGNS = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = any
x509_extensions = extensions
[any]
commonName = supplied
[extensions]
subjectAltName = IP:127.0.0.1
basicConstraints = critical,CA:FALSE
"""


def signed(folder: Path, key: Path, begin: str, end: str) -> Path:
    """Make a certificate for this machine and these dates, `YYYYMMDDhhmmssZ`, that its own key has signed."""
    made, asked = folder / f"{begin}.crt", folder / f"{begin}.csr"
    (folder / "index.txt").write_text("")
    (folder / "serial").write_text("01")
    (folder / "ca.cnf").write_text(_SIGNS.format(folder=folder))
    written_by(["openssl", "req", "-new", "-key", key, "-subj", "/CN=x", "-out", asked])
    command = ["openssl", "ca", "-batch", "-selfsign", "-config", folder / "ca.cnf"]
    command += ["-keyfile", key, "-startdate", begin, "-enddate", end, "-notext"]
    written_by([*command, "-in", asked, "-out", made])
    return made


def test_a_server_needs_a_certificate_that_the_secret_or_the_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, key = certificate(tmp_path, "store")
    other, _ = certificate(tmp_path, "other")
    (tmp_path / "buckets" / "weights").mkdir(parents=True)
    monkeypatch.setattr(store_calls, "ask", object_requests.answer_of)
    with serving(tmp_path / "buckets", certificate=own, key=key) as secure:
        monkeypatch.setenv(ENV_STORE_KEYS, str(tmp_path / "keys"))
        monkeypatch.setenv(ENV_STORE_ENDPOINT, secure.endpoint)
        for trusted, reason in (
            ({}, Reason.SOURCE_UNREADABLE),
            ({"ca.crt": other.read_text()}, Reason.SOURCE_UNREADABLE),
            ({"ca.crt": own.read_text()}, Reason.SOURCE_ABSENT),
        ):
            write_keys(tmp_path / "keys", secure.keys | trusted)
            with pytest.raises(Refusal) as refusal:
                opened(f"{ROOT}/step_1")
            assert refusal.value.reason is reason
            assert ("ca.crt" in refusal.value.message) == (reason is Reason.SOURCE_UNREADABLE)


@pytest.mark.parametrize(
    ("dates", "address", "words"),
    [
        (("20240101000000Z", "20240201000000Z"), None, "has expired"),
        (("21240101000000Z", "21240201000000Z"), None, "is not valid yet"),
        (None, "127.0.0.9", "of another name"),
    ],
    ids=["expired", "in the future", "another address"],
)
def test_a_certificate_that_an_authority_does_not_help_has_a_remedy_of_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dates: tuple[str, str] | None,
    address: str | None,
    words: str,
) -> None:
    own, key = certificate(tmp_path, "store", address or "127.0.0.1")
    if dates is not None:
        own = signed(tmp_path, key, *dates)
    (tmp_path / "buckets" / "weights").mkdir(parents=True)
    monkeypatch.setattr(store_calls, "ask", object_requests.answer_of)
    with serving(tmp_path / "buckets", certificate=own, key=key) as secure:
        write_keys(tmp_path / "keys", secure.keys | {"ca.crt": own.read_text()})
        monkeypatch.setenv(ENV_STORE_KEYS, str(tmp_path / "keys"))
        monkeypatch.setenv(ENV_STORE_ENDPOINT, secure.endpoint)
        with pytest.raises(Refusal) as refusal:
            opened(f"{ROOT}/step_1")

    assert refusal.value.reason is Reason.SOURCE_UNREADABLE
    assert words in refusal.value.message
    assert "ca.crt" not in refusal.value.message


def test_other_keys_of_the_secret_set_no_option(tmp_path: Path) -> None:
    write_keys(tmp_path, {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-1"})

    assert object_stores.keys_of("s3", str(tmp_path)) == {"AWS_REGION": "eu-1"}

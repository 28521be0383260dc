"""A run of the collector on real servers of two APIs, with the objects of a fleet. The rules are those of a volume."""

from __future__ import annotations

import time
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore, MemoryStore, S3Store
from tests.contract.test_object_store import certificate, write_keys
from tests.support.collector import a_fleet, a_weight_version, an_index, objects
from tests.support.faulty_store import Answer, Asked, FaultyStore, as_by_the_xml_api, faulty_store

from fleet_collector import prefix
from fleet_collector.collection import Objects, Outcome, collect
from fleet_collector.plan import Template
from fleet_worker.checkpoint import object_requests, store_calls
from fleet_worker.checkpoint.files import Directory, Roots
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.errors import Refusal
from fleet_worker.protocol import ASIDE_MARK, ENV_STORE_ENDPOINT, ENV_STORE_KEYS, Reason
from object_store.server import Server, gcs_keys, serving, serving_gcs
from rlfleet_resources.weight_files import INDEX_FILE

RUN = "s3://weights/run"
RULE = {"keep": 2}
BOTH = pytest.mark.parametrize("server", ["s3", "gs"], indirect=True, scope="module")
"""Other tests run against S3."""
OF_A_VERSION = {"model.safetensors": b"w" * 100, "config.json": b"{}"}


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
    """The store as collectors and workers see it, with five versions, of which a rule keeps the last two."""
    monkeypatch.setitem(globals(), "RUN", f"{server.scheme}://weights/run")
    keys, google = server.keys, server.scheme == "gs"
    # Clients of Google Cloud Storage accept no server without TLS.
    signed = certificate(tmp_path, "store") if google else None
    with faulty_store(server.endpoint, signed) as running:
        if signed is not None:
            keys = gcs_keys(running.endpoint) | {"ca.crt": signed[0].read_text()}
            running.way, running.fault = (lambda asked: asked.by_the_json_api), as_by_the_xml_api
        write_keys(tmp_path / "keys", keys)
        monkeypatch.setenv(ENV_STORE_KEYS, str(tmp_path / "keys"))
        monkeypatch.setenv(ENV_STORE_ENDPOINT, running.endpoint)
        monkeypatch.setattr(store_calls, "ask", object_requests.answer_of)
        yield running


def _opened(name: str) -> Directory | None:
    """As a worker opens a version; None if it finds none."""
    try:
        return open_directory(f"{RUN}/{name}", Roots([RUN]))
    except Refusal as refusal:
        if refusal.reason is not Reason.SOURCE_ABSENT or "aside" not in refusal.message:
            raise
        return None


class Store:
    """The bucket, as a trainer sees it."""

    def __init__(self, server: Server) -> None:
        self._store: Any = bucket_of(server)
        self._upload = f"{server.endpoint}/upload/storage/v1/b/weights/o?uploadType=media&name="
        obstore.delete(self._store, list(self.all()))
        for version in range(1, 6):
            self.write(version)

    def all(self) -> dict[str, Any]:
        return {o["path"]: o for page in obstore.list(self._store) for o in page}

    def versions(self) -> list[int]:
        """Those that are whole and that a worker opens."""
        found = []
        for name in sorted({path.split("/")[1] for path in self.all() if "run/step_" in path}):
            opened = _opened(name)
            if opened is not None:
                assert opened.names >= OF_A_VERSION.keys(), f"{name} has lost a part"
                found.append(int(name[5:]))
        return found

    def marks(self) -> list[str]:
        return [path for path in self.all() if ASIDE_MARK in path]

    def write(self, version: int, base: int | None = None) -> None:
        for name, content in OF_A_VERSION.items():
            self.put(f"run/step_{version}/{name}", content)
        if base is not None:
            self.put(f"run/step_{version}/{INDEX_FILE}", an_index(version, base).encode())

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())

    def put(self, key: str, content: bytes = b"") -> None:
        if isinstance(self._store, GCSStore):
            urllib.request.urlopen(f"{self._upload}{quote(key)}", content).close()  # noqa: S310 - of the test
        else:
            obstore.put(self._store, key, content)


def bucket_of(server: Server) -> S3Store | GCSStore:
    plain: Any = {"client_options": {"allow_http": True}}
    if server.scheme == "gs":
        key = gcs_keys(server.endpoint)["GOOGLE_SERVICE_ACCOUNT_KEY"]
        return GCSStore("weights", service_account_key=key, **plain)
    config: Any = {**server.keys, "AWS_ENDPOINT_URL": server.endpoint}
    return S3Store("weights", config=config, **plain)


@pytest.fixture
def store(server: Server, proxy: FaultyStore) -> Store:
    return Store(server)


def run(
    *looks: Objects,
    while_it_waits: Callable[[], object] = lambda: None,
    roots: str = "",
    applied: str = "5",
) -> Outcome:
    """One run. `looks`: what the API server has each time; the last one counts for all after it."""
    weights = [a_weight_version(RUN, applied, retention=RULE)]
    seen, waited = [*looks], list[object]()

    def read() -> Objects:
        found = seen.pop(0) if len(seen) > 1 else next(iter(seen), objects(weights, a_fleet()))
        return objects(found.weights, *found.fleets)  # another heartbeat

    def wait() -> None:
        if not waited:
            waited.append(while_it_waits())

    (outcome,) = collect(read, [roots or RUN], wait)
    return outcome


@BOTH
def test_versions_that_nothing_needs_are_deleted_and_their_bytes_counted(store: Store) -> None:
    store.put("run/step_2/optimizer/state of rank 0.bin", b"o" * 7)
    store.put("elsewhere/step_1/config.json")
    outcome = run()

    assert (outcome.problems, store.versions(), store.marks()) == ([], [4, 5], [])
    assert [d.name for d in outcome.deleted] == ["step_1", "step_2", "step_3"]
    assert sum(d.size_bytes for d in outcome.deleted) == 3 * 102 + 7
    assert sorted(store.all()) == [
        "elsewhere/step_1/config.json",
        *sorted(f"run/step_{n}/{name}" for n in (4, 5) for name in OF_A_VERSION),
    ]


@BOTH
def test_a_worker_does_not_open_a_version_that_is_aside(store: Store) -> None:
    seen = list[int]()
    run(while_it_waits=lambda: seen.extend(store.versions()))

    assert seen == [4, 5]


@BOTH
def test_a_version_that_something_needs_meanwhile_comes_back(store: Store) -> None:
    weights = [a_weight_version(RUN, "5", retention=RULE)]
    run(
        objects(weights, a_fleet()),
        objects(weights, a_fleet(f"{RUN}/step_2")),
        while_it_waits=partial(store.put, "run/.step_3.keep-eval"),
    )

    assert (store.versions(), store.marks()) == ([2, 3, 4, 5], [])


def test_the_chain_of_a_delta_stays(store: Store) -> None:
    for version, base in ((5, 3), (3, 1)):
        store.write(version, base)
    for version in (3, 4, 5):  # again, so that they are in their order
        store.put(f"run/step_{version}/model.safetensors", b"w")
    run()

    assert store.versions() == [1, 3, 4, 5]


class Killed(BaseException):
    """The process of a collector is gone: it asks nothing after that."""


def killed_at(question: int, monkeypatch: pytest.MonkeyPatch, *, answered: bool) -> bool:
    """A run that is killed at its question of this number, before or after the store has answered. Returns: whether."""
    count, asked = 0, prefix._asked

    def counted(uri: str, work: Callable[[], Any]) -> Any:
        nonlocal count
        count += 1
        if count < question or (count == question and answered):
            result = asked(uri, work)
        if count >= question:
            raise Killed
        return result

    with monkeypatch.context() as broken:
        broken.setattr(prefix, "_asked", counted)
        broken.setattr(prefix, "_PAGE", 1)  # each object is a question
        try:
            run()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("answered", [False, True])
def test_a_kill_at_any_question_leaves_versions_whole_or_refused_and_the_next_run_finishes(
    server: Server, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    for question in range(1, 100):
        store = Store(server)
        was_killed = killed_at(question, monkeypatch, answered=answered)
        assert {4, 5} <= {*store.versions()}, f"question {question}"
        outcome = run()
        assert (outcome.problems, store.versions(), store.marks()) == ([], [4, 5], [])
        assert len(store.all()) == 4
        if not was_killed:
            break
    assert question > 20


@BOTH
def test_two_collectors_at_once_do_no_harm(store: Store) -> None:
    outcome = run(while_it_waits=run)

    assert (outcome.problems, outcome.deleted, store.versions()) == ([], [], [4, 5])
    assert store.marks() == []


@BOTH
def test_one_collector_that_takes_a_version_back_wins(store: Store) -> None:
    weights = [a_weight_version(RUN, "5", retention=RULE)]
    other = partial(run, objects(weights, a_fleet(f"{RUN}/step_1")))
    run(while_it_waits=other)

    assert (store.versions(), store.marks()) == ([1, 4, 5], [])


@BOTH
def test_what_is_decided_does_not_come_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another collector needs the version while one deletes its objects."""
    weights = [a_weight_version(RUN, "5", retention=RULE)]
    remove = prefix.Prefix._remove

    def removed(place: prefix.Prefix, places: Any) -> None:
        with monkeypatch.context() as once:
            once.setattr(prefix.Prefix, "_remove", remove)
            run(objects(weights, a_fleet(f"{RUN}/step_1")))
        remove(place, places)

    with monkeypatch.context() as other:
        other.setattr(prefix.Prefix, "_remove", removed)
        run()

    assert (store.versions(), store.marks()) == ([4, 5], [])


def test_what_a_trainer_writes_during_a_deletion_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same names, with the same content: it is another object."""
    empty = prefix.Prefix._empty

    def emptied(place: prefix.Prefix, name: str, *rest: Any) -> None:
        if name == "step_1":
            time.sleep(1.1)  # the server's times are in seconds
            store.write(1)
        empty(place, name, *rest)

    monkeypatch.setattr(prefix.Prefix, "_empty", emptied)
    outcome = run()

    assert (store.versions(), store.marks()) == ([1, 4, 5], [])
    assert len(outcome.problems) == 1, "nothing of it was deleted"


def test_a_version_of_which_a_trainer_writes_a_part_before_its_deletion_stays_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that writes only what has changed. The rest must not go."""
    delete = prefix.Prefix.delete

    def deleted(place: prefix.Prefix, directory: Any) -> None:
        if directory.name == "step_1":
            store.put("run/step_1/config.json", b"{ }")
        delete(place, directory)

    monkeypatch.setattr(prefix.Prefix, "delete", deleted)
    outcome = run()

    assert (store.versions(), store.marks()) == ([1, 4, 5], [])
    assert len(outcome.problems) == 1


def write_a_part_at(step: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trainer write a part of version 1 before the collector deletes it."""
    work = getattr(prefix.Prefix, step)

    def worked(place: prefix.Prefix, name: str, *rest: Any) -> None:
        if name == "step_1":
            store.put("run/step_1/config.json", b"{ }")
        work(place, name, *rest)

    monkeypatch.setattr(prefix.Prefix, step, worked)


def test_a_version_of_which_a_trainer_writes_a_part_after_the_decision_stays_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_a_part_at("_empty", store, monkeypatch)
    outcome = run()

    assert (store.versions(), store.marks()) == ([1, 4, 5], [])
    assert [d.name for d in outcome.deleted] == ["step_2", "step_3"]
    assert len(outcome.problems) == 1


def test_a_version_of_which_a_trainer_writes_a_part_after_a_kill_stays_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(prefix.Prefix, "_empty", killed)
        with pytest.raises(Killed):
            run()
    time.sleep(1.1)  # the server's times are in seconds
    store.put("run/step_1/model.safetensors", b"w")
    outcome = run()

    assert (store.versions(), store.marks()) == ([1, 4, 5], [])
    assert len(outcome.problems) == 1


@pytest.mark.parametrize("moment", range(3))
def test_a_version_that_a_trainer_writes_again_during_its_deletion_is_whole_or_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Right before the collector deletes its first object, its second one, or its mark."""
    remove, removals, written = prefix.Prefix._remove, count(), dict[str, bytes]()

    def removed(place: prefix.Prefix, places: Iterable[str]) -> None:
        going = [*places]
        marks = [mark for mark in store.marks() if "/step_1/" in mark]
        is_decided = any(b"objects" in store.get(mark) for mark in marks)
        of_version = all(each.startswith("step_1/") for each in going)
        if is_decided and of_version and next(removals) == moment:
            written.update({name: b"  " + content for name, content in OF_A_VERSION.items()})
            for name, content in written.items():
                store.put(f"run/step_1/{name}", content)
        remove(place, going)

    monkeypatch.setattr(prefix, "_PAGE", 1)
    monkeypatch.setattr(prefix.Prefix, "_remove", removed)
    outcome = run()
    whole = {f"run/step_1/{name}" for name in written} <= store.all().keys()

    assert written
    assert store.marks() == []
    assert (whole, len(outcome.problems)) == ((True, 0) if moment == 2 else (False, 1))
    assert ("step_1" in [d.name for d in outcome.deleted]) == (moment == 2)


def test_a_new_mark_never_replaces_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library writes again after a lost answer. By then another collector may have decided."""
    put, said = obstore.put, list[type]()

    def with_a_lost_answer(*arguments: Any, **options: Any) -> Any:
        answer = put(*arguments, **options)
        if arguments[2] == b"aside":
            try:
                put(*arguments, **options)
            except AlreadyExistsError as error:
                said.append(type(error))
        return answer

    monkeypatch.setattr(obstore, "put", with_a_lost_answer)
    run()

    assert said == [AlreadyExistsError] * 3


@pytest.mark.parametrize(
    "outside", ["elsewhere/step_1/config.json", "run/step_1/../../elsewhere/step_1/config.json"]
)
def test_a_false_listing_deletes_nothing_outside_of_the_version(
    store: Store, proxy: FaultyStore, outside: str
) -> None:
    store.put("elsewhere/step_1/config.json", b"{}")

    def lie(asked: Asked, answer: Answer) -> Answer:
        if asked.is_listing:
            key = b"<Key>run/step_1/config.json</Key>"
            return answer.with_body(answer.body.replace(key, f"<Key>{outside}</Key>".encode()))
        return answer

    proxy.fault = lie
    run()

    assert "elsewhere/step_1/config.json" in store.all()
    assert store.marks() == []
    assert not any("elsewhere" in a.path or ".." in a.path for a in proxy.asked)


def test_a_version_with_a_name_that_the_library_would_change_stays(store: Store) -> None:
    store.put("run/step_1/a%2fb", b"x")
    outcome = run()

    assert store.versions() == [1, 4, 5]
    assert any(d.name == "step_1" and "a%" in d.obstacle for d in outcome.kept)


@pytest.mark.parametrize("endpoint", ["https://elsewhere", None])
def test_nothing_is_deleted_at_another_server_than_that_of_the_fleet(
    store: Store, proxy: FaultyStore, endpoint: str | None
) -> None:
    weights = a_weight_version(RUN, "5", retention=RULE)
    outcome = run(objects([weights], a_fleet(objectStore={"endpoint": endpoint or proxy.endpoint})))

    assert store.versions() == ([1, 2, 3, 4, 5] if endpoint else [4, 5])
    assert len(outcome.problems) == (1 if endpoint else 0)


def test_a_prefix_outside_of_the_roots_is_refused(store: Store) -> None:
    outcome = run(roots="s3://weights/ru")

    assert "not below" in outcome.problems[0]
    assert len(store.versions()) == 5


def test_a_store_without_the_applied_version_is_not_that_of_the_fleet(store: Store) -> None:
    assert "step_9" in run(applied="9").problems[0]
    assert len(store.versions()) == 5


def test_keys_without_rights_are_reported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys/AWS_SECRET_ACCESS_KEY").write_text("another one")
    outcome = run()

    assert "the collector's Secret" in outcome.problems[0]


def test_a_store_that_does_not_keep_conditions_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *a, mode, **o: put(*a, mode="overwrite", **o))
    outcome = run()

    assert len(outcome.problems) == 3
    assert "If-Match" in outcome.problems[0]
    monkeypatch.undo()
    assert store.marks() == []


def test_a_store_that_refuses_conditions_takes_no_version_from_workers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def without(*a: Any, mode: Any, **o: Any) -> Any:
        if isinstance(mode, dict):
            raise OSError("status code: 501")
        return put(*a, mode=mode, **o)

    monkeypatch.setattr(obstore, "put", without)

    assert len(run().problems) == 3
    assert (store.versions(), store.marks()) == ([1, 2, 3, 4, 5], [])


def test_what_another_collector_has_put_aside_stays_in_a_store_that_does_not_keep_conditions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put
    for version in (1, 2, 3):
        store.put(f"run/step_{version}/{ASIDE_MARK}00000000", b"aside")
    monkeypatch.setattr(obstore, "put", lambda *a, mode, **o: put(*a, mode="overwrite", **o))

    assert "If-Match" in run().problems[0]
    assert len([path for path in store.all() if path.endswith(".safetensors")]) == 5


def test_a_store_that_does_not_end_its_answer_is_reported(
    store: Store, proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_SECONDS", 0.3)

    def late(_: Asked, answer: Answer) -> Answer:
        time.sleep(0.6)
        return answer

    proxy.fault = late
    outcome = run()

    assert "does not end its answer" in outcome.problems[0]


def test_a_store_that_lists_too_much_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_MOST_LISTED", 9)
    outcome = run()

    assert "more than 9 objects" in outcome.problems[0]
    assert len(store.versions()) == 5


def test_a_plan_keeps_no_objects_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has the plans of all folders at the same time."""
    store, uri, count = MemoryStore(), "s3://weights/run", 5000
    for number in range(count):
        obstore.put(store, f"run/step_{number % 2}/shard-{number}.safetensors", b"")
    monkeypatch.setattr(prefix, "opened_store", lambda _: (store, "run"))
    with closing(prefix.Prefix.open(uri, [uri], [Template(uri, "step_", "")])) as folder:
        folder.content()
        tracemalloc.start()
        try:
            folder.content()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert kept < 20 * count


def test_a_mark_of_a_stranger_deletes_nothing(store: Store) -> None:
    store.put(f"run/step_1/{ASIDE_MARK}00000000", b'{"objects": [["../x", "y", "z"]]}')
    outcome = run()

    assert "not of a collector" in outcome.problems[0]
    assert "run/step_1/config.json" in store.all()

"""A model and versions in a real object store on a real engine: the same digests and tokens as of directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from tests.engine.conftest import Weights
from tests.support.worker import WorkerProcess

from fleet_worker.protocol import ENV_STORE_ENDPOINT, ENV_STORE_KEYS, Reason
from object_store.server import Server, serving


def _upload(server: Server, folder: Path, key: str) -> str:
    config: Any = {**server.keys, "AWS_ENDPOINT_URL": server.endpoint}
    store = S3Store("weights", config=config, client_options={"allow_http": True})
    for file in folder.iterdir():
        if file.is_file():
            obstore.put(store, f"{key}/{file.name}", file)
    return f"s3://weights/{key}"


def test_an_engine_starts_on_a_store_and_loads_versions_of_it(
    weights: Weights, tmp_path: Path
) -> None:
    (tmp_path / "buckets" / "weights").mkdir(parents=True)
    keys = tmp_path / "keys"
    keys.mkdir()
    with serving(tmp_path / "buckets") as server:
        for name, value in server.keys.items():
            (keys / name).write_text(value)
        env = {ENV_STORE_KEYS: str(keys), ENV_STORE_ENDPOINT: server.endpoint}
        uris = {
            "b": _upload(server, weights.b, "run/step_1"),
            "c": _upload(server, weights.c, "run/step_2"),
        }
        base = _upload(server, weights.a, "models/base")
        roots = [weights.b.parent, weights.a.parent, "s3://weights/run"]
        with WorkerProcess(tmp_path / "1", model=base, roots=roots, environment=env) as worker:
            worker.wait_until_up()
            worker.must("admit", version="base")
            started = worker.greedy(), worker.state()["digest"]
            by_path = {}
            for name, folder in (("a", weights.a), ("b", weights.b), ("c", weights.c)):
                digest = worker.swap(f"path-{name}", folder)["digest"]
                by_path[name] = (worker.greedy(), digest)
            assert by_path["a"] == started
            for name, uri in uris.items():
                state = worker.swap(f"store-{name}", uri)
                assert (worker.greedy(), state["digest"]) == by_path[name]
                assert state["timings"]["read_bytes"] > 0
            assert by_path["b"] != by_path["c"]

            # Back, to a version that the worker does not hold any more; and to what is not there.
            state = worker.swap("store-b", uris["b"])
            assert (worker.greedy(), state["digest"]) == by_path["b"]
            absent = {"uri": "s3://weights/run/step_3"}
            _, reason, _ = worker.refusal("stage", version="3", source=absent)
            assert reason == Reason.SOURCE_ABSENT
            assert (worker.greedy(), worker.state()["digest"]) == by_path["b"]

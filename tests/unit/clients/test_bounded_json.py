"""Objects of any size are read in bounded memory, and the reader continues behind them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fleet_operator.clients import bounded_json
from fleet_operator.clients.bounded_json import (
    CLOSED,
    LARGE_AT_ONCE,
    LARGE_BYTES,
    OBJECT_BYTES,
    TEXT_BYTES,
    BoundedReader,
    opened,
    read_closed,
    read_message,
    read_object,
    read_resource,
)
from fleet_operator.errors import TooLarge
from fleet_operator.ports import SPEC_BYTES, UNREAD_BYTES

NAMES = {
    "name": "policy-0",
    "namespace": "rl",
    "uid": "u1",
    "resourceVersion": "7",
    "generation": 3,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
LABELS = {"app.kubernetes.io/managed-by": "rlfleet", "rlfleet.dev/fleet": "policy"}
STATUS = {"phase": "Running"}
ETCD_BYTES = 1_500_000
"""About the largest object that etcd takes."""
CONTENTS = {
    "escapes": '"' + r"\u003c" * ETCD_BYTES + '"',
    "empty objects": "[" + ",".join(["{}"] * (ETCD_BYTES // 3)) + "]",
    "nesting": '{"a":' * 900 + '"' + "x" * OBJECT_BYTES + '"' + "}" * 900,
    "nesting as deep as the API server takes it": '{"a":' * 9990 + "{}" + "}" * 9990,
}


def large(where: str, content: str) -> bytes:
    """A pod that has this content at a key of the pod, or of its metadata."""
    metadata: dict[str, Any] = NAMES | {"labels": LABELS, "ownerReferences": [{"uid": "f1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": STATUS}
    parts = metadata if where in {"labels", "annotations", "managedFields"} else pod
    mark = {"mark": "CONTENT"} | (parts.get(where) or {})
    parts[where] = mark
    return json.dumps(pod).replace('"CONTENT"', content).encode()


def chunked(*lines: bytes, size: int = 2**16) -> Any:
    """The content of a response that brings these lines in pieces."""

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            text = b"\n".join(lines)
            for begin in range(0, len(text), size):
                yield text[begin : begin + size]

    return Content()


def event(body: bytes, kind: str = "ADDED") -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}"


def small(name: str) -> bytes:
    return json.dumps({"metadata": {"name": name, "uid": name}}).encode()


class TestObjects:
    @pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
    @pytest.mark.parametrize("where", ["spec", "annotations", "managedFields", "labels"])
    def test_of_one_that_is_too_large_the_names_and_the_small_parts_are_read(
        self, where: str, content: str
    ) -> None:
        text = large(where, content)
        found = read_object(text)

        assert {n: found["metadata"].get(n) for n in NAMES} == NAMES
        assert found["metadata"]["labels"] == LABELS
        assert found["metadata"]["ownerReferences"] == [{"uid": "f1"}]
        assert found["status"] == STATUS
        assert found.get("spec", {}) == {}
        # The operator needs no foreign annotations, and no record of the writers.
        assert found.get(UNREAD_BYTES) == (len(text) if where == "spec" else None)

    def test_a_large_status_is_left_out(self) -> None:
        found = read_object(large("status", CONTENTS["escapes"]))

        assert "status" not in found
        assert UNREAD_BYTES in found
        assert found["metadata"]["uid"] == "u1"

    def test_one_within_the_limit_is_read_whole(self) -> None:
        body = {"metadata": NAMES, "spec": {"args": ["x" * (OBJECT_BYTES - 300)]}}

        assert read_object(json.dumps(body).encode()) == body

    def test_of_one_within_the_limit_a_long_record_of_its_writers_is_left_out(self) -> None:
        """A tenant may claim 36,000 fields, which take 12 ms."""
        text = large("managedFields", "[" + ",".join(["{}"] * (OBJECT_BYTES // 4)) + "]")
        body = json.loads(text)
        del body["metadata"]["managedFields"]

        assert len(text) < OBJECT_BYTES
        assert read_object(text) == body

    @pytest.mark.parametrize(
        "text", [b"[]", b"7", b"{", b"", b"[" * OBJECT_BYTES, b"[" * SPEC_BYTES * 2]
    )
    def test_anything_but_an_object_is_refused(self, text: bytes) -> None:
        with pytest.raises(ValueError, match=r"."):
            read_object(text)

    def test_a_document_without_metadata_is_read_whole(self) -> None:
        """The schemas of a cluster, which its administrator installs."""
        document = {"components": {"schemas": {"x": "y" * OBJECT_BYTES}}}

        assert read_object(json.dumps(document).encode()) == document


class TestClosedObjects:
    """As kopf carries them."""

    def test_one_has_its_names_and_opens_as_it_was(self) -> None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": NAMES | {"labels": LABELS}}
        body |= {"spec": {"args": ["\u00fc<"]}, "status": STATUS}
        closed = read_closed(json.dumps(body).encode())

        assert closed["metadata"] == NAMES
        assert (closed["apiVersion"], closed["kind"]) == ("v1", "Pod")
        assert "spec" not in closed
        assert opened(closed) == body

    @pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
    def test_a_large_one_opens_as_its_small_parts(self, content: str) -> None:
        text = large("spec", content)
        closed = read_closed(text)

        assert closed["metadata"] == NAMES
        assert len(closed[CLOSED]) < SPEC_BYTES + 1000
        found = opened(closed)
        assert found == read_resource(text)
        assert found.get("spec", {}) == {}
        assert UNREAD_BYTES in found

    def test_a_spec_of_the_largest_size_is_read_with_all_its_escapes(self) -> None:
        """One character of it has six as the API server's JSON."""
        body = {"metadata": NAMES, "spec": {"x": "<" * (SPEC_BYTES - 100)}}
        text = json.dumps(body).replace("<", r"\u003c").encode()

        assert opened(read_closed(text)) == read_resource(text) == body

    @pytest.mark.parametrize("spec_bytes", [100, OBJECT_BYTES])
    def test_a_long_status_is_read_with_any_spec(self, spec_bytes: int) -> None:
        """It has the pins of versions."""
        status = {"pinned": ["x" * 100] * 2000}
        body = {"metadata": NAMES, "spec": {"x": "y" * spec_bytes}, "status": status}
        text = json.dumps(body).encode()

        for found in (opened(read_closed(text)), read_resource(text)):
            assert found["status"] == status
            assert ("spec" in found) == (spec_bytes == 100)

    def test_empty_lists_of_a_large_one_are_not_parsed(self) -> None:
        """Half a MiB of them takes 130 ms."""
        text = large("spec", "[" + ",".join(["[]"] * (OBJECT_BYTES // 4)) + "]")
        assert len(text) < OBJECT_BYTES

        for found in (opened(read_closed(text)), read_resource(text)):
            assert "spec" not in found
            assert UNREAD_BYTES in found

    def test_those_of_a_page_are_closed_one_by_one(self) -> None:
        text = b'{"kind":"PodList","metadata":{"continue":"c"},"items":[' + small("a") + b"]}"
        page = read_closed(text)

        assert (page["kind"], page["metadata"]) == ("PodList", {"continue": "c"})
        assert [opened(each) for each in page["items"]] == [json.loads(small("a"))]

    def test_a_refusal_is_read_as_it_is(self) -> None:
        refusal = {"kind": "Status", "metadata": {}, "code": 410}

        assert read_closed(json.dumps(refusal).encode()) == refusal

    @pytest.mark.parametrize("text", [b"[]", b"7", b"{", b""])
    def test_anything_but_an_object_is_refused(self, text: bytes) -> None:
        with pytest.raises(ValueError, match=r"."):
            read_closed(text)


class TestPages:
    def test_the_objects_around_large_ones_are_read(self) -> None:
        bomb = large("spec", CONTENTS["escapes"])
        items = b",".join([small("a"), bomb, small("b"), bomb])
        page = read_object(
            b'{"kind":"PodList","metadata":{"continue":"c"},"items":[' + items + b"]}"
        )

        assert page["metadata"] == {"continue": "c"}
        assert [each["metadata"]["name"] for each in page["items"]] == [
            "a",
            "policy-0",
            "b",
            "policy-0",
        ]
        assert [UNREAD_BYTES in each for each in page["items"]] == [False, True, False, True]

    def test_one_object_at_a_time_is_in_memory(self) -> None:
        """30 objects below the limit had 20 MiB each as Python objects."""
        content = "[" + ",".join(["{}"] * (OBJECT_BYTES // 4)) + "]"
        one = large("spec", content)
        assert len(one) < OBJECT_BYTES
        text = b'{"metadata":{},"items":[' + b",".join([one] * 30) + b"]}"
        tracemalloc.start()
        try:
            names = [each["metadata"]["name"] for each in read_object(text)["items"]]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert names == ["policy-0"] * 30
        assert peak_bytes < len(text) + 60 * OBJECT_BYTES


class TestStreams:
    @pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
    async def test_events_behind_a_large_object_are_delivered(self, content: str) -> None:
        lines = [event(small("a")), event(large("spec", content), "MODIFIED"), event(small("b"))]
        events = [e async for e in BoundedReader().lines(chunked(*lines))]

        assert [(kind, body["metadata"]["name"]) for kind, body in events] == [
            ("ADDED", "a"),
            ("MODIFIED", "policy-0"),
            ("ADDED", "b"),
        ]
        assert [UNREAD_BYTES in body for _, body in events] == [False, True, False]

    async def test_a_line_and_a_body_without_an_end_are_refused(self) -> None:
        endless = b"x" * (TEXT_BYTES + 1)
        with pytest.raises(TooLarge):
            await BoundedReader().object(chunked(endless))
        with pytest.raises(TooLarge):
            _ = [e async for e in BoundedReader().lines(chunked(endless))]

    async def test_few_large_texts_are_in_memory_at_once(self) -> None:
        reader, begun = BoundedReader(), 0
        release = asyncio.Event()

        class Waiting:
            async def iter_any(self) -> AsyncIterator[bytes]:
                nonlocal begun
                yield b'{"metadata":{"x":"' + b"x" * LARGE_BYTES
                begun += 1
                await release.wait()
                yield b'"}}'

        reads = [asyncio.create_task(reader.object(Waiting())) for _ in range(3 * LARGE_AT_ONCE)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == LARGE_AT_ONCE
        assert await reader.object(chunked(small("a"))), "small ones do not wait"
        release.set()
        await asyncio.gather(*reads)

        assert begun == 3 * LARGE_AT_ONCE

    async def test_a_text_that_breaks_gives_its_place_back(self) -> None:
        reader = BoundedReader()

        class Breaking:
            async def iter_any(self) -> AsyncIterator[bytes]:
                yield b"x" * (LARGE_BYTES + 1)
                raise OSError("connection reset")

        for _ in range(LARGE_AT_ONCE + 1):
            with pytest.raises(OSError, match="reset"):
                _ = [e async for e in reader.lines(Breaking())]
        with pytest.raises(OSError, match="reset"):
            async with asyncio.timeout(5):
                await reader.object(Breaking())


def test_a_text_may_hold_the_largest_object_of_etcd() -> None:
    assert len(large("spec", CONTENTS["escapes"])) < TEXT_BYTES
    assert bounded_json.LARGE_AT_ONCE * TEXT_BYTES <= 64 * 2**20, "of the 512 MiB of the chart"


@pytest.mark.parametrize("content", CONTENTS)
def test_a_body_and_a_line_of_a_watch_are_read_by_one_function(content: str) -> None:
    text = large("spec", CONTENTS[content])
    body, line = read_message(text), read_message(event(text, "MODIFIED"))

    assert body == read_resource(text)
    assert "spec" not in body
    assert line == {"type": "MODIFIED", "object": body}

"""Large answers are read one at a time, in turns by namespace, and within a limit of memory."""

from __future__ import annotations

import asyncio

from fleet_operator.clients.answers_in_turn import MAX_WAITING_BYTES, SMALL_BYTES, AnswersInTurn


class Read:
    """Answers that were read and dropped, in order."""

    def __init__(self) -> None:
        self.turns = AnswersInTurn()
        self.seen: list[str] = []

    def add(self, namespace: str, name: str, size_bytes: int = SMALL_BYTES + 1) -> None:
        self.turns.add(
            namespace,
            size_bytes,
            lambda: self.seen.append(name),
            lambda: self.seen.append(f"dropped {name}"),
        )


async def test_small_answers_are_read_at_once() -> None:
    read = Read()
    read.add("rl", "small", SMALL_BYTES)

    assert read.seen == ["small"]


async def test_one_large_answer_is_read_in_each_turn_of_the_loop() -> None:
    read = Read()
    for n in range(3):
        read.add("rl", str(n))

    assert read.seen == []
    for n in range(3):
        await asyncio.sleep(0)
        assert len(read.seen) == n + 1


async def test_namespaces_take_turns() -> None:
    read = Read()
    for n in range(50):
        read.add("many", f"many {n}")
    read.add("one", "one")
    for _ in range(2):
        await asyncio.sleep(0)

    assert read.seen == ["many 0", "one"]


async def test_beyond_the_limit_the_largest_that_wait_are_dropped_and_read_no_more() -> None:
    read = Read()
    read.add("many", "large", MAX_WAITING_BYTES // 2)
    for n in range(3):
        read.add("many", f"larger {n}", MAX_WAITING_BYTES // 2 - 10_000 * n)
    read.add("one", "honest")
    for _ in range(10):
        await asyncio.sleep(0)

    assert [s for s in read.seen if s.startswith("dropped")] == [
        "dropped large",
        "dropped larger 0",
    ]
    assert {"honest", "larger 1", "larger 2"} <= set(read.seen)
    assert "large" not in read.seen


async def test_an_answer_that_cannot_be_read_does_not_stop_the_others() -> None:
    turns, seen = AnswersInTurn(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: seen.append("raised"))
    turns.add("rl", SMALL_BYTES + 1, lambda: list[str]().remove("x"), lambda: None)
    turns.add("rl", SMALL_BYTES + 1, lambda: seen.append("read"), lambda: None)
    for _ in range(3):
        await asyncio.sleep(0)

    assert seen == ["raised", "read"]

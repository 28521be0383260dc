"""A part that fails is begun again alone, and is reported until it works."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import virtual_time
from tests.support.virtual_time import now

from fleet_operator.runtime.restarts import LONGEST_RETRY_SECONDS, WORKS_SECONDS, keep_running


class Part:
    """A part that fails after some seconds, as often as asked."""

    def __init__(self, *, lives_seconds: float = 1.0, failures: int = 10**6) -> None:
        self.lives_seconds = lives_seconds
        self.failures = failures
        self.begun_at: list[float] = []
        self.reports: list[tuple[str, str]] = []
        self.cancelled = False

    async def run(self) -> None:
        self.begun_at.append(now())
        try:
            if len(self.begun_at) > self.failures:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(self.lives_seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise RuntimeError("a defect")

    def note(self, name: str, error: Exception | None) -> None:
        self.reports.append((name, type(error).__name__))


def follow(part: Part, seconds: float) -> None:
    async def story() -> None:
        task = asyncio.create_task(keep_running("pods", part.run, part.note))
        await asyncio.sleep(seconds)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    virtual_time.run(story())


def test_a_part_that_fails_is_begun_again_and_reported_until_it_works():
    part = Part(failures=3)
    follow(part, 2 * WORKS_SECONDS)

    assert len(part.begun_at) == 4
    assert part.reports == [("pods", "RuntimeError")] * 3 + [("pods", "NoneType")]
    assert part.cancelled, "the end of the process ends it"


def test_a_part_that_keeps_failing_waits_longer_each_time():
    part = Part(lives_seconds=0.01)
    follow(part, 600)
    waits = [
        after - before for before, after in zip(part.begun_at, part.begun_at[1:], strict=False)
    ]

    assert waits[0] < 1
    assert all(LONGEST_RETRY_SECONDS / 2 <= w <= LONGEST_RETRY_SECONDS + 1 for w in waits[8:])


class Ending(Part):
    """A part that ends at once, without an error or as if cancelled."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def run(self) -> None:
        self.begun_at.append(now())
        if self.how == "is cancelled":
            raise asyncio.CancelledError


@pytest.mark.parametrize("how", ["returns", "is cancelled"])
def test_a_part_that_ends_is_begun_again(how):
    part = Ending(how)
    follow(part, 5)

    assert len(part.begun_at) > 2
    assert part.reports[0] == ("pods", "RuntimeError")

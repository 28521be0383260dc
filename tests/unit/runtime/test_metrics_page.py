"""A page of metrics costs a bounded part of the process, however often it is read."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.support import virtual_time

from fleet_operator.own_ports import metrics_page
from fleet_operator.own_ports.metrics_page import RENDER_SECONDS, MetricsPage


class Renderings:
    """Counts renderings, each of which takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.threads: list[int] = []
        self.at_once = self.most_at_once = 0

    def prepare(self):
        self.prepared_in = threading.get_ident()
        return self.render

    def render(self) -> bytes:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)
        self.at_once -= 1
        return b"page %d" % len(self.threads)


async def test_readers_share_one_rendering_that_leaves_the_event_loop_free():
    made = Renderings(seconds=0.2)
    page = MetricsPage(made.prepare)
    reading = asyncio.gather(*(page.body() for _ in range(512)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1

    assert set(await reading) == {b"page 1"}
    assert made.prepared_in == threading.get_ident() not in made.threads
    assert turns > 10


async def test_a_reader_that_ends_leaves_the_rendering_to_the_others():
    made = Renderings(seconds=0.2)
    page = MetricsPage(made.prepare)
    first = asyncio.create_task(page.body())
    await asyncio.sleep(0.05)
    first.cancel()

    assert await page.body() == b"page 1"
    assert made.most_at_once == 1


def test_a_page_is_rendered_at_most_once_a_second_and_a_tenth_of_the_time(monkeypatch):
    made = Renderings()

    async def in_virtual_time(render):
        await asyncio.sleep(made.seconds)
        made.threads.append(0)
        return b"page"

    monkeypatch.setattr(metrics_page.asyncio, "to_thread", in_virtual_time)

    async def story() -> None:
        page = MetricsPage(made.prepare)
        for _ in range(1000):
            await page.body()
            await asyncio.sleep(0.1)

    counts = []
    for seconds in (0.0, 0.5):
        made.seconds = seconds
        made.threads.clear()
        virtual_time.run(story())
        counts.append(len(made.threads))

    assert counts[0] <= 100 / RENDER_SECONDS
    assert counts[0] > 80
    assert 15 < counts[1] <= 100 / (10 * 0.5) + 2


async def test_a_rendering_that_fails_is_tried_again_later():
    def prepare():
        raise ValueError("broken")

    page = MetricsPage(prepare)
    with pytest.raises(ValueError, match="broken"):
        await page.body()
    page._prepare = Renderings().prepare
    page._due = 0.0

    assert await page.body() == b"page 1"

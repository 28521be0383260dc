"""The loop of the clock that jumps."""

from __future__ import annotations

import asyncio
import fcntl
import os

from tests.support import virtual_time

BEYOND_SELECT = 1100


async def far_descriptor_is_read() -> None:
    reading, writing = os.pipe()
    far = fcntl.fcntl(reading, fcntl.F_DUPFD, BEYOND_SELECT)
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(far, readable.set)
    os.write(writing, b"x")
    await readable.wait()

    asyncio.get_running_loop().remove_reader(far)
    for each in (reading, writing, far):
        os.close(each)


def test_it_waits_for_descriptors_beyond_those_of_select() -> None:
    virtual_time.run(far_descriptor_is_read())

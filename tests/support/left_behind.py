"""Memory that connections leave behind until Python's collector comes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc


async def leave_behind(port: int, sent: bytes, *, times: int) -> int:
    """Bytes that a number of connections leave without a collection."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(times):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            await asyncio.sleep(0.01)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()

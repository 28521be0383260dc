"""Requests between a cluster's processes: one line of JSON there, one line of JSON back.

    starter, command line ── unix socket ──> keeper ── socket pair ──> pid 1 of a node

A request names its operation in "op"; the answer has either "error" or the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from devcluster.errors import DevclusterError, NotRunningError

Message = dict[str, Any]
Handler = Callable[[Message], Awaitable[Message]]

_SOCKET = "control"


def ask(run: Path, request: Message, *, timeout_seconds: float = 30.0) -> Message:
    """Send a request to the keeper of a cluster and wait for the answer.

    Errors:
        NotRunningError: no keeper listens in this folder, or it closed the connection before it answered.
        DevclusterError: the keeper refused; its words are the message.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection, _short_path(run) as path:
            connection.settimeout(timeout_seconds)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise NotRunningError(f"cluster {run.name} does not answer: {error}") from error
    if not line.endswith(b"\n"):
        raise NotRunningError(f"cluster {run.name} ended before it answered")
    return _checked(json.loads(line))


async def serve(run: Path, handler: Handler) -> asyncio.Server:
    """Answer requests on the cluster's socket."""
    listener = socket.socket(socket.AF_UNIX)
    with _short_path(run) as path:
        listener.bind(path)
    return await asyncio.start_unix_server(
        lambda reader, writer: answer(reader, writer, handler), sock=listener
    )


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
) -> None:
    """Answer the requests of one connection, in order, until it is closed."""
    try:
        while line := await reader.readline():
            try:
                reply = await handler(json.loads(line))
            except (DevclusterError, OSError, LookupError) as error:
                reply = {"error": str(error)}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
    except ConnectionError:
        pass  # the client is gone
    finally:
        writer.close()


class Line:
    """The asking end of a connection that is kept, to be used by one task at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, request: Message) -> Message:
        """Send a request and wait for its answer. Errors as those of `ask`."""
        async with self._one_at_a_time:
            try:
                self._writer.write(json.dumps(request).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            except OSError as error:
                raise NotRunningError(f"the node does not answer: {error}") from error
        if not line:
            raise NotRunningError("the node is gone")
        return _checked(json.loads(line))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def _checked(reply: Message) -> Message:
    if "error" in reply:
        raise DevclusterError(str(reply["error"]))
    return reply


class _short_path:  # noqa: N801 - used as a function
    """A path to the socket that fits into the 107 bytes the kernel allows, however deep it is."""

    def __init__(self, run: Path) -> None:
        self._folder = os.open(run, os.O_PATH | os.O_DIRECTORY)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._folder}/{_SOCKET}"

    def __exit__(self, *error: object) -> None:
        os.close(self._folder)

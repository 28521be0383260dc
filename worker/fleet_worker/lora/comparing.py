"""Whether a request asks for other files than those that the worker holds of an adapter."""

from __future__ import annotations

from functools import partial

from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.sources import store_of
from fleet_worker.checkpoint.store_threads import StoreThreads
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import PrivateAdapter
from fleet_worker.protocol import AdapterRequest, Reason

_GONE = (None, Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND)
"""The results of a look at a source that has no other files than before."""


class Comparing:
    """Compares the files of requests with copies, in threads."""

    def __init__(self, threads: StoreThreads, roots: Roots) -> None:
        """Make it for the sources below some roots."""
        self._threads = threads
        self._roots = roots

    async def is_unchanged(self, files: PrivateAdapter, request: AdapterRequest) -> bool:
        """Whether the worker knows of no other files than those of a copy."""
        return await self._change(files, request) is not Reason.CHECKPOINT_CHANGED

    async def is_still_served(self, files: PrivateAdapter, request: AdapterRequest) -> bool:
        """Whether a request needs nothing more, since its version is served.

        A request to stage it compares its files. A source that is gone has no others, but one that
        cannot be opened may have.
        """
        change = await self._change(files, request)
        return change in _GONE or not (request.stage_only or change is Reason.CHECKPOINT_CHANGED)

    async def _change(self, files: PrivateAdapter, request: AdapterRequest) -> Reason | None:
        """`CheckpointChanged` for other files than those of a copy, or why the worker cannot tell.

        With a digest in the request the files are not read: the digest was compared with the
        worker's copy.
        """
        if request.digest is not None:
            return None
        try:
            await self._threads.run(
                partial(files.check_same_source, request.source, self._roots),
                store=store_of(request.source, self._roots),
            )
        except Refusal as refusal:
            return refusal.reason
        return None

"""`GET /metrics` of a fleet: the engines of all workers on one page."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus

import aiohttp
from aiohttp import web

from fleet_api.calls import Access, Call
from fleet_api.connections import untrusted_session
from fleet_api.fleets import Fleet, Fleets
from fleet_api.limits import Slot, Slots
from fleet_api.loop_time import measured
from fleet_api.metric_pages import Page, together
from fleet_api.problems import Problem, busy
from fleet_api.route import Contract, Route
from fleet_api.shared_calls import SharedCalls
from fleet_api.workers import metrics_addresses

MEDIA = "text/plain"
MAX_WORKERS = 256
PAGE_SECONDS = 3.0
"""prime-rl waits 5 s for the whole page."""
_PLAIN = {"Accept-Encoding": "identity"}
_MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Largest page of one worker, whose image decides it. One part of it at a time is in memory."""
PAGES_BYTES = 64 * 1024 * 1024
"""The kept parts of all pages. Those of `MAX_WORKERS` workers with 150 lines fit into the half that a namespace has."""


class WorkerMetrics:
    """The handler."""

    def __init__(self, fleets: Fleets) -> None:
        self._fleets = fleets
        self._shared_calls: SharedCalls[tuple[str, str], bytes] = SharedCalls()
        self._memory = Slots(PAGES_BYTES)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()

    def route(self) -> Route:
        """The route."""
        contract = Contract({200: str}, frozenset({409}), media=MEDIA)
        return Route("GET", "/metrics", self.page, Access.FLEET, contract)

    async def page(self, call: Call) -> web.Response:
        """Numbers of all engines, without buckets; a comment names each worker that does not answer.

        Errors: Problem 409 for a fleet that is too large for one page, 503 if the pages of its namespace are.
        """
        fleet = call.fleet
        if fleet.spec.replicas > MAX_WORKERS:
            raise Problem(
                HTTPStatus.CONFLICT,
                "TooManyWorkers",
                f"fleet {fleet.name!r} has more than {MAX_WORKERS} workers; have Prometheus scrape "
                "them",
            )
        key = (fleet.namespace, fleet.name)
        text = await self._shared_calls.join(key, partial(self._together, fleet))
        return web.Response(body=text, content_type=MEDIA, charset="utf-8")

    async def _together(self, fleet: Fleet) -> bytes:
        """The page, in bytes that all replies share."""
        addresses = metrics_addresses(fleet, await self._fleets.pods(fleet))
        memory = self._memory.open(fleet.namespace)
        try:
            # All at once: behind a limit, workers that are silent would hide others.
            found = await asyncio.gather(
                *(measured(self._page(pod, url, memory)) for pod, url in addresses.items())
            )
            if any(page is not None and page.is_cut for page in found):
                raise busy(
                    "NamespaceOverloaded",
                    f"the metrics of the workers in namespace {fleet.namespace!r} are longer than its share of the "
                    "memory; have Prometheus scrape the workers",
                )
            silent = (
                f"# {p} does not answer\n"
                for p, page in zip(addresses, found, strict=True)
                if page is None
            )
            text = together(page for page in found if page is not None) + "".join(silent)
            return text.encode()
        finally:
            memory.release()

    async def _page(self, pod: str, url: str, memory: Slot) -> Page | None:
        """The page of one worker; None without an answer in time, so that the others are still shown."""
        page, left = Page(pod), _MAX_PAGE_BYTES
        try:
            async with (
                asyncio.timeout(PAGE_SECONDS),
                self._http().get(url, headers=_PLAIN, allow_redirects=False) as reply,
            ):
                if reply.status != HTTPStatus.OK:
                    return None
                async for part in reply.content.iter_any():
                    before = page.kept_bytes
                    page.take(part[:left])
                    if not memory.add(page.kept_bytes - before):
                        page.is_cut = True
                        return page
                    left -= len(part)
                    if left <= 0:
                        break  # a line may be cut there, so it is left out
                else:
                    page.take(b"\n")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return page

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = untrusted_session()
        return self._session

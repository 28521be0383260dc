"""`GET /metrics` of a fleet: the engines of all workers on one page."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import aiohttp
from aiohttp import web

from fleet_api.calls import Access, Call
from fleet_api.contract import Contract
from fleet_api.fleets import Fleets
from fleet_api.metric_pages import together
from fleet_api.problems import Problem
from fleet_api.route import Route
from fleet_api.workers import metrics_addresses

MEDIA = "text/plain"
MAX_WORKERS = 256
PAGE_SECONDS = 3.0
"""prime-rl waits 5 s for the whole page."""
_MAX_PAGE_BYTES = 4 * 1024 * 1024
_AT_ONCE = 32


class WorkerMetrics:
    """The handler."""

    def __init__(self, fleets: Fleets) -> None:
        self._fleets = fleets
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

        Errors: Problem 409 for a fleet that is too large for one page.
        """
        fleet = call.fleet
        if fleet.spec.replicas > MAX_WORKERS:
            raise Problem(
                HTTPStatus.CONFLICT,
                "TooManyWorkers",
                f"fleet {fleet.name!r} has more than {MAX_WORKERS} workers; have Prometheus scrape "
                "them",
            )
        addresses = metrics_addresses(fleet, await self._fleets.pods(fleet))
        slots = asyncio.Semaphore(_AT_ONCE)
        found = await asyncio.gather(*(self._text(url, slots) for url in addresses.values()))
        texts = dict(zip(addresses, found, strict=True))
        silent = (f"# {pod} does not answer\n" for pod, text in texts.items() if text is None)
        pages = {pod: text for pod, text in texts.items() if text is not None}
        return web.Response(text=together(pages) + "".join(silent), content_type=MEDIA)

    async def _text(self, url: str, slots: asyncio.Semaphore) -> str | None:
        """The page of one worker; None without an answer in time, so that the others are still shown."""
        try:
            async with (
                asyncio.timeout(PAGE_SECONDS),
                slots,
                self._http().get(url, allow_redirects=False) as reply,
            ):
                content = await reply.content.read(_MAX_PAGE_BYTES)
                while len(content) < _MAX_PAGE_BYTES and not reply.content.at_eof():
                    content += await reply.content.read(_MAX_PAGE_BYTES - len(content))
                return content.decode(errors="replace") if reply.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

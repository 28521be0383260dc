"""`rlfleet dashboard`: one fleet, live in the browser of this machine."""

from __future__ import annotations

import time
import webbrowser
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated

import typer

from rlfleet.cli import cluster, live, operators, show
from rlfleet.cli.api import Api
from rlfleet.cli.explanation import Explanation, explain, explain_fleet, unattended
from rlfleet.cli.live_page import Look, Sample, content, sample_of, unread, whole_page
from rlfleet.cli.log_lines import LogLine
from rlfleet.cli.log_reader import LogReader
from rlfleet.cli.loopback import Latest, Loopback
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.cli.spans import Span, spans
from rlfleet.errors import Forbidden, RlfleetError
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.words import bounded

_LOGS_EVERY_SECONDS = 5.0
_LEASE_EVERY_SECONDS = 10.0
_MOST_SAMPLES = 600
_MOST_LINES = 20_000


def dashboard(
    name: Name = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show one fleet live in a browser, on this machine only, until Ctrl-C.

    The page has the screen of `rlfleet watch` and the pictures of `rlfleet report`. Its address has a token:
    keep it as secret as the fleet is.
    """
    api = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target, latest = cluster.look(api, name).name, Latest()
    reader = _Reader(api)
    latest.put(reader.content(target))
    title = f"{target}: rlfleet"
    try:
        served = Loopback(port, latest, lambda text, nonce: whole_page(title, text, nonce))
    except OSError as error:
        raise typer.BadParameter(f"port {port} cannot be used: {error.strerror}") from None
    show.console().print(f"{served.url}\nCtrl-C ends it.", markup=False)
    try:
        with _in_a_browser(served.url) if browser else nullcontext():
            while True:
                _pause(interval)
                latest.put(reader.content(target))
    except KeyboardInterrupt:
        return
    finally:
        served.close()


@contextmanager
def _in_a_browser(url: str) -> Iterator[None]:
    """Open a page in a browser, which may be one of this terminal and not come back.

    All users of a machine see command lines, and the address has the token. So the browser gets a file that only
    this user may read, and that leads to the page.
    """
    with TemporaryDirectory(prefix="rlfleet-") as folder:
        page = Path(folder, "dashboard.html")
        page.write_text(f'<meta http-equiv="refresh" content="0; url={url}">\n')
        Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield


def _pause(seconds: float) -> None:
    time.sleep(seconds)


@dataclass(slots=True)
class _Calls:
    """The calls of one rollout, from lines of logs that are read once."""

    logs: LogReader
    started_at: datetime
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    read_at: float = float("-inf")


class _Reader:
    """Looks at a fleet repeatedly. Parts that the account may not see are left out."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._live = live.Live(api)
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._calls: _Calls | None = None
        self._problem = ""
        self._problem_at = float("-inf")
        self._shown = ""

    def content(self, name: str) -> str:
        """The content of the page; after an error, that of the last look below it."""
        try:
            self._shown = content(self._look(name))
        except RlfleetError as error:
            return unread(bounded(f"The fleet cannot be read: {error}")) + self._shown
        return self._shown

    def _look(self, name: str) -> Look:
        fleet, weights = cluster.find_fleet(self._api, name)
        now = cluster.now()
        detail = self._live.look(fleet, weights, now)
        self._samples.append(sample_of(time.monotonic(), detail.workers))
        return Look(
            fleet=fleet,
            weights=weights,
            detail=detail,
            unattended=self._unattended(fleet, weights, now),
            calls=self._calls_to(fleet, weights, now),
            samples=[*self._samples],
        )

    def _unattended(
        self, fleet: InferenceFleet, weights: WeightVersion | None, now: datetime
    ) -> Explanation | None:
        if time.monotonic() - self._problem_at > _LEASE_EVERY_SECONDS:
            self._problem_at = time.monotonic()
            self._problem = operators.problem(self._api, fleet, now)
        if not self._problem:
            return None
        found = explain(weights, fleet, now) if weights else explain_fleet(fleet, now)
        return unattended(found, fleet, self._problem)

    def _calls_to(
        self, fleet: InferenceFleet, weights: WeightVersion | None, now: datetime
    ) -> Sequence[Span]:
        started = weights.status.started_at if weights else None
        if weights is None or started is None or fleet.spec.replicas > live.MOST_WORKERS:
            return ()
        if self._calls is None or self._calls.started_at != started:
            self._calls = _Calls(LogReader(self._api, fleet), started)
        calls = self._calls
        if time.monotonic() - calls.read_at > _LOGS_EVERY_SECONDS:
            calls.read_at = time.monotonic()
            try:
                found = calls.logs.new_lines(started)
                calls.lines.extend(
                    one for one in found if one.fields.get("event") in ("call", "loaded")
                )
            except Forbidden:
                calls.read_at = float("inf")
            except RlfleetError:
                pass  # the next look tries again
        return spans(calls.lines, weights, now)

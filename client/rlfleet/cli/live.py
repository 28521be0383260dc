"""Reads of `rlfleet watch` next to the fleet: pods, Events, and metrics of workers, for which it does not wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Thread
from typing import Any

from rlfleet.cli import cluster
from rlfleet.cli.api import Api
from rlfleet.cli.pods import PodView, metrics_port, pod_view
from rlfleet.cli.worker_figures import (
    Figures,
    figures_of,
    last_pause_seconds,
    tokens_per_second,
)
from rlfleet.errors import Forbidden, RlfleetError
from rlfleet.ports import Json
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.words import bounded
from rlfleet_resources.names import API_VERSION
from rlfleet_resources.weights_status import HistoryEntry

MOST_WORKERS = 32
"""Fleets with more are drawn as squares, and the metrics of their workers are not read."""
_METRICS_EVERY_SECONDS = 2.0
_EVENTS_EVERY_SECONDS = 3.0
_MOST_EVENTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker of the screen. None where it is not known."""

    pod: PodView
    figures: Figures | None = None
    tokens_per_second: float | None = None
    last_pause_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EventLine:
    """One Event about the fleet or its WeightVersion."""

    at: datetime | None
    is_warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Detail:
    """The parts of one look next to the fleet. Each is empty where this account may not see it."""

    now: datetime
    workers: tuple[WorkerRow, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    events: tuple[EventLine, ...] = ()


class _Reading(Thread):
    """One read of the metrics of a worker. The program does not wait for it when it ends."""

    def __init__(self, live: Live, path: str) -> None:
        super().__init__(daemon=True)
        self._live = live
        self._path = path
        self.found: Figures | None = None

    def run(self) -> None:
        """Read them."""
        self.found = self._live.read(self._path)


@dataclass(slots=True)
class _Known:
    """One worker as it was sampled last."""

    reading: _Reading | None = None
    read_at: float = float("-inf")
    figures: Figures | None = None
    speed: float | None = None
    pause: float | None = None


@dataclass(slots=True)
class Live:
    """Reads for one screen after another. Reads that the account may not make are not repeated."""

    api: Api
    _workers: dict[str, _Known] = field(default_factory=dict)
    _denied: set[str] = field(default_factory=set)
    _events: tuple[EventLine, ...] = ()
    _events_at: float = float("-inf")

    def look(self, fleet: InferenceFleet, weights: WeightVersion | None, now: datetime) -> Detail:
        """The detail of one screen."""
        pods = self._pods(fleet)
        rows = tuple(self._row(one, fleet, now) for one in pods[:MOST_WORKERS])
        there = {one.pod.name for one in rows}
        self._workers = {name: known for name, known in self._workers.items() if name in there}
        history = weights.status.history if weights is not None else ()
        return Detail(now, rows, history, self._recent(fleet, weights))

    def _pods(self, fleet: InferenceFleet) -> Sequence[Json]:
        if "pods" in self._denied or fleet.spec.replicas > MOST_WORKERS:
            return ()
        try:
            return cluster.pods_of(self.api, fleet)
        except Forbidden:
            self._denied.add("pods")
        except RlfleetError:
            pass  # the next look tries again
        return ()

    def _row(self, pod: Json, fleet: InferenceFleet, now: datetime) -> WorkerRow:
        view, port = pod_view(pod, fleet, now), metrics_port(pod)
        known = self._workers.setdefault(view.name, _Known())
        if known.reading is not None and not known.reading.is_alive():
            self._take(known, known.reading.found)
            known.reading = None
        due = time.monotonic() - known.read_at > _METRICS_EVERY_SECONDS
        readable = port is not None and view.ip and "metrics" not in self._denied
        if due and readable and known.reading is None:
            known.read_at = time.monotonic()
            path = f"/api/v1/namespaces/{fleet.metadata.namespace}/pods/{view.name}:{port}/proxy/metrics"
            known.reading = _Reading(self, path)
            known.reading.start()
        return WorkerRow(
            pod=view,
            figures=known.figures,
            tokens_per_second=known.speed,
            last_pause_seconds=known.pause,
        )

    def read(self, path: str) -> Figures | None:
        """The metrics of a worker; None if they cannot be read."""
        try:
            return figures_of(self.api.text(path), time.monotonic())
        except Forbidden:
            self._denied.add("metrics")
        except RlfleetError:
            pass  # the worker starts, or has gone
        return None

    @staticmethod
    def _take(known: _Known, found: Figures | None) -> None:
        if found is not None:
            known.speed = tokens_per_second(known.figures, found)
            known.pause = last_pause_seconds(known.figures, found, known.pause)
        known.figures = found

    def _recent(
        self, fleet: InferenceFleet, weights: WeightVersion | None
    ) -> tuple[EventLine, ...]:
        begun = time.monotonic()
        if "events" in self._denied or begun - self._events_at < _EVENTS_EVERY_SECONDS:
            return self._events
        self._events_at = begun
        named = {fleet.metadata.name} | ({weights.metadata.name} if weights else set())
        found: list[Any] = []
        path = f"/api/v1/namespaces/{fleet.metadata.namespace}/events"
        try:
            for name in sorted(named):  # which are also those of Services
                wanted = f"involvedObject.name={name},involvedObject.apiVersion={API_VERSION}"
                only = {"fieldSelector": wanted}
                found += cluster.get(self.api, path, only)["items"]
        except Forbidden:
            self._denied.add("events")
        except RlfleetError:
            return self._events  # as above
        lines = sorted(map(_line, found), key=lambda line: str(line.at), reverse=True)
        self._events = tuple(lines[:_MOST_EVENTS])
        return self._events


def _line(event: Json) -> EventLine:
    text = event.get("lastTimestamp") or event.get("eventTime") or ""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    reason, message = bounded(event.get("reason") or ""), bounded(event.get("message") or "", 200)
    return EventLine(at, event.get("type") == "Warning", reason, message)

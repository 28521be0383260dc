"""Runs the collector once, and posts an Event on each WeightVersion whose versions went or could not."""

from __future__ import annotations

import logging
import secrets
import signal
import sys
import time
from datetime import UTC, datetime
from types import FrameType
from typing import NoReturn

from pydantic import ValidationError

from fleet_collector.collection import Cluster, Outcome, collect, read_objects
from fleet_collector.needs import Json
from fleet_collector.settings import Settings
from fleet_operator.clients.bounded_json import TEXT_BYTES, read_resource
from fleet_worker.logs import handler
from rlfleet.errors import NotConfigured, RlfleetError
from rlfleet.kube import BlockingKube
from rlfleet.kubeconfig import load_access
from rlfleet_resources.conditions import shortened
from rlfleet_resources.names import API_VERSION, WEIGHTS_KIND

_LOG = logging.getLogger(__name__)

FIELD_MANAGER = "rlfleet-collector"
EXIT_ATTENTION, EXIT_CANNOT_START = 1, 2


def run(settings: Settings) -> int:
    """Run once. Returns: the exit code, 1 if something needs attention."""
    logging.basicConfig(
        level=settings.log_level, handlers=[handler(settings.log_format)], force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request at INFO
    signal.signal(signal.SIGTERM, _end)
    try:
        cluster = BlockingKube(load_access(), FIELD_MANAGER, TEXT_BYTES, read_resource)
    except NotConfigured as error:
        _LOG.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    try:
        outcomes = collect(
            lambda: read_objects(cluster, settings.namespaces),
            settings.roots,
            lambda: time.sleep(settings.grace_seconds / 2),
            dry_run=settings.dry_run,
        )
    except (RlfleetError, ValidationError) as error:
        _LOG.error("nothing is deleted: %s", error)
        return EXIT_ATTENTION
    if not outcomes:
        first = settings.namespaces[0]
        _LOG.info("nothing is deleted: no WeightVersion in namespace %s has spec.retention", first)
    for outcome in outcomes:
        _LOG.info("%s", outcome.text())
        if not settings.dry_run:
            post_events(cluster, outcome)
    return EXIT_ATTENTION if any(outcome.problems for outcome in outcomes) else 0


def post_events(cluster: Cluster, outcome: Outcome) -> None:
    """Post Events on the WeightVersions with a rule. One that is not accepted is logged."""
    found = {
        ("Normal", "OldVersionsDeleted"): outcome.text() if outcome.deleted else "",
        ("Normal", "OldVersionsWait"): "; ".join(outcome.waits),
        ("Warning", "OldVersionsNotDeleted"): "; ".join(outcome.problems),
    }
    events = [(kind, reason, message) for (kind, reason), message in found.items() if message]
    for claim in outcome.claims:
        namespace, _, name = claim.owner.partition("/")
        for kind, reason, message in events if claim.rule is not None else ():
            body = _event(namespace, name, claim.uid, kind, reason, message)
            try:
                cluster.call("POST", f"/api/v1/namespaces/{namespace}/events", None, body)
            except RlfleetError as error:
                _LOG.warning("an Event could not be posted: %s", error)


def _event(namespace: str, name: str, uid: str, kind: str, reason: str, message: str) -> Json:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": WEIGHTS_KIND,
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
        "type": kind,
        "reason": reason,
        "message": shortened(message),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
    }


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End in order: what is aside gets its name back."""
    sys.exit(128 + signal.SIGTERM)

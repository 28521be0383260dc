"""The operator's log lines: the schema of the worker, and the objects that lines are about."""

from __future__ import annotations

import logging
from typing import Any

from fleet_operator.runtime.pod_informer import FleetKey
from fleet_worker.logs import LogFormat, fields, handler
from rlfleet_resources import names

_FIELD_OF = {names.FLEET_KIND: "fleet", names.WEIGHTS_KIND: "weightversion"}


def fleet_fields(event: str, key: FleetKey, **values: Any) -> dict[str, Any]:
    """The fields of a line about one fleet."""
    return fields(event, namespace=key[0], fleet=key[1], **values)


def set_up(*, log_format: LogFormat, log_level: str) -> None:
    """Configure the root logger of this process."""
    written = handler(log_format)
    written.addFilter(_name_object)
    logging.basicConfig(level=log_level, handlers=[written], force=True)
    # These log every request or object at INFO.
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _name_object(record: logging.LogRecord) -> bool:
    """Give a line of kopf the name of the object that kopf was handling."""
    if reference := getattr(record, "k8s_ref", None):
        name = {_FIELD_OF.get(reference["kind"], "object"): reference["name"]}
        record.__dict__.update(fields("watch", namespace=reference["namespace"]) | name)
    return True

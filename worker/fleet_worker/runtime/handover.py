"""What `serve` hands to the plugin, which vLLM makes without arguments in the same process."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.core.command import AdapterRoom
from fleet_worker.core.refusals import Refusal
from fleet_worker.runtime.driver import DriverRules
from fleet_worker.runtime.staging import StageRules
from fleet_worker.runtime.transferring import TransferRoom
from fleet_worker.runtime.weights import Weights


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why the process did not start on what the fleet serves."""

    version: str | None
    run_id: str | None
    path: str | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Handover:
    """Everything that is known before the engine starts.

    Fields:
        worker: name shown in state and logs.
        pod_uid: of the pod that it runs in; None outside of a pod, or where nothing says it.
        instance: name of this process.
        started: monotonic seconds of the process' start.
        model: served model name.
        initial: the weights that the engine starts on.
        rules: what staging goes by.
        admin_socket: bound, not listening yet.
        metrics_socket: the same, for scrapers without a key; None if there is no such port.
        token_file: where the tokens of the admin port are.
        silence_seconds / load_seconds: how long the engine may say nothing, at work and in a load.
        engine_version: of vLLM.
        adapters: room for LoRA adapters in the engine.
        transfer: whether weights may come over a collective.
        driver: how trainers may drive.
        start_failure: why the engine starts on the model's own weights, if it should not.
    """

    worker: str
    pod_uid: str | None
    instance: str
    started: float
    model: str
    initial: Weights
    rules: StageRules
    admin_socket: socket.socket
    token_file: Path
    silence_seconds: float
    load_seconds: float
    engine_version: str
    adapters: AdapterRoom
    transfer: TransferRoom
    driver: DriverRules
    start_failure: StartFailure | None = None
    metrics_socket: socket.socket | None = None


_handed: list[Handover] = []


def hand_over(handover: Handover) -> None:
    """Leave it for the plugin."""
    _handed[:] = [handover]


def handed_over() -> Handover:
    """Take what `serve` left.

    Errors:
        RuntimeError: vLLM was started without `python -m fleet_worker serve`.
    """
    if not _handed:
        raise RuntimeError(
            "the rlfleet plugin was loaded, but not by `python -m fleet_worker serve`;"
            " take rlfleet out of VLLM_PLUGINS or start the worker"
        )
    return _handed[0]

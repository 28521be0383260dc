"""The data that `serve` leaves for the plugin. vLLM creates the plugin without arguments."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.checkpoint.reference import StageRules
from fleet_worker.checkpoint.stagers import Stagers
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.process.command import AdapterRoom
from fleet_worker.trainer.driver import DriverRules
from fleet_worker.trainer.transfers import TransferRoom


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why the process did not start on the version that the fleet serves."""

    version: str | None
    run_id: str | None
    path: str | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Handover:
    """Everything that `serve` finds out before the engine starts.

    Fields:
        worker: name of the worker in its state and logs.
        pod_uid: uid of the worker's pod; None if it is unknown.
        instance: random name of this process.
        started: start of the process, in monotonic seconds.
        model: served model name.
        initial: the weights that the engine starts on.
        rules: rules for staging.
        stagers: the processes that read versions; none runs yet.
        admin_socket: bound, not listening yet.
        metrics_socket: bound, not listening yet; None without a metrics port.
        peer_socket: bound, not listening yet; None without a peer port.
        peer_bytes_per_second: to send to all peers together; 0 for no limit.
        loads_in_place: see `Worker`.
        token_file: file with the tokens of the admin port.
        silence_seconds / load_seconds: how long the engine may be silent, at work and in a load.
        engine_version: version of vLLM.
        adapters: slots for LoRA adapters in the engine.
        transfer: how weights may arrive over a collective.
        driver: rules for the calls of trainers.
        start_failure: why the engine starts on the model's own weights instead of the fleet's.
    """

    worker: str
    pod_uid: str | None
    instance: str
    started: float
    model: str
    initial: Weights
    rules: StageRules
    stagers: Stagers
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
    peer_socket: socket.socket | None = None
    peer_bytes_per_second: int = 0
    loads_in_place: bool = False


_handed: list[Handover] = []


def hand_over(handover: Handover) -> None:
    """Leave the data for the plugin."""
    _handed[:] = [handover]


def handed_over() -> Handover:
    """The data that `serve` left.

    Errors:
        RuntimeError: vLLM was started without `python -m fleet_worker serve`.
    """
    if not _handed:
        raise RuntimeError(
            "the rlfleet plugin was loaded, but not by `python -m fleet_worker serve`;"
            " remove rlfleet from VLLM_PLUGINS, or start vLLM with that command"
        )
    return _handed[0]

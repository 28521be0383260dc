"""The rules of `rlfleet validate` that need one object alone: pure.

A spec may have any shape: the API server may not have been asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import DecimalException
from math import prod
from typing import Any

from pydantic import ValidationError

from rlfleet.cli.checks import Result
from rlfleet.ports import Json
from rlfleet_resources.names import WORKER_CONTAINER
from rlfleet_resources.quantities import amount_of
from rlfleet_resources.source import WeightSource

_LEAST_MEMORY = 2**30
"""Python, PyTorch and vLLM alone need more before they load a model."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_STAGED_SHARE = 0.25
"""Of the memory, without `spec.weights.stagingMemory`. Source: docs/how-to/size-a-fleet.md."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a spec breaks."""

    result: Result
    rule: str
    message: str
    remedy: str


def of_fleet(spec: Any, checkpoint_bytes: int | None = None) -> Iterator[Broken]:
    """The rules of a fleet. `checkpoint_bytes`: size of its model, if it can be seen from here."""
    yield from _gpus(spec)
    yield from _memory(spec, checkpoint_bytes)


def of_weights(spec: Any) -> Iterator[Broken]:
    """The rules of a WeightVersion."""
    try:
        _, place, revision = WeightSource.model_validate(at(spec, "source")).key()
    except ValidationError:  # the API server says so
        return
    where = revision or place
    unknown = [word for word in _PLACEHOLDER.findall(where) if word != "version"]
    if unknown:
        message = (
            f"{{{unknown[0]}}} in {where} is not a placeholder, so it stays a part of the name"
        )
        yield Broken(Result.FAIL, "UnknownPlaceholder", message, "write {version}")
    elif "{version}" in where and not at(spec, "runID"):
        message = (
            "spec.source is a template and spec.runID is missing, so a training that starts over at step 1 "
            "has the run of the one before, and its versions are refused"
        )
        remedy = "name the training in spec.runID, or publish with --run or run_id="
        yield Broken(Result.WARN, "RunMissing", message, remedy)


def _gpus(spec: Any) -> Iterator[Broken]:
    engine, arguments = at(spec, "engine"), at(spec, "engine", "args")
    sizes = {
        field: size if isinstance(size := at(engine, field), int) else 1
        for field in ("tensorParallelSize", "pipelineParallelSize")
    }
    needed, devices = prod(sizes.values()), _devices(spec)
    texts = (
        [one for one in arguments if isinstance(one, str)] if isinstance(arguments, list) else []
    )
    if _is_claimed(spec) or any(one.startswith("--data-parallel") for one in texts):
        return  # the number is not in the spec, or vLLM multiplies it
    counted = sum(number for name, number in devices.items() if _is_gpu(name))
    product = " x ".join(f"{field} {size}" for field, size in sizes.items())
    if 0 < counted < needed:
        message = f"a worker asks for {counted:g} GPUs and needs {needed}: {product}"
        remedy = f"set the GPUs of spec.resources.limits to {needed}, or make the product smaller"
        yield Broken(Result.FAIL, "TooFewGPUs", message, remedy)
    elif counted > needed:
        message = f"a worker asks for {counted:g} GPUs and uses {needed}: {product}"
        remedy = "make the product of both sizes the number of GPUs"
        yield Broken(Result.WARN, "IdleGPUs", message, remedy)
    elif not devices and not _is_for_cpus(engine):
        message = "a worker asks for no GPU, which the worker image for GPUs needs"
        remedy = f"set nvidia.com/gpu: {needed} in spec.resources.limits, or use the image for CPUs"
        yield Broken(Result.WARN, "NoGPU", message, remedy)


def _is_for_cpus(engine: Any) -> bool:
    """Whether the image is named as one for CPUs, or vLLM's settings for CPUs are in the environment."""
    variables = at(engine, "env")
    names = [str(at(one, "name")) for one in variables] if isinstance(variables, list) else []
    is_set = any(name.startswith("VLLM_CPU_") for name in names)
    return is_set or "cpu" in str(at(engine, "image") or "").lower()


def _memory(spec: Any, checkpoint_bytes: int | None) -> Iterator[Broken]:
    # A request alone does not bound the worker.
    limits = [at(one, "limits", "memory") for one in (at(spec, "resources"), *_overlaid(spec))]
    given = next((one for one in reversed(limits) if one), None)
    memory = _number(given)
    if memory is None:
        return
    if memory < _LEAST_MEMORY:
        message = f"a worker gets {given} of memory, and Python, PyTorch and vLLM alone need more than 1Gi"
        yield Broken(Result.FAIL, "TooLittleMemory", message, "raise memory in spec.resources")
        return
    staging = _number(at(spec, "weights", "stagingMemory"))
    staged = memory * _STAGED_SHARE if staging is None else staging
    if checkpoint_bytes is not None and checkpoint_bytes > staged:
        share = "a quarter of its memory" if staging is None else "spec.weights.stagingMemory"
        message = (
            f"a worker stages up to {staged / 1e9:.1f} GB ({share}), and the model has "
            f"{checkpoint_bytes / 1e9:.1f} GB, so it reads each version once more under the pause"
        )
        remedy = "raise memory in spec.resources, or spec.weights.stagingMemory"
        yield Broken(Result.WARN, "TooLittleMemory", message, remedy)


def _devices(spec: Any) -> dict[str, float]:
    """Devices of the worker's container by the names of their resources. Such a name has a domain."""
    found = dict[str, float]()
    for resources in (at(spec, "resources"), *_overlaid(spec)):
        for kind in ("requests", "limits"):
            part = at(resources, kind)
            for name, value in part.items() if isinstance(part, dict) else ():
                if "/" in str(name) and (number := _number(value)):
                    found[str(name)] = number
    return found


def _overlaid(spec: Any) -> Iterator[Any]:
    containers = at(spec, "podOverlay", "spec", "containers")
    for one in containers if isinstance(containers, list) else ():
        if at(one, "name") == WORKER_CONTAINER:
            yield at(one, "resources")


def _is_gpu(name: str) -> bool:
    return name.endswith("/gpu") or "/mig-" in name or name.startswith("gpu.intel.com/")


def _is_claimed(spec: Any) -> bool:
    """Whether devices come by dynamic resource allocation."""
    return bool(
        at(spec, "resources", "claims")
        or at(spec, "pod", "resourceClaims")
        or at(spec, "podOverlay", "spec", "resourceClaims")
    )


def _number(quantity: Any) -> float | None:
    """The number of a quantity such as `64Gi`; None if it is invalid."""
    try:
        return float(amount_of(str(quantity)))
    except DecimalException:
        return None


def at(body: Any, *path: str) -> Any:
    """A field; None if it or an object on the way is missing."""
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def overlay_of(fleet: Json) -> Json | None:
    """A pod of the overlay alone, whose fields the API server knows or refuses; None without one."""
    overlay = at(fleet, "spec", "podOverlay")
    if not isinstance(overlay, dict) or not overlay:
        return None
    metadata = overlay.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    return {
        **overlay,
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": named | {"name": "rlfleet-validate"},
    }

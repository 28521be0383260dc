"""Check at start every name of vLLM that the worker needs (`vllm_names`).

vLLM moves its modules at almost every release. A missing name must be one clear sentence at start, not an
AttributeError during a weight swap. The extra `worker` in pyproject.toml has the supported range.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fleet_worker.engine.vllm_names import API_SERVER_NAMES, RUNNER_NAMES, WORKER_NAMES, Name

DISTRIBUTION = "rlfleet-server"
ENTRY_POINT_GROUP = "vllm.endpoint_plugins"
PLUGIN = "rlfleet"


class UnsupportedEngineError(Exception):
    """The worker cannot drive the installed vLLM."""


def supported_range() -> str:
    """Return the supported versions of vLLM from our metadata, e.g. `<0.34,>=0.32`."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - comes with vLLM

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedEngineError(
            f"the distribution {DISTRIBUTION} is not installed, and without its metadata vLLM does"
            " not find the worker's plugin: install it with pip"
        ) from error
    for line in lines:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": "worker"})
        if requirement.name == "vllm" and applies:
            return str(requirement.specifier)
    raise UnsupportedEngineError(
        "the metadata of rlfleet does not name the supported vLLM versions"
    )


def check_engine() -> str:
    """Check that this vLLM has all names that the worker needs, and will load our plugin.

    Returns:
        The version of vLLM.

    Errors:
        UnsupportedEngineError: with the missing names and the supported range.
    """
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - comes with vLLM

    supported = supported_range()
    try:
        version = str(importlib.import_module("vllm").__version__)
    except ImportError as error:
        raise UnsupportedEngineError(
            f"vLLM cannot be imported ({error}); install vllm{supported}"
        ) from error
    public = version.partition("+")[0]
    missing = missing_names(API_SERVER_NAMES)
    problems = [f"it lacks {name}" for name in missing]
    if not SpecifierSet(supported).contains(public, prereleases=True):
        problems.insert(0, "it is outside of that range")
    fields = getattr(importlib.import_module("vllm.outputs"), "CompletionOutput", None)
    if "weight_versions" not in getattr(fields, "__dataclass_fields__", {}):
        problems.append("its outputs have no weight_versions")
    if problems:
        raise UnsupportedEngineError(
            f"vLLM {version} is not supported (rlfleet needs vllm{supported}): {'; '.join(problems)}"
        )
    _check_entry_point()
    return version


def missing_names(names: tuple[Name, ...]) -> list[str]:
    """Return the names that are missing, or do not accept our parameters."""
    missing = []
    for name in names:
        with suppress(ImportError):
            if has(importlib.import_module(name.module), name.attribute, name.parameters):
                continue
        missing.append(str(name))
    return missing


def check_objects(client: object, models: object) -> None:
    """Check attributes that vLLM sets on objects, and not in their classes.

    Args:
        client: The engine client.
        models: vLLM's list of models (`OpenAIServingModels`).

    Errors:
        UnsupportedEngineError: with the missing names and the supported range.
    """
    needed = (
        (models, "lora_requests"),
        (client, "output_processor.request_states"),
        (client, "output_processor.parent_requests"),
    )
    missing = [
        f"{type(thing).__name__}.{attribute}"
        for thing, attribute in needed
        if not has(thing, attribute, ())
    ]
    if missing:
        raise UnsupportedEngineError(
            f"vLLM lacks {', '.join(missing)} (rlfleet needs vllm{supported_range()})"
        )


def has(thing: object, attribute: str, parameters: tuple[str, ...]) -> bool:
    """Return whether something has an attribute, dots go deeper, that accepts parameters of these names."""
    try:
        for part in filter(None, attribute.split(".")):
            thing = getattr(thing, part)
        if parameters:
            known = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]  # callable by then
            takes_any = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in known)
            return takes_any or set(parameters) <= {p.name for p in known}
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _check_entry_point() -> None:
    points = list(_entry_points())
    if len(points) != 1:
        raise UnsupportedEngineError(
            f"the entry point group {ENTRY_POINT_GROUP} has {len(points)} entries named {PLUGIN},"
            " expected 1: without it vLLM would serve without the latch. Install rlfleet again"
        )
    # If a plugin fails to load, vLLM only logs it and serves without it.
    points[0].load()


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    seen = set()
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == PLUGIN and point.value not in seen:
            seen.add(point.value)
            yield point


def runner_of(worker: Any) -> str:
    """Return the module of the runner that a worker has; empty if it is neither."""
    modules = {each.__module__ for each in type(worker.model_runner).__mro__}
    return next((each for each in RUNNER_NAMES if each in modules), "")


def missing_on(worker: Any) -> list[str]:
    """Return the names that a worker object of the engine lacks."""
    runner = runner_of(worker)
    if not runner:
        return [f"model_runner of {' or '.join(RUNNER_NAMES)}"]
    return [
        f"{attribute}({', '.join(parameters)})"
        for attribute, parameters in (*WORKER_NAMES, *RUNNER_NAMES[runner])
        if not has(worker, attribute, parameters)
    ]

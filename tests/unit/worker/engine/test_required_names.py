"""The check for the names that the worker needs in vLLM."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from collections.abc import Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fleet_worker.engine import required_names
from fleet_worker.engine.required_names import (
    Name,
    UnsupportedEngineError,
    check_engine,
    check_objects,
    missing_names,
)


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    return made


def taking(*parameters: str) -> Any:
    """A function with these parameters."""

    def function(*_: Any, **__: Any) -> None: ...

    kinds = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY) for p in ("self", *parameters)]
    function.__signature__ = inspect.Signature(kinds)  # read by inspect
    return function


def with_names(names: Iterable[Name]) -> dict[str, ModuleType]:
    """Modules that have these names, and nothing else."""
    modules = {name.module: module(name.module) for name in names}
    for name in names:
        if not name.attribute:
            continue
        outer, _, inner = name.attribute.partition(".")
        where = modules[name.module]
        if not inner and not name.parameters:
            setattr(where, outer, taking())
            continue
        if not hasattr(where, outer):
            setattr(where, outer, type(outer, (), {}))
        if inner and inner != "__dataclass_fields__":
            setattr(getattr(where, outer), inner, taking(*name.parameters))
        elif not inner:
            getattr(where, outer).__signature__ = inspect.signature(taking(*name.parameters))
    return modules


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Something that has all the names of vLLM 0.32; parts of it can be taken away."""
    modules = with_names(required_names.API_SERVER_NAMES)
    modules["vllm"] = module("vllm", __version__="0.32.0+cpu")
    output = modules["vllm.outputs"].CompletionOutput
    output.__dataclass_fields__ = {"weight_versions": None}
    client = modules["vllm.v1.engine.async_llm"].AsyncLLM
    for name in list(modules):
        parts = name.split(".")
        for length in range(1, len(parts)):
            modules.setdefault(".".join(parts[:length]), module(".".join(parts[:length])))
    for name, made in modules.items():
        monkeypatch.setitem(sys.modules, name, made)
    point = SimpleNamespace(name="rlfleet", value="fleet_worker.plugin:x", load=lambda: None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _: ["vllm<0.34,>=0.32; extra == 'worker'", "httpx"]
    )
    return SimpleNamespace(modules=modules, client=client, point=point)


def test_a_vllm_with_all_required_names_passes(vllm: SimpleNamespace) -> None:
    assert check_engine() == "0.32.0+cpu"


@pytest.mark.parametrize("name", required_names.API_SERVER_NAMES, ids=str)
def test_each_missing_name_is_listed_with_the_supported_range(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: Name
) -> None:
    if not name.attribute:
        monkeypatch.setitem(sys.modules, name.module, None)
    elif name.attribute.startswith("AsyncLLM."):
        monkeypatch.delattr(vllm.client, name.attribute.split(".")[1])
    else:
        monkeypatch.delattr(vllm.modules[name.module], name.attribute.split(".")[0])
    with pytest.raises(UnsupportedEngineError) as error:
        check_engine()

    assert str(name) in str(error.value)
    assert "<0.34,>=0.32" in str(error.value)


def test_a_missing_parameter_is_named(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm.client, "pause_generation", lambda self, *, mode: None)
    with pytest.raises(UnsupportedEngineError, match="pause_generation"):
        check_engine()


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0", "0.34.0rc1"])
def test_a_version_outside_the_range_is_refused(vllm: SimpleNamespace, version: str) -> None:
    vllm.modules["vllm"].__version__ = version
    with pytest.raises(UnsupportedEngineError, match="outside of that range"):
        check_engine()


def test_outputs_without_weight_versions_are_refused(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = vllm.modules["vllm.outputs"].CompletionOutput
    monkeypatch.setattr(output, "__dataclass_fields__", {})
    with pytest.raises(UnsupportedEngineError, match="weight_versions"):
        check_engine()


@pytest.mark.parametrize("count", [0, 2])
def test_other_than_one_entry_point_is_refused(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    points = [SimpleNamespace(name="rlfleet", value=f"x:{i}") for i in range(count)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: points)
    with pytest.raises(UnsupportedEngineError, match=f"{count} entries"):
        check_engine()


def test_a_plugin_that_does_not_import_is_refused_at_start(vllm: SimpleNamespace) -> None:
    def fail() -> None:
        raise ImportError("it is broken")

    vllm.point.load = fail
    with pytest.raises(ImportError, match="it is broken"):
        check_engine()


def test_installed_modules_without_metadata_are_refused(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    with pytest.raises(UnsupportedEngineError, match="metadata"):
        check_engine()


def test_a_callable_with_any_keywords_accepts_our_parameters() -> None:
    assert missing_names((Name("builtins", "dict", ("whatever",)),)) in (
        [],
        ["builtins.dict(whatever)"],
    )
    assert missing_names((Name("json", "dumps", ("obj", "indent")),)) == []
    assert missing_names((Name("json", "dumps", ("nothing",)),)) == []  # it has **kw
    assert missing_names((Name("json", "load_it"),)) == ["json.load_it"]


def test_missing_attributes_of_instances_are_named(vllm: SimpleNamespace) -> None:
    processor = SimpleNamespace(request_states={}, parent_requests={})
    client, models = SimpleNamespace(output_processor=processor), SimpleNamespace(lora_requests={})
    check_objects(client, models)
    del models.lora_requests, processor.parent_requests
    with pytest.raises(UnsupportedEngineError, match=r"lora_requests.*parent_requests"):
        check_objects(client, models)

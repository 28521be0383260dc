"""The Python of the newest declared vLLM with the kernels of the vLLM for CPUs of all other tests; and names of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.engine.scripts import LOADS, output_of
from tests.support.environments import worker_python

import vllm_next

pytestmark = pytest.mark.xdist_group("architectures")

_SCRIPT = (
    """
import asyncio, json, os, sys
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import torch, vllm
from vllm.v1.engine.async_llm import AsyncLLM
from fleet_worker.engine.vllm_requests import sent_again
"""
    + LOADS
    + """
one, other = sys.argv[1:]
arguments = vllm.AsyncEngineArgs(
    model=one, enforce_eager=True, max_model_len=256, dtype="bfloat16", kv_cache_memory_bytes=1 << 26, max_num_seqs=4,
    worker_extension_cls="fleet_worker.engine.extension.WorkerExtension")

async def tokens(generate, number):
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    last = None
    async for last in generate({"prompt_token_ids": [5, 6, 7]}, sampling, str(number)):
        pass
    return list(last.outputs[0].token_ids)

async def seen():
    client = AsyncLLM.from_engine_args(arguments)
    resumed = asyncio.Event()
    asked = []
    class FakeWorker:
        steps = 0
        async def let_in(self, request_id, since):
            asked.append(request_id)
            await resumed.wait()
            return True
    generate = sent_again(client.generate, FakeWorker())
    found = {"version": vllm.__version__, "missing": await client.collective_rpc("rlfleet_missing_names"),
             "one": await tokens(generate, 1)}
    await client.pause_generation(mode="abort", clear_cache=True)
    waiting = asyncio.ensure_future(tokens(generate, 2))
    while not asked:
        await asyncio.sleep(0.01)
    (load,) = await client.collective_rpc("rlfleet_load", kwargs=load_of(other))
    (check,) = await client.collective_rpc("rlfleet_probe")
    await client.resume_generation()
    resumed.set()
    found |= {"asked": asked, "load": load["error"], "check": check["error"], "held": await waiting,
              "after": await tokens(generate, 3)}
    client.shutdown()
    return found

print("result", json.dumps(asyncio.run(seen())))
"""
)

_NAMES = """
import importlib, importlib.util, inspect, json, re, sys, types
if importlib.util.find_spec("orjson") is None:  # 0.33 needs it, and the environment of 0.32 lacks it
    sys.modules["orjson"] = types.ModuleType("orjson")
import vllm.config
from fleet_worker.engine import vllm_names as names
from fleet_worker.engine.required_names import has, missing_names

def class_of(name):
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)

def sets(owner, name):
    # A class has it or declares it, or a method of the class sets it.
    return hasattr(owner, name) or any(
        name in vars(each).get("__annotations__", {}) or f"self.{name}" in inspect.getsource(each)
        for each in owner.__mro__ if each.__module__.startswith("vllm"))

def has_field(config, path):
    first, _, rest = path.partition(".")
    if not rest or not sets(config, first):
        return sets(config, first)
    words = re.findall(r"\\w+", str(config.__annotations__[first]))
    homes = vllm.config, sys.modules[config.__module__]
    found = {getattr(home, word, None) for home in homes for word in words}
    (inner,) = (c for c in found if isinstance(c, type) and c.__module__.startswith("vllm"))
    return has_field(inner, rest)

def is_there(name, parameters, runner):
    owner, _, path = name.partition(".")
    if owner == "vllm_config":
        return has_field(class_of("vllm.config:VllmConfig"), path)
    if path.startswith("model."):
        model = class_of("vllm.model_executor.models.qwen3:Qwen3ForCausalLM")
        return has(model, path.removeprefix("model."), parameters)
    home = class_of(f"{runner}:GPUModelRunner" if path else "vllm.v1.worker.gpu_worker:Worker")
    first = (path or name).partition(".")[0]
    return has(home, first, parameters) if parameters else sets(home, first)

modules, objects, fields, of_worker = json.load(sys.stdin)
missing = missing_names((*names.API_SERVER_NAMES, *names.ENGINE_NAMES, *(names.Name(*each) for each in modules)))
for name in (*names.OBJECT_NAMES, *objects):
    owner, _, attribute = name.rpartition(".")
    missing += [] if sets(class_of(owner), attribute) else [name]
config = class_of("vllm.config:VllmConfig")
missing += [name for name in (*names.CONFIGURATION_NAMES, *fields) if not has_field(config, name)]
for runner, own in names.RUNNER_NAMES.items():
    wanted = (*names.WORKER_NAMES, *own, *((name, parameters) for name, parameters in of_worker))
    missing += [name for name, parameters in wanted if not is_there(name, parameters, runner)]
print("result", json.dumps(missing))
"""
"""Lists names that a vLLM lacks, also on the classes of a GPU: those of `vllm_names`, and those of its input."""


@pytest.mark.parametrize("which", ["installed", "newest declared"])
def test_every_name_that_the_worker_needs_is_there_and_one_that_is_gone_is_found(which) -> None:
    modules = [["vllm.gone"], ["vllm.lora.request", "LoRARequest", ["gone"]]]
    objects = ["vllm.outputs:CompletionOutput.gone"]
    fields = ["lora_config.gone", "offload_config.prefetch.gone"]
    of_worker = [["gone", []], ["model_runner.gone", []], ["model_runner.execute_model", ["gone"]]]
    python = worker_python() if which == "installed" else str(vllm_next.interpreter())
    stdin = json.dumps([modules, objects, fields, of_worker])

    missing = output_of(_NAMES, stdin=stdin, python=python)

    expected = ["vllm.gone", "vllm.lora.request.LoRARequest(gone)", *objects, *fields]
    assert missing == expected + [name for name, _ in of_worker] * 2


@pytest.fixture(scope="module")
def found(weights: Weights) -> dict[str, Any]:
    python = str(vllm_next.interpreter())
    return dict(output_of(_SCRIPT, str(weights.a), str(weights.b), python=python))


def test_the_newest_declared_vllm_has_every_name_in_its_engine(found: dict[str, Any]) -> None:
    assert found["version"] == vllm_next.pinned()[0].partition("==")[2]
    assert found["missing"] == [[]]


def test_a_load_into_it_changes_its_tokens_and_passes_the_check(found: dict[str, Any]) -> None:
    assert (found["load"], found["check"]) == (None, None)
    assert found["after"] != found["one"]


def test_a_request_that_it_refuses_in_a_pause_is_sent_again(found: dict[str, Any]) -> None:
    assert found["asked"] == ["2"]
    assert found["held"] == found["after"]

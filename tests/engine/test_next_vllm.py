"""The newest declared vLLM: its Python with the kernels of the vLLM for CPUs that all other tests use.

`RLFLEET_VLLM=next make test-engine` runs all of them with it.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.engine.scripts import LOADS, output_of

import vllm_next
from vllm_names import pinned

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


@pytest.fixture(scope="module")
def found(weights: Weights) -> dict[str, Any]:
    python = str(vllm_next.interpreter())
    return dict(output_of(_SCRIPT, str(weights.a), str(weights.b), python=python))


def test_the_newest_declared_vllm_has_every_name_in_its_engine(found: dict[str, Any]) -> None:
    assert found["version"] == pinned()[0].partition("==")[2]
    assert found["missing"] == [[]]


def test_a_load_into_it_changes_its_tokens_and_passes_the_check(found: dict[str, Any]) -> None:
    assert (found["load"], found["check"]) == (None, None)
    assert found["after"] != found["one"]


def test_a_request_that_it_refuses_in_a_pause_is_sent_again(found: dict[str, Any]) -> None:
    assert found["asked"] == ["2"]
    assert found["held"] == found["after"]

"""HTTP clients of trainers as they were released, at one address. They run where vLLM is installed.

    released_clients.py <address> <folder of weights>

Each line of the standard input is an act with its arguments as JSON, and each line of the output its
outcome. Of TRL's communicator the wire is replaced: NCCL needs a GPU, so tensors go through a file.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import traceback
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typing_extensions

GROUP = {"master_address": "127.0.0.1", "master_port": 51216, "rank_offset": 1}
ADDRESS, WEIGHTS = sys.argv[1], Path(sys.argv[2])
WIRE = WEIGHTS / "wire.safetensors"


def without_its_imports(package: str) -> None:
    """Import a package without what its `__init__` imports, which are the trainer's own parts."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)


# SkyRL is made for Python 3.12, where pydantic takes this class.
typing.TypedDict = typing_extensions.TypedDict
for name in ("trl.generation", "trl.experimental.async_grpo", "skyrl.backends"):
    without_its_imports(name)
without_its_imports("skyrl.backends.skyrl_train")

from accelerate import PartialState  # noqa: E402 - the above is for these
from safetensors.torch import load_file, save_file  # noqa: E402 - the above is for these
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402 - the above is for these
    RemoteInferenceClient,
)
from trl.experimental.async_grpo import vllm_client as async_trl  # noqa: E402 - the above is for these
from trl.generation import vllm_client as trl  # noqa: E402 - the above is for these
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient  # noqa: E402 - the above is for these


def vllm_syncs(file: str, label: str, world_size: int, fails_at: int = -1) -> None:
    client = HTTPVLLMWeightSyncClient(ADDRESS)
    client.init_weight_transfer_engine({**GROUP, "world_size": world_size})
    client.start_weight_update()
    client.update_weights({"file": file, "fails_at": fails_at})
    client.finish_weight_update(label)


def trl_async(file: str, hangs_at: int = -1) -> dict[str, Any]:
    client = async_trl.VLLMClient(ADDRESS, server_timeout=60)
    client.wait_for_server_ready()
    found = {"world_size": client.get_world_size(), "dtype": client.get_dtype()}
    found["max_model_len"] = client.get_max_model_len()
    client.init_weight_transfer_engine({**GROUP, "world_size": found["world_size"] + 1})
    client.pause()
    client.start_weight_update()
    client.update_weights({"file": file, "hangs_at": hangs_at})
    client.finish_weight_update()
    client.resume()
    return found


def trl_sync(step: str) -> dict[str, Any]:
    WIRE.unlink(missing_ok=True)
    client = trl.VLLMClient(base_url=ADDRESS, connection_timeout=60)
    before = client.generate([[1, 2, 3]], n=2, max_tokens=8)
    client.init_communicator("cuda")
    tensors = load_file(WEIGHTS / step / "model.safetensors")
    metadata = [(n, str(t.dtype).removeprefix("torch."), list(t.shape)) for n, t in tensors.items()]
    client.update_named_params(metadata, iter(tensors.items()))
    client.reset_prefix_cache()
    after = client.generate([[1, 2, 3]], n=2, max_tokens=8)
    mode = client.get_server_info()["model_config"]["logprobs_mode"]  # as GRPOTrainer reads it
    return {"model": client.model, "before": before, "after": after, "logprobs_mode": mode}


def file_for_nccl(iterator: Iterator[tuple[str, Any]], **_: Any) -> None:
    aside = WIRE.with_suffix(".part")
    save_file(dict(iterator), aside)
    aside.chmod(0o644)
    aside.rename(WIRE)


PartialState(cpu=True)  # as a trainer does at its start; TRL's log needs it
trl.open_trainer_endpoint = lambda _: None
trl.packed_nccl_broadcast_producer = file_for_nccl


def skyrl(model: str) -> dict[str, Any]:
    async def life() -> dict[str, Any]:
        async with RemoteInferenceClient(ADDRESS, [ADDRESS], 1, model) as client:
            (paused,) = (await client.pause()).values()
            waiting = asyncio.create_task(client.generate(batch([5, 6])))
            world = await client.get_world_size()
            await client.reset_prefix_cache(reset_running_requests=True)
            await client.resume()
            late = await waiting
            await client.sleep(level=1)
            await client.wake_up(tags=["weights", "kv_cache"])
            woken = await client.generate(batch([5, 6]))
            text = await client.detokenize([[5, 6]])
            await client.finish_session("a")
            return {
                "paused": paused["body"]["status"],
                "world_size": world,
                "tokens": [late["response_ids"], woken["response_ids"]],
                "logprobs": woken["response_logprobs"],
                "text": text,
            }

    def batch(prompt: list[int]) -> Any:
        sampling = {"max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        ids = {"prompt_token_ids": [prompt], "session_ids": ["a"], "cache_salt": "7"}
        return {**ids, "prompts": None, "sampling_params": sampling, "mm_features": None}

    return asyncio.run(life())


ACTS: dict[str, Callable[..., Any]] = {
    act.__name__: act for act in (vllm_syncs, trl_async, trl_sync, skyrl)
}


def main() -> None:
    tell({"ready": sorted(ACTS)})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            outcome = {"done": ACTS[asked.pop("act")](**asked)}
        except Exception as error:  # noqa: BLE001 - the test judges it
            status = getattr(getattr(error, "response", None), "status_code", None)
            outcome = {"error": repr(error), "status": status, "trace": traceback.format_exc()}
        tell(outcome)


def tell(outcome: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


main()

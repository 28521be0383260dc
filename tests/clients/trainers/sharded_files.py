"""A model that FSDP shards over the processes: each one writes a file, and the first one publishes. Prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.fsdp import fully_shard

from rlfleet import UnusableWeights, Weights

run = Path(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Linear(129, 65), torch.nn.Linear(65, 33, bias=False)]  # no even parts
model = torch.nn.Sequential(*layers).to(torch.bfloat16)
for layer in (*layers, model):
    fully_shard(layer)


def saved(folder: Path, **options: bool) -> Path:
    """Save the parts of all processes."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, **options)
    dcp.save(model.state_dict(), storage_writer=writer)
    if dist.get_rank() == 0:
        (folder / "config.json").write_text("{}")
    return folder


versions: list[str | None] = []
refused: list[str] = []
with Weights("policy", namespace="rl") as weights:

    def publish(step: int, **given: object) -> None:
        """Publish in the first process; the others wait for it."""
        if dist.get_rank() == 0:
            try:
                weights.publish(step, path=run / f"step_{step}", delta=True, wait=False, **given)
            except UnusableWeights as error:
                refused.append(str(error))
            else:
                versions.append(weights.written.base_version)
        dist.barrier()

    for step in (1, 2, 3):
        with torch.no_grad():
            model[1].weight.to_local()[step, :7] += 1
        publish(step, directory=saved(run.parent / f"local_{step}", enable_consolidation=True))
    publish(4, directory=saved(run.parent / "parts"))
    publish(4, state_dict=model.state_dict(), config_from=run.parent / "parts")
gathered = {
    name: tensor.full_tensor().view(torch.uint8).numpy().tobytes().hex()
    for name, tensor in model.state_dict().items()
}
if dist.get_rank() == 0:
    print(json.dumps({"versions": versions, "refused": refused, "gathered": gathered}))  # noqa: T201 - the test reads it
dist.destroy_process_group()

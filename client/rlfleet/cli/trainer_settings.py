"""The settings with which a trainer uses a fleet: one entry for each trainer. Pure.

The settings are those of docs/how-to/connect-a-trainer.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from string import Template

from rlfleet.ports import Json


class Trainer(StrEnum):
    """Trainers with settings."""

    PLAIN = "plain"
    PRIME_RL = "prime-rl"
    TRL = "trl"
    VERL = "verl"
    NEMO_RL = "nemo-rl"
    SKYRL = "skyrl"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one trainer.

    Fields:
        file: name of the file.
        text: of the file; `$name`, `$namespace`, `$account`, `$claim`, `$root`, `$api` and `$run` are replaced
            by those of the fleet. Each kind of file has `#` before comments.
        weights: fields of `spec.weights` of the fleet; with management External it has no WeightVersion.
        arguments: of the engine.
    """

    file: str
    text: str
    weights: Json | None = None
    arguments: tuple[str, ...] = ()

    def filled(self, names: dict[str, str]) -> str:
        """The file. `names`: of the placeholders."""
        return Template(_POD + self.text).substitute(names)


_POD = """\
# The pod of the trainer: serviceAccountName: $account, and the claim $claim at $root, writable.
"""
_BY_HEADER = """\
# The RL API must run (the chart's api.enabled=true). A token of the account for it:
# kubectl -n $namespace create token $account --audience=rlfleet --duration=24h
"""
_BY_PATH = """\
# The RL API must run (the chart's api.enabled=true). The trainer sends no headers, so the address has a key:
# one of the entry $namespace.$name in the Secret of the chart's api.keysSecret.
"""
_PUBLISH = """\
# Publish what it has saved, for example after step 10:
# rlfleet publish 10 $name -n $namespace --run run-1 --wait --path """

_PROCESSED = ("--logprobs-mode=processed_logprobs",)
"""After temperature and masks, as trainers compute the log-probabilities that they compare with those of workers."""

SETTINGS: dict[Trainer, Settings] = {
    Trainer.PLAIN: Settings(
        "publish.py",
        """\
# Clients sample from http://$name.$namespace.svc:8000/v1.
from pathlib import Path

from rlfleet import Weights, make_readable, run_of

RUN = Path("$run")  # a training that starts over writes to another directory
run_id = run_of(RUN)
weights = Weights("$name", namespace="$namespace")


def save_and_publish(step, model, tokenizer):
    folder = RUN / f"step_{step}"
    folder.mkdir()  # the files of a version never change
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    make_readable(folder)  # for workers, which run as another user
    return weights.publish(str(step), path=str(folder), run_id=run_id)
""",
    ),
    Trainer.PRIME_RL: Settings(
        "prime-rl.toml",
        _BY_HEADER
        + """\
output_dir = "$run"

[client]
base_url = "$api/fleets/$namespace/$name/v1"
admin_base_url = ["$api/fleets/$namespace/$name"]
api_key_var = "VLLM_API_KEY"  # of the environment: the token

[weight_broadcast]
type = "filesystem"
""",
        arguments=_PROCESSED,
    ),
    Trainer.TRL: Settings(
        "trl_config.py",
        _BY_PATH
        + """\
# trainer.yaml lets the RL API call the workers. Weights come over NCCL.
import os

from trl import GRPOConfig

key = os.environ["RLFLEET_KEY"]
config = GRPOConfig(
    output_dir="$run",
    use_vllm=True,
    vllm_mode="server",
    vllm_server_base_url=f"$api/t/{key}/fleets/$namespace/$name",
)
""",
        weights={"management": "External", "transfer": {"backend": "nccl"}},
        arguments=_PROCESSED,
    ),
    Trainer.VERL: Settings(
        "verl.yaml",
        "# verl samples from engines of its own. The fleet serves what verl has saved.\n"
        + _PUBLISH
        + """$run/global_step_10/actor/huggingface
trainer:
  default_local_dir: $run
  save_freq: 10
actor_rollout_ref:
  actor:
    checkpoint:
      save_contents: [model, optimizer, extra, hf_model]
""",
    ),
    Trainer.NEMO_RL: Settings(
        "nemo-rl.yaml",
        _BY_HEADER
        + """\
base_url: $api/fleets/$namespace/$name/v1
control_base_url: $api/fleets/$namespace/$name
""",
    ),
    Trainer.SKYRL: Settings(
        "skyrl.yaml",
        _BY_PATH
        + "# SkyRL cannot send weights to these workers: that needs its own worker extension.\n"
        + _PUBLISH
        + """$run/global_step_10/policy
server_urls: ["$api/t/<key>/fleets/$namespace/$name"]
""",
    ),
}

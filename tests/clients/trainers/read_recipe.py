"""Takes the place of `python3` in the recipes: the trainer's own parser reads the command line.

Prints as JSON what the trainer would do with it. Nothing is trained: what starts a training is replaced.
"""

# ruff: noqa: PLC0415 - each function imports one trainer
from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


def verl(words: list[str]) -> dict[str, Any]:
    """verl's hydra configuration, its checks, and the class of the callback."""
    import verl.trainer.main_ppo as program
    from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback

    found: dict[str, Any] = {}

    def run(config: Any, task_runner_class: Any) -> None:
        found["directory"] = config.trainer.default_local_dir
        found["every"] = config.trainer.save_freq
        found["saved"] = list(config.actor_rollout_ref.actor.checkpoint.save_contents)
        found["callback"] = type(build_checkpoint_callback(config)).__name__

    program.run_ppo = run
    sys.argv = ["main_ppo", *words]
    program.main()
    return found


def openrlhf(words: list[str]) -> dict[str, Any]:
    """OpenRLHF's program, with its parser and checks. Ray, DeepSpeed and the trainer are fakes."""
    found: dict[str, Any] = {}

    class StartedError(Exception):
        """The command line is accepted."""

    def start() -> bool:
        frame = sys._getframe(1).f_locals["args"]
        found.update(directory=frame.ckpt.path, every=frame.ckpt.save_steps, hf=frame.ckpt.save_hf)
        raise StartedError

    for name in ("ray", "ray.util", "ray.util.placement_group", "deepspeed"):
        sys.modules[name] = MagicMock()
    for name in ("", ".launcher", ".ppo_actor", ".ppo_critic"):
        sys.modules[f"openrlhf.trainer.ray{name}"] = MagicMock()
    package = ModuleType("openrlhf.utils")
    import openrlhf

    package.__path__ = [f"{openrlhf.__path__[0]}/utils"]
    package.get_strategy = MagicMock()
    sys.modules["openrlhf.utils"] = package
    sys.modules["ray"].is_initialized = start
    sys.argv = ["train_ppo_ray", *words]
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except StartedError:
        return found
    raise AssertionError("the program did not begin to train")


def areal(words: list[str]) -> dict[str, Any]:
    """AReaL's structured configuration: an unknown key is an error. Its logger is a fake."""
    sys.modules["areal.utils.stats_logger"] = MagicMock()
    sys.modules[
        "areal.utils.stats_logger"
    ].StatsLogger.get_log_path.return_value = f"{Path.home()}/logs"
    from areal.api.cli_args import GRPOConfig, load_expr_config
    from areal.utils.saver import Saver

    config, _ = load_expr_config(words, GRPOConfig)
    saver = config.saver
    named = (saver.experiment_name, saver.trial_name, saver.fileroot)
    return {
        "every": saver.freq_steps,
        "directory": Saver.get_model_save_root(*named),
        "saved": Saver.get_model_save_path(*named, 0, 9, 9),
    }


def trl(words: list[str]) -> dict[str, Any]:
    """TRL's dataclass. Its check of the machine needs a GPU for the default precision."""
    import trl

    trl.GRPOConfig = partial(trl.GRPOConfig, use_cpu=True, bf16=False)
    config = runpy.run_path(words[0])["config"]
    return {"server": config.vllm_server_base_url, "mode": config.vllm_mode}


PROGRAMS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "verl.trainer.main_ppo": verl,
    "openrlhf.cli.train_ppo_ray": openrlhf,
    "areal": areal,
    "trl": trl,
}

if __name__ == "__main__":
    _, name, *rest = sys.argv[1:]
    sys.stdout.write("\n" + json.dumps(PROGRAMS[name](rest)) + "\n")

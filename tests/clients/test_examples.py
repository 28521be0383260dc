"""Examples and the callback with real libraries, against the RL API over a fake API server.

The parsers of trainers read the recipes. Of the trainings only TRL's is run; the others need GPUs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.checkpoints import write_checkpoints
from tests.support.deltas import apply, metadata, read_tensors
from tests.support.environments import trainers_packages, worker_python
from tests.support.fake_cluster import TRAINER
from tests.support.pages import ROOT
from tests.support.rl_api import RlApi, rl_api

from fleet_worker.process.manifest import digest_in
from rlfleet.cli.trainer_settings import SETTINGS, Trainer

TRAINERS = Path(__file__).parent / "trainers"
EXAMPLES = ROOT / "examples"
VERL, SLIME = "verl/publish.py", "slime/publish.py"


@pytest.fixture
async def api() -> AsyncIterator[RlApi]:
    """Its fleet serves version 0."""
    async with rl_api() as made:
        spec = {"fleetRef": {"name": "policy"}, "version": "0", "source": {"path": "/w/0"}}
        made.objects.make(spec)
        yield made


async def run(
    api: RlApi, program: Path | str, *arguments: str, packages: str = "trainers", **variables: str
) -> str:
    """The output of a program, without its error output. `packages`: environments of trainers."""
    done = await asyncio.create_subprocess_exec(
        *(worker_python(), program, *arguments),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join((f"{ROOT}/client", *map(trainers_packages, packages.split()))),
            "RLFLEET_API_URL": api.url,
            "RLFLEET_API_TOKEN": TRAINER,
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await done.communicate()
    assert done.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.long  # transformers alone takes ten seconds to import
async def test_a_trainer_saves_and_publishes_what_workers_of_another_user_can_read(
    api: RlApi, tmp_path: Path
) -> None:
    """safetensors writes files for their own user, and a trainer often runs as root."""
    program = TRAINERS / "callback_steps.py"
    run_folder = tmp_path / "run"

    printed = json.loads((await run(api, program, str(tmp_path))).splitlines()[-1])

    assert printed == {"user": os.geteuid(), "reports": 2, "applied": 4.0}
    assert {each.name for each in run_folder.iterdir()} == {".rlfleet-run", "step_2", "step_4"}
    written = {each.name: each.stat().st_mode for each in (run_folder / "step_4").iterdir()}
    assert {"config.json", "model.safetensors"} <= written.keys()
    assert {name for name, mode in written.items() if mode & 0o444 != 0o444} == set()
    for folder in (run_folder, run_folder / "step_4"):
        assert folder.stat().st_mode & 0o555 == 0o555
    spec = api.objects.weights["spec"]
    assert spec["source"]["path"] == str(run_folder / "step_4")
    assert spec["runID"] == (run_folder / ".rlfleet-run").read_text()


@pytest.mark.long  # as above
async def test_a_trainer_publishes_what_differs_from_the_step_before(
    api: RlApi, tmp_path: Path
) -> None:
    program = TRAINERS / "callback_steps.py"

    printed = json.loads((await run(api, program, str(tmp_path), "delta")).splitlines()[-1])

    assert printed["applied"] == 4.0
    steps = [tmp_path / "run" / name for name in ("step_2", "step_4")]
    assert [metadata(step).get("base_version") for step in steps] == [None, "2"]
    assert apply(read_tensors(steps[0]), steps[1]) == read_tensors(tmp_path / "last")
    assert api.objects.weights["spec"]["digest"] == digest_in(str(tmp_path / "last"))


async def complete(request: web.Request) -> web.Response:
    """A worker's answer to a list of prompts."""
    asked = await request.json()
    prompts = asked["prompt"]
    assert [asked[key] for key in ("temperature", "top_p", "top_k")] == [1.0, 1.0, 0]
    one = {"prompt_token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.5]}}
    one["weight_versions"] = [{"version": "0", "start": 0, "end": 2}]
    choices = [one | {"index": n, "token_ids": [7 + n, 8]} for n in range(len(prompts))]
    return web.json_response({"choices": choices[::-1]})


@pytest.mark.long  # as above
async def test_trls_trainer_samples_from_the_fleet_and_publishes_each_step(
    api: RlApi, tmp_path: Path
) -> None:
    write_checkpoints({tmp_path / "base": {"seed": 1}})
    worker = web.Application()
    worker.router.add_post("/v1/completions", complete)

    async with TestServer(worker) as server:
        printed = await run(
            api,
            EXAMPLES / "trl/train.py",
            packages="trainers recipes",
            FLEET_URL=str(server.make_url("")),
            MODEL_DIRECTORY=str(tmp_path / "base"),
            OUTPUT_DIRECTORY=str(tmp_path / "trl"),
            RUN_DIRECTORY=str(tmp_path / "run"),
            HOME=str(tmp_path),
        )

    trains = [line for line in printed.splitlines() if line.startswith("step ")]
    assert trains == [f"step {n} trains on tokens of 0" for n in range(3)]
    assert api.objects.weights["spec"]["version"] == "3"
    first, *others = (
        digest_in(str(tmp_path / name)) for name in ("base", "run/step_1", "run/step_3")
    )
    assert len({first, *others}) == 3


async def test_tensors_of_torch_have_the_bytes_and_types_that_safetensors_writes(
    api: RlApi, tmp_path: Path
) -> None:
    printed = json.loads(await run(api, TRAINERS / "torch_tensors.py", str(tmp_path)))

    assert printed == {"tensors": 21, "differing": []}


@pytest.mark.long  # as above
async def test_the_example_publishes_deltas_and_every_fourth_version_in_full(
    api: RlApi, tmp_path: Path
) -> None:
    write_checkpoints({tmp_path / "base": {"seed": 1}})

    printed = await run(
        api,
        ROOT / "examples" / "deltas/train.py",
        MODEL_DIRECTORY=str(tmp_path / "base"),
        RUN_DIRECTORY=str(tmp_path / "run"),
    )

    assert [line.partition(",")[0] for line in printed.splitlines()] == [
        "step 1: full",
        "step 2: delta of 1",
        "step 3: delta of 2",
        "step 4: delta of 3",
        "step 5: full",
        "step 6: delta of 5",
    ]
    result = read_tensors(tmp_path / "run/step_1")
    for step in (2, 3, 4):
        result = apply(result, tmp_path / f"run/step_{step}")
    assert metadata(tmp_path / "run/step_6")["base_digest"] == digest_in(
        str(tmp_path / "run/step_5")
    )
    assert api.objects.weights["spec"]["version"] == "6"


@pytest.mark.long  # two processes import transformers
async def test_a_sharded_model_is_gathered_and_published(api: RlApi, tmp_path: Path) -> None:
    write_checkpoints({tmp_path / "base": {"seed": 1}})

    printed = await run(
        api,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        str(EXAMPLES / "fsdp/train.py"),
        MODEL_DIRECTORY=str(tmp_path / "base"),
        RUN_DIRECTORY=str(tmp_path / "run"),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )

    assert "step 4 serves after" in printed
    assert api.objects.weights["spec"]["source"]["path"] == str(tmp_path / "run/step_4")
    base, last = read_tensors(tmp_path / "base"), read_tensors(tmp_path / "run/step_4")
    assert last.keys() == base.keys()
    assert [name for name in base if len(last[name]) != len(base[name])] == []
    assert last != base


async def test_files_of_the_parts_of_a_sharded_model_are_published(
    api: RlApi, tmp_path: Path
) -> None:
    printed = await run(
        api,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *(str(TRAINERS / "sharded_files.py"), str(tmp_path / "run")),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    found = json.loads(printed)

    assert found["versions"] == [None, "1", "2"]
    assert [words.partition(" is ")[0] for words in found["refused"]] == ["0.bias", "0.weight"]
    result = read_tensors(tmp_path / "run/step_1")
    for step in (2, 3):
        result = apply(result, tmp_path / f"run/step_{step}")
    assert {name: data.hex() for name, data in result.items()} == found["gathered"]
    assert api.objects.weights["spec"]["digest"] == digest_in(str(tmp_path / "local_3"))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            "verl",
            {
                "directory": "RUN",
                "every": 10,
                "saved": ["model", "optimizer", "extra", "hf_model"],
                "callback": "PublishToFleet",
            },
        ),
        ("openrlhf", {"directory": "RUN", "every": 10, "hf": True}),
    ],
    ids=["verl", "OpenRLHF"],
)
async def test_the_trainers_parser_takes_the_recipes_command(
    tmp_path: Path, recipe: str, expected: dict[str, Any]
) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {worker_python()} {TRAINERS}/read_recipe.py "$@"\n')
    python.chmod(0o755)

    done = await asyncio.create_subprocess_exec(
        *("sh", EXAMPLES / recipe / "train.sh"),
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'client'}:{trainers_packages('recipes')}",
            "RUN_DIRECTORY": "RUN",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await done.communicate()

    assert done.returncode == 0, errors.decode()
    assert json.loads(output.splitlines()[-1]) == expected


@pytest.mark.long  # TRL imports transformers
async def test_trls_dataclass_takes_the_settings_that_init_writes(
    api: RlApi, tmp_path: Path
) -> None:
    names = dict.fromkeys(("name", "namespace", "account", "claim", "root", "run"), "policy")
    settings = tmp_path / "trl_config.py"
    settings.write_text(SETTINGS[Trainer.TRL].filled(names | {"api": "http://rl"}))

    words = ("-m", "trl", str(settings))
    printed = await run(
        api, TRAINERS / "read_recipe.py", *words, RLFLEET_KEY="key", HOME=str(tmp_path)
    )

    assert json.loads(printed.splitlines()[-1]) == {
        "server": "http://rl/t/key/fleets/policy/policy",
        "mode": "server",
    }


async def test_areal_takes_the_recipe_and_saves_below_its_root(api: RlApi, tmp_path: Path) -> None:
    words = ("-m", "areal", "--config", str(EXAMPLES / "areal/gsm8k.yaml"))
    root = f"cluster.fileroot={tmp_path}"

    printed = await run(
        api, TRAINERS / "read_recipe.py", *words, root, packages="recipes", HOME=str(tmp_path)
    )

    found = json.loads(printed.splitlines()[-1])
    assert found["every"] == 10
    folder = Path(found["saved"])
    assert folder.parent == Path(found["directory"])
    (pattern,) = re.findall(r"'(\S+)' python3", (EXAMPLES / "areal/README.md").read_text())
    version = re.fullmatch(pattern, folder.name)
    assert version is not None
    assert version[1] == "9"


def folder_of(program: str) -> Path:
    """The folder of an example, which a trainer needs on its path."""
    return (EXAMPLES / program).parent


async def test_verls_callback_publishes_the_model_that_verl_has_saved(
    api: RlApi, tmp_path: Path
) -> None:
    """The class is made as verl makes it."""
    saved = tmp_path / "run/global_step_10/actor/huggingface"
    saved.mkdir(parents=True)
    (saved / "config.json").touch(mode=0o600)
    program = tmp_path / "drive.py"
    program.write_text(
        "import sys\n"
        "from omegaconf import OmegaConf\n"
        "from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback\n"
        f"sys.path.append({str(folder_of(VERL))!r})\n"
        "name = {'trainer': {'checkpoint_callback_class': 'publish.PublishToFleet'}}\n"
        "made = build_checkpoint_callback(OmegaConf.create(name))\n"
        f"where = {str(saved.parents[1])!r}\n"
        "made.on_save(trainer=None, global_step=10, checkpoint_dir=where, async_save=False)\n"
    )

    printed = await run(api, program, packages="recipes")

    assert "step 10 serves after" in printed
    spec = api.objects.weights["spec"]
    assert (spec["version"], spec["source"]["path"]) == ("10", str(saved))
    assert spec["runID"] == (tmp_path / "run/.rlfleet-run").read_text()
    assert (saved / "config.json").stat().st_mode & 0o444 == 0o444


async def test_slimes_hook_publishes_each_delta_once(api: RlApi, tmp_path: Path) -> None:
    """slime calls it with the empty folder first. The second process must do nothing."""
    versions = tmp_path / "versions"
    (versions / "weight_v000001").mkdir(parents=True)
    program = tmp_path / "drive.py"
    program.write_text(
        "import sys\n"
        "import torch.distributed as dist\n"
        f"sys.path.append({str(folder_of(SLIME))!r})\n"
        "from publish import publish\n"
        "dist.get_rank = lambda: int(sys.argv[1])\n"
        f"publish(None, {str(versions)!r}, [])\n"
        f"publish(None, {str(versions / 'weight_v000001')!r}, [])\n"
    )

    await run(api, program, "1")
    assert api.objects.weights["spec"]["version"] == "0"
    await run(api, program, "0")

    spec = api.objects.weights["spec"]
    assert (spec["version"], spec["source"]["path"]) == (
        "000001",
        str(versions / "weight_v000001"),
    )

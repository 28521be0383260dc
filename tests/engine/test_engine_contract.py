"""Our assumptions about vLLM, checked on the installed vLLM."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.engine.scripts import output_of
from tests.engine.test_public_port import CONTROL_ROUTES
from tests.support.checkpoints import copy_of
from tests.support.environments import engine_environment, worker_python
from tests.support.layouts import READ, write_layout
from tests.support.programs import written_by

from fleet_worker.gateway.routes import Access, access_of
from fleet_worker.protocol import OWNED_ENGINE_FLAGS
from fleet_worker.protocol.flags import refused_flags
from rlfleet.cli.engine_flags import known
from rlfleet_resources.weight_files import INDEX_FILE

pytestmark = pytest.mark.xdist_group("contract")
_ASK = """
import json, warnings
warnings.simplefilter("ignore")
from fleet_worker.engine.required_names import check_engine
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
flags = sorted({name for action in parser._actions for name in action.option_strings})
print(json.dumps({"version": check_engine(), "flags": flags}))
"""

_START = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import tempfile
from transformers.modeling_utils import _get_resolved_checkpoint_files
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.engine.start_names import DIGESTS_FILE, LOAD_FORMAT
from fleet_worker.engine.start_loader import register
from fleet_worker.process.start_directory import start_directory
tempfile.tempdir = tempfile.mkdtemp()
register()
loader, found = get_model_loader(LoadConfig(load_format=LOAD_FORMAT)), []
for directory in sys.argv[1:]:
    checkpoint = open_checkpoint(directory, None)
    checkpoint.hashes(lambda: None)
    made = Path(start_directory(checkpoint, checkpoint, port=0))
    theirs, _ = _get_resolved_checkpoint_files(str(made), None, None, True, None, False)
    def read(folder=made):
        source = DefaultModelLoader.Source(str(folder), None, prefix="model.")
        try:
            return sorted((name, tensor.tolist()) for name, tensor in loader._get_weights_iterator(source))
        except Exception as error:
            return getattr(error, "reason", type(error).__name__)
    before = read()
    for file in checkpoint.files:
        Path(directory, file.name).write_bytes(file.read(0, file.state.size - 1) + b"9")
    after, draft = read(), read(directory)
    (made / DIGESTS_FILE).unlink()
    names = sorted({Path(each).resolve().name for each in theirs})
    found.append({"transformers": names, "read": before, "after": after, "draft": draft, "without": read()})
print("result " + json.dumps(found))
"""

_AUDIT = """
import json, sys
from fleet_worker.audit.teacher import log_probabilities
from fleet_worker.process.manifest import only_weights
found = []
for directory in sys.argv[1:]:
    with only_weights(directory) as made:
        found += log_probabilities(made, [([5, 6, 7], [9, 10, 11])], device="cpu")
print("result " + json.dumps(found))
"""

_CONFIGURE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from fleet_worker.engine.vllm_facts import unsafe_settings
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
model, found = sys.argv[1], {}
for flags in json.loads(sys.argv[2]):
    arguments = parser.parse_args(["--model", model, "--enforce-eager", *flags])
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    found[" ".join(flags)] = unsafe_settings(config)
    config.parallel_config.enable_eplb = True  # refused by vLLM itself on CPUs
    found[" ".join([*flags, "rebalanced"])] = unsafe_settings(config)
print(json.dumps(found))
"""

# Flags that the reference recommends, and those a fleet is most likely to pass.
USUAL_FLAGS = (
    "--enforce-eager",
    "--kv-cache-memory-bytes",
    "--block-size",
    "--dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "--gpu-memory-utilization",
    "--quantization",
    "--tokenizer",
    "--chat-template",
    "--reasoning-parser",
    "--tool-call-parser",
    "--enable-auto-tool-choice",
    "--logprobs-mode",
    "--api-key",
    "--seed",
    "--speculative-config",
    "--compilation-config",
    "--trust-remote-code",
)


@cache
def installed() -> dict[str, Any]:
    command = [worker_python(), "-c", _ASK]
    printed = written_by(command, timeout=120, env=engine_environment())
    return dict(json.loads(printed.splitlines()[-1]))


def test_the_installed_engine_has_every_name_that_the_worker_uses() -> None:
    assert installed()["version"].startswith("0.32.")


def test_every_library_reads_the_one_set_of_weights_and_the_engine_only_its_digested_bytes(
    tmp_path: Path,
) -> None:
    layouts = list(READ.values())
    for number, (files, more, _) in enumerate(layouts):
        write_layout(tmp_path / str(number), files, **more)
    found = output_of(_START, *(str(tmp_path / str(number)) for number in range(len(layouts))))

    for (_, _, read), seen in zip(layouts, found, strict=True):
        weights = sorted(name for name in read if name.endswith(".safetensors"))
        assert seen["transformers"] == weights
        assert [tensor for _, tensor in seen["read"]] == [[ord("1")]] * len(weights)
        assert all(name.startswith("model.") for name, _ in seen["read"])
        assert seen["after"] == "CheckpointChanged"
        assert seen["without"] == "FileNotFoundError"
    assert found[0]["draft"] == [["model.a", [ord("9")]]], "other directories are not compared"


def test_the_audit_recomputes_with_the_digested_weights_whatever_is_next_to_them(
    tmp_path: Path, weights: Any
) -> None:
    # The index of an earlier save, and an adapter over another model.
    left_over = copy_of(weights.b, tmp_path / "left-over")
    index = json.loads((weights.sharded / INDEX_FILE).read_text())
    (left_over / INDEX_FILE).write_text(json.dumps(index))
    adapter = {"base_model_name_or_path": str(weights.c), "peft_type": "LORA"}
    (left_over / "adapter_config.json").write_text(json.dumps(adapter))
    # Names that transformers does not know.
    renamed = copy_of(weights.sharded, tmp_path / "renamed")
    (renamed / INDEX_FILE).unlink()
    for number, shard in enumerate(sorted(renamed.glob("*.safetensors"))):
        shard.rename(renamed / f"part-{number}.safetensors")

    plain, *others = output_of(_AUDIT, *map(str, (weights.b, left_over, renamed)))
    assert others == [pytest.approx(plain)] * 2


@pytest.mark.parametrize("owned", OWNED_ENGINE_FLAGS, ids=lambda owned: owned.flag)
def test_an_owned_flag_is_a_flag_of_the_engine(owned: Any) -> None:
    flags = installed()["flags"]
    names = [f for f in flags if f == owned.flag or (owned.family and f.startswith(owned.flag))]

    assert names
    assert not owned.short or any(flag.startswith(owned.short) for flag in flags)


def test_the_command_line_knows_the_flags_of_the_engine() -> None:
    # `python3 tools/engine_flags.py` writes them again.
    assert sorted(known().flags) == installed()["flags"]
    assert installed()["version"].startswith(f"{known().version}.")


def test_the_flags_that_fleets_need_are_theirs_to_pass() -> None:
    flags = installed()["flags"]

    assert [flag for flag in USUAL_FLAGS if flag not in flags] == []
    assert refused_flags([f"{flag}=1" for flag in USUAL_FLAGS]) == []


def test_no_flag_is_refused_but_those_that_are_owned() -> None:
    owned = {o.flag for o in OWNED_ENGINE_FLAGS} | {o.short for o in OWNED_ENGINE_FLAGS if o.short}
    owned |= {flag.replace("--", "--no-", 1) for flag in owned}
    families = tuple(
        name
        for o in OWNED_ENGINE_FLAGS
        if o.family
        for name in (o.flag, o.short, o.flag.replace("--", "--no-", 1))
        if name
    )
    refused = {f for f in installed()["flags"] if refused_flags([f"{f}=1"])}

    assert {f for f in refused if f not in owned and not f.startswith(families)} == set()


@pytest.mark.long
def test_flags_of_vllm_that_keep_old_weights_are_seen_in_its_configuration(weights: Any) -> None:
    store = '--kv-transfer-config={"kv_connector": "ExampleConnector", "kv_role": "kv_both"}'
    encoder = '--ec-transfer-config={"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}'
    manager = '--ec-manager-config={"encoder_cache_manager_cls": "theirs.Manager"}'
    own = "--kv-offloading-size=1"
    prefetch, unified = "--offload-group-size=2", "--cpu-offload-gb=1"
    flags = json.dumps([[], [own], [store], [encoder], [manager], [prefetch], [unified]])
    command = [worker_python(), "-c", _CONFIGURE, str(weights.a), flags]
    printed = written_by(command, timeout=300, env=engine_environment())
    found = json.loads(printed.splitlines()[-1])

    assert found[""] == found[own] == []
    assert "ExampleConnector" in found[store][0]
    assert "ECExampleConnector" in found[encoder][0]
    assert "theirs.Manager" in found[manager][0]
    assert "offload_group_size is 2" in found[prefetch][0]
    assert "cpu_offload_gb is 1" in found[unified][0]
    (sentence,) = found["rebalanced"]
    assert "enable_eplb" in sentence


@pytest.mark.parametrize("route", CONTROL_ROUTES)
def test_a_control_route_is_absent_before_the_first_request(route: str) -> None:
    assert access_of(route.split()[1]) is Access.ABSENT

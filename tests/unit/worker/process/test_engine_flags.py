"""Which arguments a fleet may pass to vLLM."""

from __future__ import annotations

import pytest

from fleet_worker.protocol import OWNED_ENGINE_FLAGS, OwnedFlag
from fleet_worker.protocol.flags import refused_flags


@pytest.mark.parametrize("owned", OWNED_ENGINE_FLAGS, ids=lambda owned: owned.flag)
def test_a_reserved_flag_is_refused_in_every_spelling(owned: OwnedFlag) -> None:
    for spelling in (
        [owned.flag, "x"],
        [f"{owned.flag}=x"],
        [owned.flag.replace("-", "_").replace("__", "--", 1)],
        [owned.flag.replace("--", "--no-", 1)],
        [f"{owned.flag}.field=x"],
        [owned.flag[:-1]],
    ):
        (sentence,) = refused_flags(spelling)
        assert owned.reason in sentence or "not allowed" in sentence, spelling


@pytest.mark.parametrize(
    "owned", [o for o in OWNED_ENGINE_FLAGS if o.short], ids=lambda owned: owned.flag
)
def test_a_reserved_flag_is_refused_by_its_short_name(owned: OwnedFlag) -> None:
    for spelling in ([owned.short, "2"], [f"{owned.short}=2"]):
        assert len(refused_flags(spelling)) == 1, spelling


@pytest.mark.parametrize("argument", ["-n2", "-dpl=2", "-dpr", "-as=3", "--data-parallel-rank=1"])
def test_unusual_spellings_are_refused(argument: str) -> None:
    assert len(refused_flags([argument])) == 1


@pytest.mark.parametrize(
    "argument",
    [
        "--enable-eplb",
        "--kv-transfer-config={}",
        "--kv-offloading-backend=lmcache",
        "--ec-transfer-config={}",
        "--ec-manager-config={}",
        "--offload-backend=prefetch",
        "--offload-group-size=8",
        "--offload_num_in_group=2",
        "--offload-prefetch-step=1",
        "--offload-params=mlp",
        "--cpu-offload-gb=1",
        "--cpu-offload-params=mlp",
    ],
)
def test_a_flag_that_keeps_something_of_old_weights_is_refused(argument: str) -> None:
    """By name: the tests above only know what the list holds."""
    assert len(refused_flags([argument])) == 1


def test_arguments_after_the_end_of_flags_are_refused() -> None:
    assert len(refused_flags(["--", "--port=1"])) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len=8192", "--enforce-eager"],
        ["--kv-cache-memory-bytes", "67108864", "--dtype", "bfloat16"],
        ["-tp", "2", "-pp=2", "-q", "fp8"],
        ["--compilation-config.mode", "0"],
        ["--override-generation-config", '{"temperature": 1}'],
        ["--max-num-seqs", "-1"],
        ["--tokenizer", "/x", "--chat-template", "--"[:1]],
        [],
    ],
)
def test_other_flags_pass(arguments: list[str]) -> None:
    assert refused_flags(arguments) == []


def test_a_value_that_looks_like_a_reserved_flag_is_refused() -> None:
    # `--chat-template --port` is not a command line that vLLM accepts either.
    assert len(refused_flags(["--chat-template", "--port"])) == 1


def test_every_reserved_flag_has_its_own_reason() -> None:
    flags = [owned.flag for owned in OWNED_ENGINE_FLAGS]

    assert len(flags) == len(set(flags))
    assert all(owned.reason and not owned.reason.endswith(".") for owned in OWNED_ENGINE_FLAGS)

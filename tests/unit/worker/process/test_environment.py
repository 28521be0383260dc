"""The environment and command line of vLLM."""

from __future__ import annotations

import pytest

from fleet_worker.process.command import (
    FORCED,
    AdapterRoom,
    Public,
    engine_arguments,
    is_parallel,
    prepared_environment,
)


def prepared(
    environment: dict[str, str], *, cpu: bool = True, single_process: bool = True
) -> tuple[dict[str, str], list[str]]:
    return prepared_environment(
        environment, other_plugins=["other"], cpu=cpu, single_process=single_process
    )


def test_an_empty_environment_gets_all_required_variables() -> None:
    environment, notes = prepared({})

    assert environment["USER"] == "rlfleet", "an image may not know the user id"
    assert environment["VLLM_SERVER_DEV_MODE"] == "0"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_PLUGINS"] == "rlfleet,other"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert notes == []


@pytest.mark.parametrize("name", sorted(FORCED))
def test_reserved_variables_are_overwritten_with_a_log_line(name: str) -> None:
    environment, notes = prepared({name: "1"})

    assert environment[name] == FORCED[name]
    assert len(notes) == 1
    assert name in notes[0]


def test_defaults_may_be_overwritten_by_the_fleet() -> None:
    found = {"HF_HUB_OFFLINE": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment, notes = prepared(found)

    assert found.items() <= environment.items()
    assert notes == []


@pytest.mark.parametrize(
    ("cpu", "single_process"),
    [
        pytest.param(False, True, id="with an accelerator"),
        pytest.param(True, False, id="with several processes"),
    ],
)
def test_the_model_gets_its_own_process_where_required(cpu: bool, single_process: bool) -> None:
    environment, _ = prepared({}, cpu=cpu, single_process=single_process)

    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


def test_the_service_link_named_vllm_is_removed() -> None:
    environment, notes = prepared({"VLLM_PORT": "tcp://10.0.0.1:8000"})

    assert "VLLM_PORT" not in environment
    assert "enableServiceLinks" in notes[0]
    assert prepared({"VLLM_PORT": "9000"})[0]["VLLM_PORT"] == "9000", "a valid port is kept"


def test_metrics_are_kept_in_the_memory_of_one_process() -> None:
    environment, notes = prepared({"PROMETHEUS_MULTIPROC_DIR": "/tmp"})  # noqa: S108 - a value

    assert "PROMETHEUS_MULTIPROC_DIR" not in environment
    assert len(notes) == 1


def test_our_plugin_is_added_to_a_list_of_plugins() -> None:
    assert prepared({"VLLM_PLUGINS": "mine,rlfleet"})[0]["VLLM_PLUGINS"] == "rlfleet,mine"
    assert prepared({"VLLM_PLUGINS": ""})[0]["VLLM_PLUGINS"] == "rlfleet"


def command(*extra: str, adapters: AdapterRoom | None = None) -> list[str]:
    return engine_arguments(
        public=Public("0.0.0.0", 8000, "policy"),
        directory="/start",
        log_format="json",
        log_level="info",
        adapters=adapters or AdapterRoom(),
        transfer_backend=None,
        extra=extra,
    )


def test_the_command_line_has_our_arguments_before_the_fleets() -> None:
    arguments = command("--max-model-len=1")

    assert "--model=/start" in arguments
    assert "--load-format=rlfleet" in arguments
    assert "--served-model-name=policy" in arguments
    assert "--middleware=fleet_worker.gateway.gate.Gate" in arguments
    assert "--enable-scale-out" in arguments
    assert arguments[-1] == "--max-model-len=1"


def test_adapters_are_off_without_slots() -> None:
    assert not [argument for argument in command() if "lora" in argument]
    on = command(adapters=AdapterRoom(slots=3, max_rank=8))
    assert [argument for argument in on if "lora" in argument] == [
        "--enable-lora",
        "--max-loras=3",
        "--max-cpu-loras=3",
        "--max-lora-rank=8",
    ]


def test_the_arguments_of_unused_slots_come_last() -> None:
    on = command(adapters=AdapterRoom(slots=3, max_rank=8, spare=1))

    assert {"--max-loras=4", "--max-cpu-loras=4"} <= set(on)
    assert not any("lora" in argument for argument in command(adapters=AdapterRoom(spare=1)))


def test_progress_bars_are_off_with_json_logs() -> None:
    assert "--no-use-tqdm-on-load" in command()


@pytest.mark.parametrize(
    ("extra", "parallel"),
    [
        ((), False),
        (("--tensor-parallel-size=1",), False),
        (("--tensor-parallel-size=2",), True),
        (("--tensor-parallel", "2"), True),
        (("--tensor_par=2",), True),
        (("--pipeline=2",), True),
        (("--tensor-parallel-sizes=2",), False),
        (("--tensor_parallel_size", "2"), True),
        (("-tp", "4"), True),
        (("-pp=2",), True),
        (("-tp",), False),
    ],
)
def test_several_engine_processes_are_recognised(extra: tuple[str, ...], parallel: bool) -> None:
    assert is_parallel(extra) is parallel

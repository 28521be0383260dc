"""The worker's reference page is complete."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.support.environments import REPOSITORY
from tests.support.worker_harness import WorkerHarness

from fleet_worker.engine.vllm_names import API_SERVER_NAMES, RUNNER_NAMES, WORKER_NAMES
from fleet_worker.errors import status_of
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.process.command import CPU_DEFAULTS, DEFAULTS, FORCED
from fleet_worker.protocol import (
    MAX_ANSWER_BYTES,
    MOST_ADAPTERS,
    OWNED_ENGINE_FLAGS,
    Phase,
    Reason,
    max_answer_bytes,
    max_answer_parts,
)

PAGE = (REPOSITORY / "docs" / "reference" / "worker.md").read_text()


def test_every_reason_is_described_once_with_its_status() -> None:
    rows = {
        reason: [line for line in PAGE.splitlines() if line.startswith(f"| `{reason}` |")]
        for reason in Reason
    }

    assert [r for r, found in rows.items() if len(found) != 1] == []
    assert [r for r, (row,) in rows.items() if str(status_of(r)) not in row] == []


def test_every_phase_is_described() -> None:
    assert [phase for phase in Phase if f"| `{phase}` |" not in PAGE] == []


def test_every_reserved_flag_is_listed() -> None:
    flags = [f"{owned.flag}*" if owned.family else owned.flag for owned in OWNED_ENGINE_FLAGS]

    assert [flag for flag in flags if f"`{flag}`" not in PAGE] == []


def test_every_variable_is_listed() -> None:
    variables = {**FORCED, **DEFAULTS, **CPU_DEFAULTS}

    assert [name for name, value in variables.items() if f"`{name}={value}`" not in PAGE] == []


def test_the_limit_of_answers_is_the_one_that_callers_keep() -> None:
    one, most = max_answer_bytes(0) // 1024, MAX_ANSWER_BYTES // 1024
    for_each = (max_answer_bytes(3) - max_answer_bytes(2)) // 1024
    assert f"at most {one} KiB, and {for_each} KiB more for each adapter" in PAGE
    assert f"{most} KiB for the largest number, {MOST_ADAPTERS}" in PAGE
    parts = max_answer_parts(1) - max_answer_parts(0)
    assert f"{max_answer_parts(0):,} lists and objects, and {parts} more for each" in PAGE


def test_every_option_is_in_the_table() -> None:
    source = (REPOSITORY / "worker" / "fleet_worker" / "__main__.py").read_text()
    options = set(re.findall(r'add\(\s*"(--[a-z-]+)"', source))

    assert len(options) > 10
    assert [option for option in sorted(options) if f"`{option}`" not in PAGE] == []


async def test_every_metric_is_in_the_table(serving: WorkerHarness) -> None:
    names = {
        sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        for family in serving.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }

    assert len(names) >= 11
    assert [n for n in sorted(names) if not re.search(rf"\| `{n}(\{{[\w,]+\}})?` \|", PAGE)] == []


def test_every_required_name_of_the_engine_is_listed() -> None:
    page = (REPOSITORY / "docs" / "reference" / "engine.md").read_text()
    names = [f"{n.module}.{n.attribute}".rstrip(".") for n in API_SERVER_NAMES]
    names = [name.removesuffix(".__dataclass_fields__") for name in names]
    names += [attribute for attribute, _ in WORKER_NAMES]
    names += [attribute for of_runner in RUNNER_NAMES.values() for attribute, _ in of_runner]

    assert [name for name in names if f"`{name}`" not in page] == []


def test_metrics_before_the_first_agent_have_no_state() -> None:
    registry = CollectorRegistry()
    WorkerMetrics(registry)

    assert registry.get_sample_value("rlfleet_worker_admitted") is None


def test_links_lead_to_files() -> None:
    folder = REPOSITORY / "docs" / "reference"
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if "://" not in link]

    assert links
    assert [link for link in links if not Path(folder / link).exists()] == []

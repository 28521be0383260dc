"""Write docs/reference/compatibility.md from recorded test results and declared ranges.

    python3 tools/compatibility.py            write the page
    python3 tools/compatibility.py --check    exit 1 if it or a result is out of date

The results are those of `make compatibility`. Each version is pinned in a file of the repository.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from compatibility_rows import (
    CALLS,
    ENGINE_TIER,
    REPOSITORY,
    Row,
    all_rows,
    calls,
    clients,
    parts,
    vllm_version,
)
from compatibility_runs import Result, TierResult, load, load_tier

PAGE = REPOSITORY / "docs/reference/compatibility.md"
NOTICE = (
    "<!-- Written by tools/compatibility.py; `make compatibility` records the results, "
    "`make generate` updates the page. -->\n\n"
)


def outdated_tier(recorded: Iterable[TierResult]) -> list[str]:
    """Return a line if the engine tier ran on no processor with the vLLM that is pinned now."""
    version = vllm_version()
    if any(result.version == version for result in recorded):
        return []
    remedy = f"run `make compatibility ONLY={ENGINE_TIER}`"
    return [f"the engine tier has no recorded result of vLLM {version}: {remedy}"]


def outdated(rows: Iterable[Row], recorded: Iterable[Result]) -> list[str]:
    """Return a line for each row without a result of the version that is pinned now."""
    found = {result.part: result for result in recorded}
    lines = []
    for row in rows:
        result = found.get(row.part)
        remedy = f"run `make compatibility ONLY={row.run}`"
        if result is None:
            lines.append(f"{row.part} {row.version} has no recorded result: {remedy}")
        elif result.version != row.version:
            lines.append(
                f"{row.part} {row.version} is pinned, but the recorded result is of "
                f"{result.version}: {remedy}"
            )
    return lines


def words(result: Result | None) -> str:
    """Say what the tests gave; in bold if some failed or none passed."""
    if result is None:
        return "**not run**"
    counts = [f"{result.passed} passed"]
    counts += [f"{result.failed} failed"] if result.failed else []
    counts += [f"{result.skipped} skipped"] if result.skipped else []
    text = ", ".join(counts)
    return text if result.is_good else f"**{text}**"


def page(recorded: Sequence[Result], tier: Sequence[TierResult]) -> str:
    """Return the text of the page."""
    found = {result.part: result for result in recorded}

    def tested(row: Row) -> str:
        """The version whose tests ran, which is the pinned one unless results are out of date."""
        result = found.get(row.part)
        return f"{result.version if result else row.version}: {words(result)}"

    def day(row: Row) -> str:
        result = found.get(row.part)
        return result.date if result else ""

    part_lines = (
        f"| {r.part} | {_code(r.declared)} | {tested(r)} | {day(r)} | {r.by} |\n" for r in parts()
    )
    client_lines = (
        f"| {r.part} | {tested(r)} | {day(r)} | `requirements/{r.by}` |\n" for r in clients()
    )
    call_lines = (
        f"| {name} | {row.by} | {words(found.get(row.part))} | {day(row)} |\n"
        for (name, _), row in zip(CALLS, calls(), strict=True)
    )
    text = [
        "# Compatibility\n\n",
        NOTICE,
        "*Declared* is the range that the package or the chart asks for. *Tested* is the version ",
        "that the repository pins, with the results of the named tests in their last recorded run ",
        "(`make compatibility`). Other versions of a declared range were not run.\n\n",
        "| Part | Declared | Tested | Date | By |\n| --- | --- | --- | --- | --- |\n",
        *part_lines,
        "\n*Kubernetes, oldest* is a patch release of the oldest minor version that the chart ",
        "declares. Its tests use kubectl, helm and etcd of the row *Kubernetes*.\n",
        "\n## Processors\n\n",
        "vLLM for CPU chooses its kernels by the instructions of the processor. `tests/engine` ran on ",
        "the processors of this table (`make test-engine`). Each row is the last recorded run. On ",
        "every processor, tests force the kernels of the other ones, and say so where a part of them is a ",
        "fake:\n\n",
        "| Processor | Instructions | vLLM | Date |\n| --- | --- | --- | --- |\n",
        *(_processor(result) for result in tier),
        *(_failures(result) for result in tier if result.failures),
        "\n## Clients and trainers\n\n",
        "`tests/clients` runs these clients, as published. `trl` and `skyrl` are driven at the one ",
        "address of three workers with fake engines, without NCCL. The others use a real worker:\n\n",
        "| Client | Tested | Date | Pinned in |\n| --- | --- | --- | --- |\n",
        *client_lines,
        "\nThe trainers themselves need GPUs, so none of them was run. `tests/engine/test_trainers.py` ",
        "makes the calls of each against a real engine:\n\n",
        "| Trainer | Calls | Tests | Date |\n| --- | --- | --- | --- |\n",
        *call_lines,
        "\nThese calls go to a worker, and do not involve Kubernetes. They were tested with the ",
        "vLLM for CPU of the first table only. [Connect a trainer]",
        "(../how-to/connect-a-trainer.md) has the settings, and ",
        "[upgrades](../explanation/upgrade-policy.md) says which releases work together.\n",
    ]
    return "".join(text)


def _processor(result: TierResult) -> str:
    instructions = ", ".join(f"`{each}`" for each in result.instructions)
    outcome = f"{result.version}: {words(result)}"
    return f"| {result.part} | {instructions} | {outcome} | {result.date} |\n"


def _failures(result: TierResult) -> str:
    names = ", ".join(f"`{name}`" for name in result.failures)
    return f"\nOn {result.part}, {names} failed. {result.note}".rstrip() + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def main() -> None:
    """Write or check."""
    recorded, tier = load(), load_tier()
    text = page(recorded, tier)
    current = PAGE.exists() and PAGE.read_text() == text
    if "--check" in sys.argv:
        lines = outdated(all_rows(), recorded) + outdated_tier(tier)
        if not current:
            lines.append(f"out of date, run `make generate`: {PAGE.relative_to(REPOSITORY)}")
        if lines:
            sys.exit("\n".join(lines))
    elif not current:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()

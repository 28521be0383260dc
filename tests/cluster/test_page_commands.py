"""The commands of the how-to pages, run as they stand there, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.cluster.support.stage import FLEET, Stage
from tests.support.pages import DOCS, blocks

PAGES = sorted(p.relative_to(DOCS).as_posix() for p in (DOCS / "how-to").glob("*.md"))
NAMED = "policy"
"""The fleet of the pages."""


def commands() -> Iterator[tuple[str, str]]:
    """Every kubectl command of a how-to page that needs nothing but the fleet and its weights."""
    for page in PAGES:
        for block in blocks(page, "", "sh"):
            if block.startswith("kubectl ") and "<<" not in block:
                yield page, block


COMMANDS = sorted(set(commands()))


def test_the_pages_have_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {
        "how-to/choose-a-strategy.md",
        "how-to/connect-a-trainer.md",
        "how-to/update-and-drain.md",
    }


@pytest.mark.parametrize(("page", "command"), COMMANDS)
async def test_a_command_of_a_page_is_one_that_the_cluster_takes(
    stage: Stage, page: str, command: str
) -> None:
    assert FLEET == NAMED
    await stage.make_fleet(replicas=1, version="43")
    script = command.replace("kubectl -n rl ", "kubectl ").replace(
        "kubectl ", f"kubectl -n {stage.namespace} "
    )
    done = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        env=stage.cluster.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await done.communicate()
    assert done.returncode == 0, f"{page}: {command}\n{told.decode()}"

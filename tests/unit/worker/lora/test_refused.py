"""The refusals of adapters that a worker reports: of each version of each name, until they are disproved."""

from __future__ import annotations

from pathlib import Path

from tests.support.adapters import WEIGHTS_FILE
from tests.support.lora_harness import LoraHarness

from fleet_worker.lora.refused import MAX_REPORTED


def reported(lora: LoraHarness) -> list[tuple[str, str | None]]:
    return [(f.name, f.version) for f in lora.harness.state.adapter_failures]


def broken(lora: LoraHarness, folder: str) -> Path:
    path = lora.write(folder)
    (path / WEIGHTS_FILE).write_bytes(b"no tensors")
    return path


async def test_refusals_of_two_names_and_of_two_versions_are_all_reported(
    lora: LoraHarness,
) -> None:
    path = broken(lora, "bad")
    for name, version in [("a", "7"), ("b", "7"), ("a", "6"), ("b", "7")]:
        await lora.refused(version, path, name=name)

    assert reported(lora) == [("b", "7"), ("a", "6"), ("a", "7")]
    newest = lora.harness.state.adapter_failure
    assert newest == lora.harness.state.adapter_failures[0]


async def test_a_staged_version_was_refused_no_more_and_the_others_still_are(
    lora: LoraHarness,
) -> None:
    await lora.refused("7", broken(lora, "bad"))
    await lora.refused("6", lora.harness.root / "6")
    await lora.put("6", lora.write("6"), stage_only=True)

    assert reported(lora) == [("tuned", "7")]


async def test_a_served_version_ends_the_refusals_of_its_name(lora: LoraHarness) -> None:
    path = broken(lora, "bad")
    await lora.refused("7", path)
    await lora.refused("7", path, name="other")
    good = lora.write("6")
    for _ in range(2):  # also if it is served already
        await lora.put("6", good)
        assert reported(lora) == [("other", "7")]
        await lora.refused("7", path)


async def test_a_removed_adapter_is_no_longer_reported_as_refused(lora: LoraHarness) -> None:
    await lora.put("6", lora.write("6"))
    await lora.refused("7", broken(lora, "bad"))
    await lora.remove()

    assert reported(lora) == []


async def test_only_the_newest_refusals_are_reported(lora: LoraHarness) -> None:
    path = broken(lora, "bad")
    for number in range(MAX_REPORTED + 3):
        await lora.refused(str(number), path, name=f"n{number}")

    assert len(reported(lora)) == MAX_REPORTED
    assert reported(lora)[0] == (f"n{MAX_REPORTED + 2}", str(MAX_REPORTED + 2))

"""New weights over a fleet of real workers, under load, and the report of bad ones."""

from __future__ import annotations

import os

from tests.e2e.conftest import FLEET, Fleet
from tests.support.audit import audit_file

from demo.sampler import TOKENS


def test_versions_in_a_row_lose_no_request_and_every_token_is_labelled_truly(fleet, tmp_path):
    before = fleet.applied()
    steps = [fleet.next_step() for _ in range(3)]
    statuses = []
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: statuses.extend(map(fleet.roll_out, steps)))

    assert [s["appliedVersion"] for s in statuses] == [str(n) for n in steps]
    assert samples.lost == []
    assert samples.retried == {}
    assert samples.answered == samples.sent
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    assert samples.tokens.keys() <= {before, *map(str, steps)}
    versions = {str(n): fleet.folder(n) for n in [int(before), *steps]}
    audited = audit_file(replies, versions)
    assert audited.returncode == 0, audited.stdout + audited.stderr


def truncated(fleet: Fleet) -> str:
    """The next version, whose checkpoint was cut in half."""
    step = fleet.next_step()
    file = fleet.folder(step) / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    return str(step)


def test_a_bad_source_is_reported_the_old_weights_serve_and_the_next_version_recovers(
    fleet, tmp_path
):
    applied = fleet.applied()

    def publish_and_see() -> None:
        fleet.publish(truncated(fleet))
        stalled = fleet.eventually(lambda: fleet.condition("Stalled"), "Stalled")
        assert stalled["reason"] == "CheckpointTruncated"
        # Either worker may be the first to refuse.
        assert any(pod in stalled["message"] for pod in fleet.pods())

    samples = fleet.while_sampling(tmp_path / "replies.jsonl", publish_and_see)

    assert samples.tokens.keys() == {applied}
    assert samples.lost == []
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied
    fleet.eventually(lambda: "CheckpointTruncated" in fleet.events(), "the Event")

    fleet.roll_out(fleet.next_step())
    assert fleet.condition("Stalled") is None

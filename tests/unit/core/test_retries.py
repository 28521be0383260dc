"""Times at which the operator retries after a refusal."""

from __future__ import annotations

import pytest
from tests.support.builders import make_worker

from fleet_operator.core import worker_failures
from fleet_worker.protocol import Failure, Reason


@pytest.mark.parametrize(
    ("reason", "asked_for", "seconds"),
    [
        (Reason.CHECKPOINT_NOT_FINITE, None, 10),
        (Reason.CHECKPOINT_NOT_FINITE, 160, 160),
        (Reason.CHECKPOINT_NOT_FINITE, 1e9, 300),
        (Reason.CHECKPOINT_NOT_FINITE, 0, 1),
        (Reason.SOURCE_NOT_READY, None, 1),
        (Reason.SOURCE_NOT_READY, 2, 2),
    ],
)
def test_a_worker_is_called_again_at_its_retry_after_within_limits(reason, asked_for, seconds):
    failure = Failure(
        version="42", reason=reason, message="x", age_seconds=0.25, retry_after_seconds=asked_for
    )
    worker = make_worker().serving("41").heard(0.25).view()

    assert worker_failures.retry_in_seconds(worker, failure) == seconds - 0.5

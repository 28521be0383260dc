"""No label and no annotation that a user can change raises in the command line."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from tests.support.cli import Recorded, run
from tests.support.odd_metadata import POD_ANNOTATIONS, TEXTS, marked
from tests.unit.client.cli.test_doctor import healthy

from rlfleet_resources.names import ANNOTATION_RETRY, ANNOTATION_TRACEPARENT

POD = Recorded("applied").pods[1]
UNNUMBERED = POD | {"metadata": POD["metadata"] | {"labels": {"rlfleet.dev/ordinal": "x"}}}
BARE = POD | {"metadata": {k: v for k, v in POD["metadata"].items() if k != "labels"}}


@settings(max_examples=30, print_blob=True, deadline=None)
@example(odd=UNNUMBERED)
@example(odd=BARE)
@given(odd=marked(POD, POD_ANNOTATIONS))
def test_the_verbs_that_read_pods_show_the_others(odd):
    with pytest.MonkeyPatch.context() as patch:
        there = Recorded("applied")
        first = there.pods[0]["metadata"]["name"]
        there.pods[1] = odd
        for verb in ("workers", "logs"):
            code, shown, _ = run(patch, there, verb)
            assert code == 0
            assert verb == "logs" or first in shown


@settings(max_examples=30, print_blob=True, deadline=None)
@example(odd=BARE)
@given(odd=marked(POD, POD_ANNOTATIONS))
def test_doctor_reports_a_healthy_cluster(odd):
    with pytest.MonkeyPatch.context() as patch:
        there = healthy()
        there.pods[1] = odd | {"metadata": odd["metadata"] | {"uid": "odd"}}
        code, shown, _ = run(patch, there, "doctor")
        assert code == 0, shown


@settings(max_examples=30, print_blob=True, deadline=None)
@given(retry=TEXTS, traceparent=TEXTS)
def test_the_verbs_show_a_weight_version_with_any_annotations(retry, traceparent):
    with pytest.MonkeyPatch.context() as patch:
        for verb in ("status", "history", "explain", "retry"):
            there = Recorded("applied")
            assert there.weights is not None
            marks = {ANNOTATION_RETRY: retry, ANNOTATION_TRACEPARENT: traceparent}
            there.weights["metadata"]["annotations"] = marks
            run(patch, there, verb)

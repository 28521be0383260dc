"""Labels and annotations as users can set and remove them. Hypothesis prints the seed of a run that fails."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from rlfleet.ports import Json
from rlfleet_resources import names

LABELS = (
    names.LABEL_FLEET,
    names.LABEL_ORDINAL,
    names.LABEL_REVISION,
    names.LABEL_TRAFFIC,
    names.LABEL_MANAGED_BY,
    names.LABEL_NAME,
    names.LABEL_ROUTER,
)
POD_ANNOTATIONS = (
    names.ANNOTATION_QUARANTINE,
    names.ANNOTATION_DRAIN,
    names.ANNOTATION_RESTARTED_AT,
)
LABEL_VALUES = st.sampled_from(
    ("", "x", "0", "1", "01", "7", "9" * 63, "1e3", "-1", "policy", "other", "fenced", "draining")
) | st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)
"""Source: Kubernetes, "Labels and Selectors", syntax."""
LONE_SURROGATE = '{"reason": "\\ud800", "since": "\\ud800"}'
TEXTS = st.sampled_from(
    (
        *("", "x", "{}", "[]", "null", "1", "[" * 5000, '{"since": 3}', '{"reason": null}'),
        *('{"since": "2026-01-01T00:00:00"}', '{"since": "9999-12-31T23:59:59-23:59"}'),
        *(LONE_SURROGATE, '{"reason": "' + "a" * 100_000 + '"}', "00-xyz-1-01", "[[1,2]]"),
    )
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
"""Values of annotations: any text."""


@st.composite
def marked(draw: st.DrawFn, whole: Json, annotations: tuple[str, ...]) -> Json:
    """The object with other labels and annotations: some are removed, and some have odd values."""
    body = copy.deepcopy(whole)
    metadata: dict[str, Any] = body["metadata"]
    for kind, keys, values in (
        ("labels", LABELS, LABEL_VALUES),
        ("annotations", annotations, TEXTS),
    ):
        there = dict(metadata.get(kind) or {})
        for key in draw(st.sets(st.sampled_from(keys))):
            there.pop(key, None)
            if draw(st.booleans()):
                there[key] = draw(values)
        if there:
            metadata[kind] = there
        else:
            metadata.pop(kind, None)  # as the API server stores it
    return body

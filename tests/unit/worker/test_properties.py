"""Properties of the pure parts of the worker, for any input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint.configuration import check_config, config_differences
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.identity import Label, Labels, WeightName
from fleet_worker.checkpoint.tensors import check_tensors
from fleet_worker.checkpoint.weight_sets import check_tensors_once, chosen_set
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.authority import PauseLease, check_holder, newest
from fleet_worker.lifecycle.canary_report import Answers, Continuation, Position, divergence, report
from fleet_worker.protocol import (
    MAX_TERM,
    Epoch,
    PauseMode,
    Reason,
    VersionLabel,
    number_of,
    step_of,
)
from fleet_worker.provenance.demands import DemandError, demand_of
from fleet_worker.trainer.step_labels import label_of

LABEL: TypeAdapter[str] = TypeAdapter(VersionLabel)

# --- labels -----------------------------------------------------------------------------------------

FILES = st.dictionaries(st.text(max_size=8), st.tuples(st.integers(0, 9), st.integers(0, 9)))


@given(st.text(max_size=120), FILES)
def test_every_directory_name_has_one_label(path: str, files: dict[str, tuple[int, int]]) -> None:
    assert LABEL.validate_python(label_of(path, files))


@given(st.text(max_size=30), FILES, FILES)
def test_a_folder_without_a_number_has_another_label_when_its_files_differ(
    path: str, one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]
) -> None:
    assume(step_of(path) is None)

    assert (label_of(path, one) == label_of(path, other)) == (one == other)


@given(st.integers(0, 10**18 - 1), st.sampled_from(["step_", "step-", "step", "global_step_"]))
def test_the_label_of_a_step_is_its_number(number: int, prefix: str) -> None:
    for path in (
        f"/w/{prefix}{number}",
        f"/w/{prefix}0{number}"[:40],
        f"w/{prefix}{number}/weights/",
    ):
        if len(str(number)) < 18:
            assert step_of(path) == str(number)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30))
def test_a_label_never_names_two_sets_of_weights(loads: list[tuple[str, int]]) -> None:
    labels, meant = Labels(), dict[str, int]()
    for label, weights in loads:
        try:
            labels.check(Label(label), str(weights), "/w")
        except Refusal as refusal:
            assert refusal.reason is Reason.VERSION_REUSED  # noqa: PT017 - allowed, for one reason
            assert meant[label] != weights
        else:
            assert meant.get(label, weights) == weights
            labels.remember(Label(label), str(weights), "/w")
            meant[label] = weights
    assert len(labels) == len(meant)


# --- demands ----------------------------------------------------------------------------------------

HEADER = st.one_of(
    st.none(), st.text(max_size=6), st.from_regex(r"(step[_-])?[0-9]{1,4}", fullmatch=True)
)


@given(HEADER, HEADER, st.one_of(st.none(), st.from_regex(r"(step_)?[0-9]{1,4}", fullmatch=True)))
def test_tokens_that_pass_a_demand_have_the_versions_in_its_headers(
    exact: str | None, minimum: str | None, version: str | None
) -> None:
    try:
        demand = demand_of(exact, minimum)
    except DemandError:
        assert (exact is not None and not exact.strip()) or number_of(
            (minimum or "").strip()
        ) is None
        return
    assert demand.is_any == (exact is None and minimum is None)
    if not demand.is_met_by(version and WeightName(version)) or demand.is_any:
        return
    assert version is not None, "unknown weights meet no demand"
    assert exact is None or version == exact.strip()
    if minimum is not None:
        reached, wanted = number_of(version), number_of(minimum.strip())
        assert reached is not None
        assert wanted is not None
        assert reached >= wanted


# --- epochs and leases ------------------------------------------------------------------------------

EPOCHS = st.builds(Epoch, term=st.integers(0, 3), sequence=st.integers(0, 3))


@given(st.lists(EPOCHS, min_size=1, max_size=12))
def test_the_accepted_epoch_never_decreases(calls: list[Epoch]) -> None:
    seen: Epoch | None = None
    for call in calls:
        late = seen is not None and (call.term, call.sequence) < (seen.term, seen.sequence)
        if late:
            refusal_from(newest, seen, call)
        else:
            seen = newest(seen, call)
            assert seen == call


SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS, st.floats(0.001, 86_400))
def test_only_the_holder_may_drive_until_the_lease_ends(
    expires: float, now: float, renewal: float
) -> None:
    lease = PauseLease(PauseMode.KEEP, "one", 0.0, expires)
    check_holder(lease, "one", now)
    renewed = lease.renewed(now, renewal)
    assert renewed.expires >= max(lease.expires, now + renewal)
    for each in (lease, renewed):
        assert (each.remaining(now) == 0) == each.has_expired(now)
        if each.has_expired(now):
            check_holder(each, "another", now)
            continue
        refusal = refusal_from(check_holder, each, "another", now)
        assert refusal.retry_after_seconds == each.remaining(now)


# --- what fits --------------------------------------------------------------------------------------

VALUES = st.one_of(st.none(), st.integers(0, 3), st.text(max_size=2), st.lists(st.integers(0, 1)))
KEYS = st.sampled_from(["a", "b", "dtype", "hidden_size"])
FLAT = st.dictionaries(KEYS, VALUES, max_size=3)
CONFIGS = st.dictionaries(KEYS, st.one_of(VALUES, FLAT), max_size=4)


@given(CONFIGS, CONFIGS)
def test_two_configurations_differ_in_the_same_keys_in_both_directions(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    different = config_differences(one, other)

    assert [d._replace(running=d.offered, offered=d.running) for d in different] == (
        config_differences(other, one)
    )
    assert config_differences(one, one) == []
    if different:
        assert refusal_from(check_config, one, other).reason is Reason.CHECKPOINT_MISMATCH
    else:
        check_config(one, other)


SPECS = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.sampled_from(["F32", "BF16"]), st.lists(st.integers(0, 2), max_size=2)),
    max_size=4,
)


def specs_of(
    table: Mapping[str, tuple[str, Sequence[int]]], *, at: int = 0
) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(name, dtype, tuple(shape), at, at)
        for name, (dtype, shape) in table.items()
    }


@given(SPECS, SPECS)
def test_a_checkpoint_fits_if_names_and_shapes_match_and_other_types_are_cast(
    running: dict[str, tuple[str, list[int]]], offered: dict[str, tuple[str, list[int]]]
) -> None:
    reference, found = specs_of(running), specs_of(offered, at=64)
    shapes = [{name: shape for name, (_, shape) in table.items()} for table in (running, offered)]
    if shapes[0] == shapes[1]:
        others = {name: running[name][0] for name in running if running[name] != offered[name]}
        assert check_tensors(reference, found) == others
        return
    assert refusal_from(check_tensors, reference, found).reason is Reason.CHECKPOINT_MISMATCH


@given(
    st.dictionaries(
        st.sampled_from(["x.safetensors", "y.safetensors"]), st.sets(st.sampled_from("abc"))
    )
)
def test_a_checkpoint_is_refused_unless_each_tensor_is_in_one_file(
    held: dict[str, set[str]],
) -> None:
    files = {
        file: [TensorSpec(name, "U8", (), 8, 9) for name in names] for file, names in held.items()
    }
    every = [name for names in held.values() for name in names]
    if len(set(every)) < len(every):
        refusal_from(check_tensors_once, None, files)
        return
    check_tensors_once(None, files)
    if every:
        weight_map = {name: file for file, names in held.items() for name in names}
        check_tensors_once(json.dumps({"weight_map": weight_map}).encode(), files)


@given(
    st.sets(st.sampled_from(["model.safetensors", "b.safetensors", "a.safetensors", "x.bin", "y"]))
)
def test_weights_are_read_from_safetensors_only(names: set[str]) -> None:
    try:
        chosen = chosen_set(names, None, {}).files
    except Refusal as refusal:
        assert not any(name.endswith(".safetensors") for name in names)
        pickled = refusal.reason is Reason.CHECKPOINT_MALFORMED
        assert pickled == ("x.bin" in names)
    else:
        assert set(chosen) <= names
        assert all(name.endswith(".safetensors") for name in chosen)
        assert chosen == tuple(sorted(chosen))


# --- canary prompts ---------------------------------------------------------------------------------


@st.composite
def distributions(draw: st.DrawFn) -> Mapping[int, float]:
    """A whole vocabulary of six tokens, in nats."""
    weights = draw(st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
    return {i: math.log(w / sum(weights)) for i, w in enumerate(weights)}


@given(distributions(), distributions(), st.sets(st.integers(0, 5), min_size=1))
def test_a_divergence_is_between_zero_and_that_of_the_vocabulary(
    old: Mapping[int, float], new: Mapping[int, float], known: set[int]
) -> None:
    def seen(whole: Mapping[int, float]) -> Position:
        return Position(min(known), {token: whole[token] for token in known})

    whole = math.fsum(math.exp(old[i]) * (old[i] - new[i]) for i in old)
    found = divergence(seen(old), seen(new))

    assert 0 <= found <= whole + 1e-9
    assert divergence(seen(old), seen(old)) < 1e-9


NUMBERS = st.one_of(st.floats(-50, 0), st.just(math.nan), st.just(-math.inf))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_a_report_counts_nan_and_never_averages_it(pairs: list[tuple[float, float]]) -> None:
    old = tuple(Position(i, {i: value}) for i, (value, _) in enumerate(pairs))
    new = tuple(Position(i, {i: value}) for i, (_, value) in enumerate(pairs))
    reported = report(
        Answers("2", (Continuation((1,), new),)), Answers("1", (Continuation((1,), old),)), [new]
    )

    assert reported.finite == all(math.isfinite(value) for _, value in pairs)
    assert reported.tokens == sum(math.isfinite(a) and math.isfinite(b) for a, b in pairs)
    for figure in (reported.kl, reported.logprob_drift):
        assert figure is None if reported.tokens == 0 else math.isfinite(figure or 0.0)


# --- the start --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "largest"), [("term", MAX_TERM), ("sequence", 2**53)])
def test_an_epoch_fits_into_a_lease_and_into_json(field: str, largest: int) -> None:
    zero = {"term": 0, "sequence": 0}
    huge = Epoch.model_validate(zero | {field: largest})
    assert Epoch.model_validate_json(huge.model_dump_json()) == huge
    for outside in (-1, largest + 1):
        with pytest.raises(ValidationError):
            Epoch.model_validate(zero | {field: outside})

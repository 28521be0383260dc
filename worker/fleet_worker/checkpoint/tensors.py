"""Whether the tensors of a checkpoint fit the running model's, and which of them a load casts.

A trainer may save another floating type than the fleet serves: FSDP with mixed precision keeps float32.
The load rounds such tensors to the running model's types (docs/decisions/0049-tensors-are-cast.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from fleet_worker.checkpoint.configuration import shown
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.errors import Refusal, counted
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import CASTABLE


class Wrapper(NamedTuple):
    """A wrapper of models, which adds a part to the names of tensors.

    Fields:
        part: what it adds, at the begin or behind a dot.
        name: what adds it.
        remedy: how to save without it.
    """

    part: str
    name: str
    remedy: str

    def without(self, name: str) -> str:
        """Return a name without what the wrapper adds."""
        return re.sub(rf"(?:^|(?<=\.)){re.escape(self.part)}", "", name)


_MERGE = "save the result of merge_and_unload(), or publish the adapter alone"
_WRAPPERS = (
    Wrapper("_fsdp_wrapped_module.", "FSDP", "save the full state dict of FSDP"),
    Wrapper("_checkpoint_wrapped_module.", "activation checkpointing", "save the model inside"),
    Wrapper("_orig_mod.", "torch.compile", "save model._orig_mod"),
    Wrapper("base_model.model.", "PEFT", _MERGE),
    Wrapper("base_layer.", "PEFT", _MERGE),
    Wrapper("module.", "DistributedDataParallel or DeepSpeed", "save model.module"),
)


def check_tensors(
    reference: Mapping[str, TensorSpec], offered: Mapping[str, TensorSpec]
) -> dict[str, str]:
    """Return the tensors that a load casts: name → type of the running model.

    Errors:
        Refusal: `CheckpointMismatch`, with counts and an example of the first kind of difference:
            missing, extra, shape, type.
    """
    both = [name for name in reference if name in offered]
    others = [name for name in both if offered[name].dtype != reference[name].dtype]
    casts = {
        name: reference[name].dtype
        for name in others
        if {offered[name].dtype, reference[name].dtype} <= CASTABLE
    }
    missing = [name for name in reference if name not in offered]
    extra = [name for name in offered if name not in reference]
    checks = (
        ("lacks {n} of the running model", missing),
        ("has {n} that the running model lacks", extra),
        (
            "has {n} of another shape",
            [n for n in both if offered[n].shape != reference[n].shape],
        ),
        ("has {n} of another type that cannot be cast", [n for n in others if n not in casts]),
    )
    for difference, names in checks:
        if names:
            example = min(names)
            raise Refusal(
                Reason.CHECKPOINT_MISMATCH,
                f"the checkpoint {difference.format(n=counted(len(names), 'tensor'))}, such as"
                f" {shown(example)}: {_described(offered.get(example))} where the running model has"
                f" {_described(reference.get(example))}{_hint(missing, extra)}",
            )
    return casts


def cast_types(casts: Mapping[str, str], offered: Mapping[str, TensorSpec]) -> str:
    """Return how many tensors are cast from which type to which: `2 tensors from F32 to BF16`."""
    counts = Counter((offered[name].dtype, served) for name, served in casts.items())
    return ", ".join(
        f"{counted(number, 'tensor')} from {found} to {served}"
        for (found, served), number in sorted(counts.items())
    )


def _described(spec: TensorSpec | None) -> str:
    return "none" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def _hint(missing: Collection[str], extra: Collection[str]) -> str:
    """Return what is wrong with names that fit once what a wrapper adds is taken away."""
    wanted = set(missing)
    for name in sorted(extra):
        inner, found = name, list[Wrapper]()
        for wrapper in _WRAPPERS:
            if (shorter := wrapper.without(inner)) != inner:
                inner = shorter
                found.append(wrapper)
        if inner in wanted:
            found.sort(key=lambda w: name.find(w.part))  # the outer one first
            parts = " and ".join(f"{shown(w.part)} of {w.name}" for w in found)
            remedies = ", and ".join(dict.fromkeys(w.remedy for w in found))
            return f". The names of its tensors have {parts}: unwrap the model before it is saved ({remedies})"
    if (prefix := _prefix(wanted, extra)) is None:
        return ""
    return (
        f". The checkpoint has them with {shown(prefix)} in front: save the model inside, under the names of its"
        " own state dict"
    )


def _prefix(wanted: set[str], extra: Collection[str]) -> str | None:
    """Return the common prefix that all wanted names have in `extra`. Any wrapper may add one."""
    if not wanted:
        return None
    shortest = min(wanted, key=len)
    fronts = {name.removesuffix(shortest) for name in extra if name.endswith(f".{shortest}")}
    for front in sorted(fronts, key=len):
        if wanted <= {name.removeprefix(front) for name in extra if name.startswith(front)}:
            return front
    return None

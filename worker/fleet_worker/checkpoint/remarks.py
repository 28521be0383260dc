"""Remarks on a checkpoint that fits: what of its files the running model does not use, uses otherwise, or reads twice.

A remark names keys and types and no number that each version changes. So the versions of a run have the
same remarks, and the operator reports them once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from fleet_worker.checkpoint.configuration import SAMPLING, shown
from fleet_worker.checkpoint.texts import Texts
from fleet_worker.errors import counted, shorten

MOST_CHARACTERS = 260
"""Those that have many names, and two short ones, fit into the message of a condition."""
NOT_IN_MEMORY = (
    "the weights have no room in the staging memory, so that a load reads their files again under the pause;"
    " raise spec.weights.stagingMemory"
)
_NAMED_AT_MOST = 5
_END = "eos_token_id"
"""vLLM takes end tokens from here. Source: `SamplingParams.update_from_generation_config` of vLLM."""


class Defaults(NamedTuple):
    """The files of a directory with defaults of requests. `config`: content of config.json."""

    config: Mapping[str, Any]
    texts: Texts

    def value(self, key: str) -> Any:
        """Return the value that vLLM takes when it starts on these files. End tokens are a set."""
        found = self.texts.generation.get(key)
        if found is None:
            found = self.config.get(key)
        return _set_of(found) if key == _END else found


def remarks_on(
    *, model: Defaults, offered: Defaults, unread_keys: Collection[str], cast: str
) -> tuple[str, ...]:
    """Return the remarks on a checkpoint, each of at most `MOST_CHARACTERS`.

    Args:
        model: Files of the running model.
        offered: Files of the checkpoint.
        unread_keys: Keys of its config.json that no code reads.
        cast: Tensors that a load casts; empty without any.
    """
    found = []
    if unread_keys:
        names = ", ".join(shown(key) for key in sorted(unread_keys)[:_NAMED_AT_MOST])
        more = len(unread_keys) - _NAMED_AT_MOST
        names += f" and {more} more" if more > 0 else ""
        found.append(
            f"config.json has {counted(len(unread_keys), 'key')} that neither vLLM nor transformers reads"
            f" for this model, ignored: {names}"
        )
    if others := list(_other_defaults(model, offered)):
        found.append(
            "end tokens and sampling defaults are those of the fleet's model for every version."
            f" Ignored: {'; '.join(others)}"
        )
    if others := list(model.texts.differing(offered.texts)):
        found.append(f"the tokenizer is that of the fleet's model. Ignored: {' and '.join(others)}")
    if offered.texts.unreadable:
        found.append(f"cannot be read, ignored: {', '.join(offered.texts.unreadable)}")
    if cast:
        found.append(f"a load casts to the types of the fleet's model: {cast}")
    return tuple(shorten(remark, MOST_CHARACTERS) for remark in found)


def _other_defaults(model: Defaults, offered: Defaults) -> Iterator[str]:
    for key in (_END, *SAMPLING):
        ours, theirs = model.value(key), offered.value(key)
        accepted = [None, ours]
        if offered.texts.generation.get(key) is None:
            # The trainer has saved no generation_config.json, and did not change the model's config.json.
            accepted.append(Defaults(model.config, Texts()).value(key))
        if theirs not in accepted:
            yield f"{key} {shown(theirs)}, where the model has {shown(ours)}"


def _set_of(tokens: Any) -> Any:
    """Return end tokens as a sorted list without repetitions, whether one is given or several."""
    if isinstance(tokens, int):
        return [tokens]
    if isinstance(tokens, list) and all(isinstance(each, int) for each in tokens):
        return sorted(set(tokens))
    return tokens

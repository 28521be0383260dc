"""Facts about the served model that the public routes need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Vocabulary(Protocol):
    """The part of the tokenizer that replies need."""

    def knows(self, token_id: int) -> bool:
        """Return whether the id is one of the tokenizer's."""

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, possibly a part of a letter; None if they are not known."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the served model.

    Fields:
        names: returns the valid values of `model` in requests: the model and its adapters.
        max_length: largest number of tokens of prompt and completion together.
        id_limit: all ids of the model and its tokenizer are below it.
        vocabulary: its tokenizer.
        generate_keys / sampling_keys: fields that vLLM accepts in a body of
            `/inference/v1/generate`, and in its `sampling_params`.
        routes_experts: whether replies contain the routed experts of the tokens.
    """

    names: Callable[[], Sequence[str]]
    max_length: int
    id_limit: int
    vocabulary: Vocabulary
    generate_keys: frozenset[str]
    sampling_keys: frozenset[str]
    routes_experts: bool = False

"""What the data surfaces know of the model that is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Vocabulary(Protocol):
    """The tokenizer, as far as replies need it."""

    def knows(self, token_id: int) -> bool:
        """Whether an id stands for something."""

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token stands for, which may be a part of a letter; None if nobody can say."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of the model that is served.

    Fields:
        names: what requests may name as `model`: the model, and its adapters.
        max_length: tokens of prompt and completion together.
        id_limit: ids below it are ids of the model or its tokenizer.
        vocabulary: its tokenizer.
        generate_keys / sampling_keys: what vLLM takes in a body of `/inference/v1/generate`, and
            in its `sampling_params`.
        routes_experts: replies say which experts the tokens went to.
    """

    names: Callable[[], Sequence[str]]
    max_length: int
    id_limit: int
    vocabulary: Vocabulary
    generate_keys: frozenset[str]
    sampling_keys: frozenset[str]
    routes_experts: bool = False

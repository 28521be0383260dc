"""The files next to the weights: end tokens, sampling defaults, chat template, added tokens.

All versions use those of the fleet's model. The worker reads those of a version to say which differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Texts:
    """The content of these files, as far as it is compared.

    Fields:
        generation: content of generation_config.json; empty without a readable one.
        template: the chat template; None without one.
        added_tokens: id → added token; None if no file names them.
        unreadable: names of files that are there and cannot be read.
    """

    generation: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    added_tokens: dict[str, str] | None = None
    unreadable: tuple[str, ...] = ()

    def differing(self, other: Texts) -> Iterator[str]:
        """Return in words what another directory has, and has otherwise."""
        if other.template not in {None, self.template}:
            yield "the chat template"
        if self.added_tokens is not None and other.added_tokens not in (None, self.added_tokens):
            yield "the added tokens"


def template_of(written: str | None, tokenizer: dict[str, Any]) -> str | None:
    """Return the chat template: of its own file, else of tokenizer_config.json."""
    found = written or tokenizer.get("chat_template")
    return found.strip() or None if isinstance(found, str) else None


def added_tokens_of(tokenizer: dict[str, Any]) -> dict[str, str] | None:
    """Return the added tokens that tokenizer_config.json names."""
    found = tokenizer.get("added_tokens_decoder")
    if not isinstance(found, dict):
        return None
    return {
        number: str(token["content"])
        for number, token in found.items()
        if isinstance(token, dict) and "content" in token
    }

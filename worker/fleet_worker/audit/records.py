"""What the audit reads: one JSON object a line, one line a completed choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

WITH = "+"
"""Stands between the two versions in the name of base weights with an adapter; labels have none."""

OF = "/"
"""Stands behind the run in a name."""

AT = "@"
"""Stands before the digest in a name."""


class SpanRecord(BaseModel):
    """Tokens `start` ≤ i < `end` are said to come from `version`, with `adapter` if there was one.

    Fields:
        digest, adapter_digest: first 12 hex digits; None where a reply does not tell.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str
    start: int
    end: int
    run_id: str | None = None
    digest: str | None = None
    adapter: str | None = None
    adapter_digest: str | None = None

    @property
    def weights(self) -> str:
        """Name of the weights that made them: `[run/]version[@digest][+adapter[@digest]]`."""
        name = f"{self.run_id}{OF}" if self.run_id is not None else ""
        name += self.version + (f"{AT}{self.digest}" if self.digest is not None else "")
        if self.adapter is None:
            return name
        digest = f"{AT}{self.adapter_digest}" if self.adapter_digest is not None else ""
        return f"{name}{WITH}{self.adapter}{digest}"


class Record(BaseModel):
    """One choice of one reply.

    Fields:
        prompt_token_ids: what the model was given, as ids.
        token_ids: what it sampled.
        logprobs: log-probability of each sampled token as the worker reported it, before
            temperature and masks (`--logprobs-mode raw_logprobs`, vLLM's default), in nats.
        weight_versions: the spans of the reply; they must cover all tokens without a gap.
        id: anything that helps to find the reply again.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[SpanRecord, ...]
    id: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError("there must be one log-probability a token")
        if self.token_ids and not self.prompt_token_ids:
            raise ValueError("tokens cannot be recomputed without their prompt")
        position = 0
        for span in self.weight_versions:
            if span.start != position or span.end <= span.start:
                raise ValueError("the spans leave a gap or overlap")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids) - position} tokens have no version")
        return self

    @property
    def sequence(self) -> list[int]:
        """Prompt and sampled tokens."""
        return [*self.prompt_token_ids, *self.token_ids]


class BadRecordError(Exception):
    """A line is not a record."""


def read_records(lines: Iterable[str]) -> Iterator[Record]:
    """The records of a file.

    Errors:
        BadRecordError: names the line, not its content.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield Record.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "record"
            raise BadRecordError(f"line {number}: {where}: {first['msg']}") from error

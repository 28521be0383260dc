"""The input of the audit: one JSON object per line, one line per completed choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

WITH = "+"
"""Separates base weights and adapter in a name. Labels cannot contain it."""

OF = "/"
"""Follows the run in a name."""

AT = "@"
"""Precedes the digest in a name."""


class SpanRecord(BaseModel):
    """The claim that `version` made the tokens `start` ≤ i < `end`, with `adapter` if it is set.

    Fields:
        digest, adapter_digest: first 12 hex digits. None if the reply does not contain them.
        kv_from: the older weights whose keys and values these tokens may have read, since the trainer
            kept the cache. A recomputation under one checkpoint has no such keys and values.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str
    start: int
    end: int
    run_id: str | None = None
    digest: str | None = None
    adapter: str | None = None
    adapter_digest: str | None = None
    kv_from: str | None = None

    @property
    def weights(self) -> str:
        """Name of the weights: `[run/]version[@digest][+adapter[@digest]]`."""
        name = f"{self.run_id}{OF}" if self.run_id is not None else ""
        name += self.version + (f"{AT}{self.digest}" if self.digest is not None else "")
        if self.adapter is None:
            return name
        digest = f"{AT}{self.adapter_digest}" if self.adapter_digest is not None else ""
        return f"{name}{WITH}{self.adapter}{digest}"


class Record(BaseModel):
    """One choice of one reply.

    Fields:
        prompt_token_ids: token ids of the prompt.
        token_ids: the sampled tokens.
        logprobs: log-probability of each sampled token as the worker reported it, before
            temperature and masks (`--logprobs-mode raw_logprobs`, vLLM's default), in nats.
        weight_versions: the spans of the reply, which must cover all tokens without a gap.
        id: any text that identifies the reply in messages.
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
            raise ValueError("the numbers of log-probabilities and tokens differ")
        if self.token_ids and not self.prompt_token_ids:
            raise ValueError("prompt_token_ids is empty; the audit needs the prompt")
        position = 0
        for span in self.weight_versions:
            if span.start != position or span.end <= span.start:
                raise ValueError("the spans overlap or leave a gap")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(
                f"the spans end at {position}, but there are {len(self.token_ids)} tokens"
            )
        return self

    @property
    def judged(self) -> tuple[SpanRecord, ...]:
        """The spans that a recomputation can judge."""
        return tuple(span for span in self.weight_versions if span.kv_from is None)

    @property
    def sequence(self) -> list[int]:
        """Prompt and sampled tokens."""
        return [*self.prompt_token_ids, *self.token_ids]


class BadRecordError(Exception):
    """A line is not a record."""


def read_records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a file.

    Errors:
        BadRecordError: with the number of the line, not its content.
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

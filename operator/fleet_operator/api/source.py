"""Sources in the words of the worker protocol. The sources: `rlfleet_resources.source`."""

from __future__ import annotations

from fleet_worker import protocol
from rlfleet_resources.source import SourceKey, WeightSource


def to_protocol(source: WeightSource) -> protocol.Source:
    """The source as a worker reads it."""
    # By its name: of two spellings of a repository workers know one.
    return protocol.Source.model_validate(WeightSource.of(source.key()).to_json())


def key_of(source: protocol.Source) -> SourceKey:
    """The name of a source that a worker reports. It is untrusted: maybe no resource could have it."""
    return SourceKey(*source.key())


def from_protocol(source: protocol.Source) -> WeightSource:
    """The source in the words of the resources.

    Errors: ValueError if it is invalid in a resource.
    """
    return WeightSource.of(key_of(source))

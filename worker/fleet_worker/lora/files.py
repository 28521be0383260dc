"""The files of a LoRA adapter: how they are opened and checked, and the copy that the engine reads.

vLLM reads adapters by path at any time. At every load of base weights it drops all adapters, and later
reads and maps the files of those in use. It ends if a file is missing. So it gets a directory with the
checked configuration and a link to the sealed copy of the weights in memory.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from fleet_worker.checkpoint.blocks import blocks_between
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.completeness import open_settled
from fleet_worker.checkpoint.files import OpenDirectory, Roots
from fleet_worker.checkpoint.format import CONFIG_LIMIT
from fleet_worker.checkpoint.headers import specs_of
from fleet_worker.checkpoint.identity import Identity, Label, check_digest
from fleet_worker.checkpoint.opening import companions_of, config_of
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.checkpoint.sources import check_same_source, directory_of
from fleet_worker.checkpoint.weight_sets import ADAPTER_WEIGHTS_FILE, holds_model
from fleet_worker.errors import Refusal
from fleet_worker.lora.config import (
    ADAPTER_CONFIG_FILE,
    check_adapter_config,
    check_adapter_tensors,
    check_weights_there,
)
from fleet_worker.protocol import AdapterRequest, Reason, Source


def open_adapter(path: str, roots: Roots | None) -> Checkpoint:
    """Open a LoRA adapter. `Checkpoint.config` is the adapter's configuration.

    `path`: absolute, of a directory, or URI of a prefix. Errors: Refusal of any of the source and checkpoint reasons.
    """
    directory = open_directory(path, roots)
    try:
        # Read once: the digest is that of the bytes that the engine gets.
        config_file = directory.read(ADAPTER_CONFIG_FILE, limit=CONFIG_LIMIT)
        config = config_of(ADAPTER_CONFIG_FILE, config_file)
        check_weights_there(directory.names)
        file = directory.open(ADAPTER_WEIGHTS_FILE)
        try:
            specs = {file.name: specs_of(file)}
            companions = companions_of(config_file)
            return Checkpoint(directory.path, config, (file,), specs, companions)
        except BaseException:
            file.close()
            raise
    finally:
        directory.close()


def open_fitting_adapter(source: Source, rules: StageRules, *, max_rank: int) -> Checkpoint:
    """Open a LoRA adapter below the roots and check that it fits the running model. Blocks.

    `max_rank`: the largest rank of the engine's slots.

    Errors:
        Refusal: any of the source and checkpoint reasons; the files are closed.
    """
    path = directory_of(source)
    adapter = open_settled(path, rules.roots, lambda: open_adapter(path, rules.roots))
    try:
        check_adapter_config(adapter.config, max_rank=max_rank)
        check_adapter_tensors(rules.reference.tensors, adapter.tensors, adapter.config)
    except BaseException:
        adapter.close()
        raise
    return adapter


def check_written(adapter: Checkpoint, reference: Reference) -> None:
    """Refuse an adapter with parts that were never written, after its bytes were read.

    A `lora_B` is zero until its module is trained, and file systems may store zeros as holes. So holes
    are accepted in a `lora_B` that is zero in whole. Errors: as `Reference.check_written`.
    """
    zeros = adapter.zero_blocks or {}
    specs = adapter.tensors.values()
    sides = [spec for spec in specs if ".lora_B." in spec.name and spec.name in zeros]
    every = blocks_between(sides, 0, max((spec.end for spec in sides), default=0))
    untrained = {name: blocks for name, blocks in every.items() if zeros[name] == blocks}
    replace(reference, zero_blocks=untrained).check_written(adapter)


def read_accepted_adapter(
    adapter: Checkpoint,
    rules: StageRules,
    *,
    digest: str | None,
    budget: int,
    check_cancelled: Callable[[], None],
) -> tuple[bool, str]:
    """Read and check the bytes of the result of `open_fitting_adapter`, as `reference.read_accepted` does. Blocks."""
    in_memory = rules.inspector.read(adapter, budget=budget, check_cancelled=check_cancelled)
    found = adapter.digest(check_cancelled)
    check_digest(digest, found, "the files")
    if digest is None:
        check_written(adapter, rules.reference)
    adapter.check_same_on_disk(rules.roots)
    return in_memory, found


class Kind(StrEnum):
    """Kind of weights as which a directory is read. A worker knows it from the call."""

    CHECKPOINT = "checkpoint"
    ADAPTER = "adapter"


def kind_of(path: str) -> Kind:
    """Return what a directory holds. The weights of a model may have an adapter's files next to them.

    Errors:
        Refusal: The directory cannot be opened.
    """
    directory = OpenDirectory(path, None)
    directory.close()
    is_adapter = ADAPTER_CONFIG_FILE in directory.names and not holds_model(directory.names)
    return Kind.ADAPTER if is_adapter else Kind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class PrivateAdapter:
    """The private copy of an adapter.

    Fields:
        path: directory for the engine.
        digest: digest of the files, to compare with `AdapterRequest.digest`.
    """

    path: str
    digest: str
    size_bytes: int
    identity: Identity
    _checkpoint: Checkpoint

    def check_same_source(self, source: Source, roots: Roots) -> None:
        """See `sources.check_same_source`."""
        check_same_source(source, self._checkpoint, roots)

    def close(self) -> None:
        """Delete the directory and free the memory, after the adapter has left the engine."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._checkpoint.close()


def make_private(checkpoint: Checkpoint, digest: str) -> PrivateAdapter:
    """Make the directory for the engine. Blocks.

    Args:
        checkpoint: The adapter, after its bytes were read. The result owns it from now on.
        digest: Its digest.

    Errors:
        Refusal: `NotAvailable`, if its bytes are not in memory.
    """
    if not checkpoint.is_held:
        raise Refusal(
            Reason.NOT_AVAILABLE,
            f"there is not enough memory for the adapter's {checkpoint.size_bytes} bytes;"
            " raise --staging-memory-bytes or the memory limit of the pod",
        )
    folder = Path(tempfile.mkdtemp(prefix="rlfleet-adapter-"))
    try:
        (file,) = checkpoint.files
        (folder / ADAPTER_WEIGHTS_FILE).symlink_to(checkpoint.link_of(file))
        (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(checkpoint.config))
        # The engine's processes may have another umask, but not another user.
        folder.chmod(0o700)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return PrivateAdapter(
        str(folder), digest, checkpoint.size_bytes, checkpoint.identity, checkpoint
    )


def label_of(
    name: str, request: AdapterRequest, files: PrivateAdapter, *, by_directory: bool
) -> Label:
    """The label that other bytes cannot have once the adapter is loaded. `by_directory`: see `LoraCalls.put`."""
    scope = f"adapter {name}"
    if request.run_id is not None:
        scope += f" of run {request.run_id}"
    elif by_directory:
        scope += f" from {files.identity.source}"
    return Label(request.version, scope)

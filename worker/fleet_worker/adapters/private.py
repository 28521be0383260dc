"""An adapter as the engine sees it: a directory of our own over bytes that nobody can change.

vLLM reads adapters by path and whenever it likes: it drops all of them at every load of base
weights and reads those that are used again, maps their files, and dies if one is gone. So the
directory that it is told holds the configuration that was checked and a link to the sealed copy of
the weights in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core.adapter_layout import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from fleet_worker.core.labels import Identity
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason


@dataclass(frozen=True, slots=True)
class PrivateAdapter:
    """What is held of an adapter.

    Fields:
        path: directory for the engine.
        digest: of the files, as `AdapterRequest.digest` names it.
    """

    path: str
    digest: str
    size_bytes: int
    identity: Identity
    _checkpoint: Checkpoint

    def close(self) -> None:
        """Give everything back; the engine must have let go of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._checkpoint.close()


def make_private(
    checkpoint: Checkpoint,
    read: Callable[..., bool],
    *,
    budget: int,
    go_on: Callable[[], None],
) -> PrivateAdapter:
    """Hold an adapter that has been opened. Blocks.

    Args:
        checkpoint: The adapter; belongs to the result from now on.
        read: Reads and judges its bytes, see `Inspector.read`.
        budget: How many bytes may be held.
        go_on: Raises to give up.

    Errors:
        Refusal: `NoAdapterSlot` if there is no memory for it; what `read` raises.
    """
    if not read(checkpoint, budget=budget, go_on=go_on):
        raise Refusal(
            Reason.NO_ADAPTER_SLOT,
            f"there is no memory left for the adapter's {checkpoint.size_bytes} bytes"
            " (--staging-memory-bytes)",
        )
    digest = checkpoint.digest(go_on)
    folder = Path(tempfile.mkdtemp(prefix="rlfleet-adapter-"))
    try:
        (file,) = checkpoint.files
        content = checkpoint.descriptor_of(file)
        (folder / ADAPTER_WEIGHTS_FILE).symlink_to(f"/proc/{os.getpid()}/fd/{content}")
        (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(checkpoint.config))
        # The engine's processes may run under other umasks, never as another user.
        folder.chmod(0o700)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return PrivateAdapter(
        str(folder), digest, checkpoint.size_bytes, checkpoint.identity, checkpoint
    )

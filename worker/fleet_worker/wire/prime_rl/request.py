"""What prime-rl's orchestrator sends.

Source: `prime_rl.utils.client` and `prime_rl.inference`, main of August 2026.
"""

from __future__ import annotations

from pydantic import StrictStr

from fleet_worker.wire.control import Lenient


class UpdateWeights(Lenient):
    """`/update_weights`: the version is not named, only the folder tells it."""

    weight_dir: StrictStr | None = None


class InitBroadcaster(Lenient):
    """`/init_broadcaster`: the trainer is rank 0, the first process of this engine `rank_offset + 1`."""

    host: StrictStr
    port: int
    rank_offset: int
    inference_world_size: int

    def as_init_info(self) -> dict[str, object]:
        """The same for vLLM's weight transfer engine."""
        return {
            "master_address": self.host,
            "master_port": self.port,
            "rank_offset": self.rank_offset + 1,
            "world_size": self.inference_world_size + 1,
        }

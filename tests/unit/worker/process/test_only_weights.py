"""The directory from which the audit reads a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support import damage
from tests.support.layouts import READ, REFUSED, write_layout
from tests.support.slime_deltas import write_delta
from tests.support.tiny import write_tiny

from fleet_worker.process.manifest import digest_in, only_weights


@pytest.mark.parametrize("layout", READ)
def test_the_audit_finds_the_digested_weights_and_nothing_else(tmp_path: Path, layout: str) -> None:
    files, more, read = READ[layout]
    directory = write_layout(tmp_path / "1", files, **more)
    weights = [name for name in read if name.endswith(".safetensors")]
    with only_weights(str(directory)) as made:
        found = {path.resolve().name: path for path in Path(made).glob("*.safetensors")}
        assert set(found) == set(weights)
        for name, path in found.items():
            assert path.read_bytes() == (directory / name).read_bytes()
        assert (damage.WEIGHTS in {path.name for path in found.values()}) == (len(weights) == 1)
        config = json.loads(Path(made, "config.json").read_text())
        assert config["model_type"] == "tiny"
        assert "transformers_weights" not in config

    assert not Path(made).exists()


def test_the_audit_reads_a_delta_as_the_weights_that_it_gives(tmp_path: Path) -> None:
    base, full = write_tiny(tmp_path / "step_1"), write_tiny(tmp_path / "full", 2.0)
    delta = write_delta(base, full, tmp_path / "step_2", version=2, base_version=1)
    assert digest_in(str(delta)) == digest_in(str(full))
    with only_weights(str(delta)) as made:
        (file,) = Path(made).glob("*.safetensors")
        assert file.read_bytes() == (full / damage.WEIGHTS).read_bytes()

    shutil.rmtree(base)
    with pytest.raises(OSError, match="step_1"), only_weights(str(delta)):
        pass


@pytest.mark.parametrize("layout", REFUSED)
def test_the_audit_refuses_what_a_worker_refuses(tmp_path: Path, layout: str) -> None:
    files, more, _, named = REFUSED[layout]
    directory = str(write_layout(tmp_path / "1", files, **more))
    with pytest.raises(OSError, match="1: ") as audited, only_weights(directory):
        pass
    with pytest.raises(OSError, match="1: ") as digested:
        digest_in(directory)

    assert str(audited.value) == str(digested.value)
    assert all(name in str(audited.value) for name in named)

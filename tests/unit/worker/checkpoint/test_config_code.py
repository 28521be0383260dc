"""Which keys the code of a model could read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet_worker.checkpoint import config_code
from fleet_worker.checkpoint.config_code import ConfigCode, code_of

Find = Callable[..., ConfigCode]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """The code of a model of the type `own`, with installed packages of a few files."""
    files = {
        "vllm/__init__.py": "",
        "vllm/model_executor/models/own.py": "config.hidden_size",
        "vllm/transformers_utils/config.py": "getattr(config, 'sparse_size')",
        "vllm/v1/runner.py": "model_config.hf_text_config.window",
        "vllm/v1/other.py": "scheduler.request_name",
        "transformers/__init__.py": "",
        "transformers/modeling_rope_utils.py": "rope_theta",
        "transformers/trainer.py": "learning_rate",
        "transformers/models/own/configuration_own.py": "rms_norm_eps: float",
        "transformers/models/own/modeling_own.py": "config.head_dim",
        "transformers/models/other/modeling_other.py": "config.other_size",
        "model/modeling_mine.py": "config.mine",
        "model/config.json": "in_the_file",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def found(package: str) -> SimpleNamespace | None:
        file = tmp_path / package / "__init__.py"
        return SimpleNamespace(origin=str(file)) if file.exists() else None

    monkeypatch.setattr(config_code, "find_spec", found)

    def run(auto_map: object = None) -> ConfigCode:
        classes = [tmp_path / "transformers/models/own/configuration_own.py"]
        return code_of(auto_map, str(tmp_path / "model"), classes, ["text_config"])

    return run


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("hidden_size", True),
        ("sparse_size", True),
        ("window", True),
        ("rope_theta", True),
        ("rms_norm_eps", True),
        ("head_dim", True),
        ("mine", True),
        ("unsloth_version", False),
        ("hidden", False),
        ("request_name", False),
        ("learning_rate", False),
        ("other_size", False),
        ("in_the_file", False),
        ("config.hidden_size", True),
        ("config.unsloth_version", False),
        ("", True),
    ],
)
def test_a_key_could_be_read_if_its_words_are_in_the_code_of_the_model(
    find: Find, key: str, *, expected: bool
) -> None:
    assert find().could_read(key) is expected


def test_every_key_could_be_read_by_code_that_is_not_here(
    find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = find({"AutoConfig": "someone/else--configuration.Config"})
    beside = find({"AutoConfig": "modeling_mine.Config"})
    (tmp_path / "vllm/__init__.py").unlink()
    without_vllm = find()

    assert elsewhere.could_read("unsloth_version")
    assert without_vllm.could_read("unsloth_version")
    assert not beside.could_read("unsloth_version")


def test_nested_configurations_are_known_in_any_case(find: Find) -> None:
    assert find().nested == find("a--b").nested == {"text_config"}

"""Which keys the code of a model could read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet_worker.checkpoint import config_code
from fleet_worker.checkpoint.config_code import ConfigCode, code_of

Find = Callable[..., ConfigCode]


FILES = {
    "vllm/__init__.py": "",
    "vllm/model_executor/models/registry.py": """
        "OwnForCausalLM": ("own", "OwnForCausalLM"),
        "OtherForCausalLM": ("other", "OtherForCausalLM"),
        "AroundAny": (
            "around",
            "AroundAny",
        ),
        "OfAnotherFolder": ("vllm.models.apart", "OfAnotherFolder"),
    """,
    "vllm/model_executor/models/own.py": """
        # Licensed to you by the author.
        from .utils import PPMissingLayer
        config.hidden_size; config["from_a_key"]
    """,
    "vllm/model_executor/models/utils.py": "def init_vllm_registered_model(): c.from_an_import",
    "vllm/model_executor/models/other.py": "config.of_another_model",
    "vllm/model_executor/models/around.py": "init_vllm_registered_model(config.text_config)",
    "vllm/models/apart/model.py": "config.of_another_folder",
    "vllm/transformers_utils/config.py": "getattr(config, 'sparse_size'); 'seq_length'",
    "vllm/transformers_utils/configs/mine.py": "def __init__(self, in_a_class=1): pass",
    "vllm/v1/runner.py": "model_config.hf_text_config.window; self.queue",
    "vllm/v1/other.py": "scheduler.request_name",
    "transformers/__init__.py": "",
    "transformers/modeling_rope_utils.py": "config.rope_theta",
    "transformers/trainer.py": "config.learning_rate",
    "transformers/models/own/configuration_own.py": "rms_norm_eps: float",
    "transformers/models/own/modeling_own.py": "config.head_dim",
    "transformers/models/other/modeling_other.py": "config.other_size",
    "model/modeling_mine.py": "config.mine",
    "model/config.json": "in_the_file",
}
OWN = ["OwnForCausalLM"]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """The code of a model of the type `own`, with installed packages of a few files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def found(package: str) -> SimpleNamespace | None:
        file = tmp_path / package / "__init__.py"
        return SimpleNamespace(origin=str(file)) if file.exists() else None

    monkeypatch.setattr(config_code, "find_spec", found)

    def run(
        auto_map: object = None, architectures: object = OWN, *, is_known: bool = True
    ) -> ConfigCode:
        classes = [tmp_path / "transformers/models/own/configuration_own.py"] if is_known else []
        config = {"architectures": architectures, "auto_map": auto_map}
        return code_of(config, str(tmp_path / "model"), classes, ["text_config"])

    return run


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("hidden_size", True),
        ("from_a_key", True),
        ("from_an_import", True),
        ("sparse_size", True),
        ("window", True),
        ("rope_theta", True),
        ("rms_norm_eps", True),
        ("head_dim", True),
        ("mine", True),
        ("unsloth_version", False),
        ("hidden", False),
        ("author", False),
        ("Licensed", False),
        ("queue", False),
        ("seq_length", False),
        ("of_another_model", False),
        ("of_another_folder", False),
        ("in_a_class", False),
        ("request_name", False),
        ("learning_rate", False),
        ("other_size", False),
        ("in_the_file", False),
        ("head_dim.hidden_size", True),
        ("head_dim.unsloth_version", False),
        ("", True),
    ],
)
def test_a_key_could_be_read_if_its_words_are_names_in_the_code_of_the_model(
    find: Find, key: str, *, expected: bool
) -> None:
    assert find().could_read(key) is expected


@pytest.mark.parametrize(
    "architectures",
    [["AroundAny"], ["OfAnotherFolder"], ["Unknown"], [*OWN, "Unknown"], [], None, "Own", [{}]],
)
def test_a_model_that_any_code_of_vllm_may_build_could_read_what_any_model_reads(
    find: Find, architectures: object
) -> None:
    code = find(architectures=architectures)

    for key in ("hidden_size", "of_another_model", "of_another_folder"):
        assert code.could_read(key)
    assert not code.could_read("in_a_class")


def test_the_class_of_a_type_that_transformers_does_not_know_is_in_vllm(find: Find) -> None:
    assert find(is_known=False).could_read("in_a_class")


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

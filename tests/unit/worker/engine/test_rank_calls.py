"""Calls to one process of the engine: each has an answer, also a failed one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.rank_calls import RankCalls
from fleet_worker.engine.vllm_names import MLA
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


@dataclass
class FakeLoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


LORAS = ("layers.0.qkv_proj", "layers.0.o_proj", "visual.0.qkv")


class FakeWorker(RankCalls):
    """vLLM's worker, as far as it is called."""

    def __init__(self, applied: tuple[str, ...] = ()) -> None:
        self.added: list[FakeLoRARequest] = []
        modules = {name: SimpleNamespace(base_layer=object()) for name in applied}
        self.manager = SimpleNamespace(modules=modules, get_adapter=self.get_adapter)
        self.layers: list[Any] = []
        model = SimpleNamespace(lora_manager=self.manager, modules=lambda: self.layers)
        self.model_runner = SimpleNamespace(get_model=lambda: model)
        self.weight_transfer_engine: Any = None

    def add_lora(self, request: FakeLoRARequest) -> bool:
        self.added.append(request)
        return True

    def get_adapter(self, number: int) -> Any:
        assert number in [request.lora_int_id for request in self.added]
        return SimpleNamespace(loras=dict.fromkeys(LORAS))

    def list_loras(self) -> set[int]:
        return {1002, 1001}

    def update_weights(self, update_info: Any) -> None:
        raise update_info["error"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a shape differs"), "ValueError: a shape differs"),
        (Refusal(Reason.CHECKPOINT_MALFORMED, "the header is cut off"), "the header is cut off"),
        (KeyError("x" * 1000), "KeyError: '" + "x" * 489),
    ],
)
def test_an_error_becomes_the_answer(error: Exception, text: str) -> None:
    answer = FakeWorker().rlfleet_call("update_weights", {"update_info": {"error": error}})

    assert answer == {"method": "update_weights", "error": text, "result": None}


def test_a_method_that_is_missing_becomes_the_answer() -> None:
    answer = FakeWorker().rlfleet_call("finish_weight_update", {})

    assert answer["error"].startswith("AttributeError")


@dataclass
class FakeAttention:
    kv_b_proj: Any


@pytest.fixture
def lora_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"LoRARequest": FakeLoRARequest}
    install(monkeypatch, {"vllm.lora.request": members, MLA: {"MLAAttention": FakeAttention}})


@pytest.mark.usefixtures("lora_requests")
def test_adapters_are_added_and_listed_as_plain_values() -> None:
    worker = FakeWorker(applied=LORAS)
    given = {"name": "sql@3", "number": 1001, "path": "/private/3"}
    added = worker.rlfleet_call("rlfleet_add_adapter", given)

    assert added == {"method": "rlfleet_add_adapter", "error": None, "result": []}
    assert worker.added == [FakeLoRARequest("sql@3", 1001, "/private/3")]
    assert worker.rlfleet_call("rlfleet_adapters", {})["result"] == [1001, 1002]


@pytest.mark.usefixtures("lora_requests")
def test_modules_of_an_adapter_that_a_process_does_not_apply_are_its_answer() -> None:
    worker = FakeWorker(applied=("layers.0.qkv_proj", "layers.0.gate_up_proj"))

    assert worker.rlfleet_add_adapter("sql@3", 1001, "/private/3") == [
        "layers.0.o_proj",
        "visual.0.qkv",
    ]


@pytest.mark.usefixtures("lora_requests")
@pytest.mark.parametrize("wraps", [True, False])
def test_a_module_whose_weight_the_attention_absorbs_is_not_applied(wraps: bool) -> None:
    worker = FakeWorker(applied=LORAS)
    layer = worker.manager.modules["layers.0.o_proj"]
    worker.layers = [object(), FakeAttention(layer if wraps else layer.base_layer)]

    assert worker.rlfleet_add_adapter("sql@3", 1001, "/private/3") == ["layers.0.o_proj"]


class FakeUniqueId(ctypes.Structure):
    """As `ncclUniqueId` of vLLM."""

    _fields_: ClassVar = [("internal", ctypes.c_byte * 128)]


def nccl_group(drawn: bytes) -> Any:
    return SimpleNamespace(unique_id=FakeUniqueId.from_buffer_copy(drawn.ljust(128, b"\0")))


DRAWN = bytes(range(200, 220))


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        (SimpleNamespace(model_update_group=nccl_group(DRAWN)), DRAWN.ljust(128, b"\0").hex()),
        (SimpleNamespace(model_update_group=nccl_group(bytes.fromhex("8002" * 4) + DRAWN)), None),
        (SimpleNamespace(model_update_group=nccl_group(b"")), None),
        (SimpleNamespace(model_update_group=SimpleNamespace(disabled=True)), None),
        (SimpleNamespace(model_update_group=None), None),
        (SimpleNamespace(), None),
        (None, None),
    ],
    ids=["drawn", "set by NCCL_COMM_ID", "not received", "disabled", "left", "not NCCL", "none"],
)
def test_a_group_is_known_by_what_nccl_has_drawn_for_it(engine: Any, found: str | None) -> None:
    worker = FakeWorker()
    worker.weight_transfer_engine = engine

    assert worker.rlfleet_group() == found

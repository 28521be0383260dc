"""As much of vLLM's engine client, `AsyncLLM`, as the worker uses. Its tokens are the letters' numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

MAX_LENGTH = 64


def answer_of(method: str, result: Any) -> dict[str, Any]:
    """The answer of one process to `rlfleet_call`, with the error if the result is one."""
    error = str(result) if isinstance(result, Exception) else None
    return {"method": method, "error": error, "result": None if error else result}


class FakeVllmClient:
    """Obeys every call, and keeps a list of the calls.

    Fields:
        calls: names, with their arguments.
        answers: call → what it returns or raises; of a call to all processes, a list of their results.
        prompts: prompt, parameters and id of each request.
        slots: numbers of the adapters that it holds.
        takes / gives: whether it adds and removes adapters.
        dropped: modules of an adapter that each process does not apply.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.prompts: list[tuple[Any, Any, str]] = []
        self.errored = False
        self.label = "default"
        self.slots: set[int] = set()
        self.takes = self.gives = True
        self.dropped: tuple[list[str], ...] = ([], [])
        self.max_logprobs = 20
        self.output_processor = SimpleNamespace(
            request_states={"a": 1, "b": 2}, parent_requests={"c": 3}
        )

    @property
    def vllm_config(self) -> Any:
        config = SimpleNamespace(max_model_len=MAX_LENGTH, max_logprobs=self.max_logprobs)
        return SimpleNamespace(model_config=config)

    def get_num_unfinished_requests(self) -> int:
        return 7

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: [ord(letter) for letter in text])

    async def generate(self, prompt: Any, parameters: Any, request_id: str) -> AsyncIterator[Any]:
        self.prompts.append((prompt, parameters, request_id))
        if (error := self.answers.get("generate")) is not None:
            raise error
        ids = prompt["prompt_token_ids"]
        reported = [None, *({i: SimpleNamespace(logprob=-i / 100)} for i in ids[1:])]
        made = SimpleNamespace(token_ids=list(range(parameters.max_tokens)))
        yield SimpleNamespace(outputs=[], prompt_token_ids=[], prompt_logprobs=[])
        yield SimpleNamespace(outputs=[made], prompt_token_ids=ids, prompt_logprobs=reported)

    async def collective_rpc(self, name: str, *, args: tuple[str, dict[str, Any]]) -> list[Any]:
        assert name == "rlfleet_call"
        self.calls.append(args)
        return self.of_each_process(*args)

    def of_each_process(self, method: str, given: dict[str, Any]) -> list[Any]:
        """The answers of all processes. Slots of adapters are those of the second one."""
        results = self._raised_or(self.answers.get(method), [None])
        if method == "rlfleet_add_adapter":
            self.slots |= {given["number"]} if self.takes else set()
            results = list(self.dropped)
        if method == "remove_lora" and self.gives:
            self.slots.discard(given["lora_id"])
        if method == "rlfleet_adapters":
            results = [sorted(self.slots | {1007} if not self.takes else self.slots)]
            results += [sorted(self.slots)]
        return [answer_of(method, each) for each in results]

    @staticmethod
    def _raised_or(answer: Any, default: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return default if answer is None else answer

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, named or arguments))
            if name == "update_weight_version" and name not in self.answers:
                self.label = arguments[0]
            default = self.label if name == "get_weight_version" else True
            return self._raised_or(self.answers.get(name), default)

        return call

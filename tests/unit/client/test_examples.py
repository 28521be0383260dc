"""Every public method has an example in its docstring, and the examples run unchanged."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import io
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support import fake_modules
from tests.support.fake_objects import FakeObjects

import rlfleet

REPLY = {
    "id": "one",
    "choices": [
        {
            "index": 0,
            "token_ids": [7, 8],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
            "weight_versions": [{"version": "43", "start": 0, "end": 2}],
        }
    ],
}
DATA = (rlfleet.Event, rlfleet.Label, rlfleet.WeightSpan, rlfleet.Rollout, rlfleet.Written)
"""Return values of methods: not callable."""


def documented() -> Iterator[tuple[str, Any]]:
    """Everything that users call, by its name."""
    for name in rlfleet.__all__:
        thing = getattr(rlfleet, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif (
            not issubclass(thing, (Exception, rlfleet.WeightVersion.__base__)) and thing not in DATA
        ):
            yield name, thing
            for method, function in vars(thing).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


def run(example: doctest.Example, names: dict[str, Any]) -> str:
    """The output of an example, or the value of its expression."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = compile(example.source, "<docstring>", "single", flags=flags)
        found = eval(code, names)  # noqa: S307 - our own docstrings
        if inspect.iscoroutine(found):
            asyncio.run(found)
    return printed.getvalue()


class FakeWorker(BaseHTTPRequestHandler):
    """Meets every demand."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeWorker) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class FakeTrainer:
    """Runs 20 steps, as the trainer of transformers."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = callbacks

    def train(self) -> None:
        model = SimpleNamespace(save_pretrained=lambda folder: Path(folder).mkdir())
        for step in range(1, 21):
            state = SimpleNamespace(global_step=step, is_world_process_zero=True)
            for callback in self._callbacks:
                callback.on_step_end(None, state, None, model=model)


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*d, id=d[0]) for d in documented()])
def test_an_example_runs(name, thing, monkeypatch, tmp_path, endpoint):
    fake_modules.install(monkeypatch, {"transformers": {"TrainerCallback": object}})
    objects = FakeObjects()

    def connected(of: Any) -> Any:
        return lambda *arguments, **options: of(*arguments, **options, objects=objects)

    is_async = name.startswith("AsyncWeights")
    names = {n: getattr(rlfleet, n) for n in rlfleet.__all__}
    names |= {"Weights": connected(rlfleet.Weights), "Trainer": FakeTrainer}
    names |= {"AsyncWeights": connected(rlfleet.AsyncWeights), "reply": REPLY}
    names |= {"directory": tmp_path, "print": print, "httpx": httpx, "endpoint": endpoint}
    names["weights"] = names["AsyncWeights" if is_async else "Weights"]("policy", namespace="rl")
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")

    assert examples, f"{name} has no example"
    for example in examples:
        printed = run(example, names)
        assert doctest.OutputChecker().check_output(example.want, printed, 0), (
            f"{name}: {example.source}expected {example.want!r}, got {printed!r}"
        )


def test_both_clients_have_the_same_methods_and_parameters():
    def methods(of: Any) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
            for name, function in vars(of).items()
            if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_"))
        }

    assert methods(rlfleet.Weights) == methods(rlfleet.AsyncWeights)

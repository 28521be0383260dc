"""The diagram in CONTRIBUTING.md: the files that turn a patch into resumed workers."""

from __future__ import annotations

from typing import NamedTuple

from pictures.shapes import Drawing, Role, Theme

DESCRIPTION = (
    "A watch event goes through the operator's runtime into the pure core, whose calls runtime "
    "sends to the workers. There the admin port, the agent and the engine carry them out. The "
    "answers start the next reconcile."
)


class Step(NamedTuple):
    """A file on the way, relative to the lane's folder, and what it does."""

    file: str
    does: str


class Lane(NamedTuple):
    """Files of one layer, in the order of the way."""

    name: str
    folder: str
    role: Role
    steps: tuple[Step, ...]


LANES = (
    Lane(
        "events become keys",
        "operator/fleet_operator/runtime",
        "plain",
        (
            Step("kopf_watch.py", "an event fills store.py and becomes the key of a fleet"),
            Step("reconcile.py", "one reconcile of one fleet"),
        ),
    ),
    Lane(
        "pure decisions",
        "operator/fleet_operator/core",
        "ours",
        (
            Step("decision.py", "decide: everything to do now"),
            Step("rollout_plan.py", "which version, which strategy"),
            Step("strategies/synchronized.py", "the next step of each worker"),
            Step("worker_calls.py", "the calls of this step"),
        ),
    ),
    Lane(
        "calls go out",
        "operator/fleet_operator",
        "plain",
        (
            Step("runtime/dispatch.py", "sends them, collects answers"),
            Step("clients/workers.py", "signed HTTP"),
        ),
    ),
    Lane(
        "a worker obeys, or refuses",
        "worker/fleet_worker",
        "ours",
        (
            Step("admin/app.py", "signature, pod, size"),
            Step("admin/operator.py", "the route"),
            Step("lifecycle/agent.py", "may this phase do that, and for this leader?"),
            Step("lifecycle/staging.py", "the files are checked, their bytes are read"),
            Step("lifecycle/pausing.py", "pause, resume, latch"),
            Step("lifecycle/loading.py", "the load itself"),
            Step("engine/vllm.py", "the calls to vLLM"),
            Step("engine/extension.py", "the bytes enter the model, inside the engine"),
        ),
    ),
)

_LEFT, _WIDTH, _ROW = 60, 760, 25
_HEAD, _GAP = 34, 34
_NOTES = ("watch of the Kubernetes API", "", "", "stage · pause · load · resume")


def draw(theme: Theme) -> str:
    """Returns the SVG in the colours of a theme."""
    heights = [_HEAD + _ROW * len(lane.steps) for lane in LANES]
    d = Drawing(880, sum(heights) + _GAP * len(LANES) + 16, theme, DESCRIPTION)
    top, tops = 0.0, []
    for lane, height, note in zip(LANES, heights, _NOTES, strict=True):
        d.arrow((_LEFT + 40, top + 4), (_LEFT + 40, top + _GAP))
        d.text((_LEFT + 54, top + 24), note, quiet=True, anchor="start")
        top += _GAP
        tops.append(top)
        d.box((_LEFT, top), (_WIDTH, height), "", role=lane.role)
        d.text((_LEFT + 16, top + 22), lane.name, bold=True, anchor="start")
        d.text((_LEFT + _WIDTH - 16, top + 22), lane.folder, mono=True, quiet=True, anchor="end")
        for number, step in enumerate(lane.steps):
            line = top + _HEAD + _ROW * number + 14
            d.text((_LEFT + 32, line), step.file, mono=True, anchor="start")
            d.text((_LEFT + 300, line), step.does, quiet=True, anchor="start")
        top += height
    reconcile, answers = tops[0] + heights[0] - 20, tops[2] + _HEAD + 8
    right = _LEFT + _WIDTH
    d.arrow((right, answers), (right + 24, answers), (right + 24, reconcile), (right, reconcile))
    d.text((right - 14, reconcile + 4), "again with each answer", quiet=True, anchor="end")
    return d.svg()

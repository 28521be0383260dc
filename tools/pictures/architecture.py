"""The front page's diagram: which parts there are, and which part calls which."""

from __future__ import annotations

from pictures.shapes import Drawing, Theme

DESCRIPTION = (
    "A trainer patches a WeightVersion in the Kubernetes API, directly or through the RL API. "
    "The operator watches it and calls the admin port of each worker: stage, pause, load, resume. "
    "Workers read weights from shared storage. Rollout clients reach the workers' public port "
    "through a Service or a router, and each reply names the weights of its tokens."
)


def draw(theme: Theme) -> str:
    """Returns the SVG in the colours of a theme."""
    d = Drawing(960, 560, theme, DESCRIPTION)

    d.box((24, 24), (170, 74), "Trainer", ["SDK · kubectl · curl"])
    d.box((360, 24), (300, 74), "Kubernetes API", ["InferenceFleet · WeightVersion"])
    d.box((780, 24), (156, 74), "You", ["rlfleet · kubectl · helm"])
    d.arrow((194, 50), (360, 50))
    d.text((277, 42), "patch WeightVersion", quiet=True)
    d.arrow((780, 61), (660, 61), both=True)
    d.text((720, 51), "spec, status", quiet=True)

    d.box((24, 158), (170, 66), "RL API", ["HTTP, optional"], role="ours")
    d.arrow((109, 98), (109, 158))
    d.arrow((194, 180), (277, 180), (277, 76), (360, 76))

    d.box((360, 158), (300, 66), "Operator", ["2 replicas, one leads"], role="ours")
    d.arrow((440, 98), (440, 158))
    d.text((432, 133), "watch", quiet=True, anchor="end")
    d.arrow((580, 158), (580, 98))
    d.text((588, 133), "status, events", quiet=True, anchor="start")

    d.box((324, 292), (388, 244), "", role="group")
    d.text((340, 318), "Fleet of worker pods", bold=True, anchor="start")
    for shift in (16, 8, 0):
        d.box((340 + shift, 388 - shift), (340, 128), "", role="plain")
    d.arrow((540, 224), (540, 372))
    d.text((552, 250), "stage · pause · load · resume", anchor="start")
    d.text((552, 268), "signed, fenced by epoch", quiet=True, anchor="start")
    d.text((360, 410), "Worker pod", bold=True, anchor="start")
    d.box((360, 424), (196, 78), "rlfleet plugin", ["latch · checks · labels"], role="ours")
    d.box((576, 424), (84, 78), "vLLM", ["engine"])
    d.arrow((556, 463), (576, 463), both=True)
    d.text((552, 362), "admin port", quiet=True, anchor="start")

    d.box((24, 424), (170, 78), "Rollout clients", ["OpenAI routes", "token in, token out"])
    d.arrow((194, 463), (360, 463))
    d.text((258, 428), "Service or router", quiet=True)
    d.text((258, 446), "to the public port", quiet=True)
    d.text((258, 484), "each reply names", quiet=True)
    d.text((258, 502), "its weights", quiet=True)

    d.box((780, 424), (156, 78), "Shared storage", ["checkpoints, adapters"], role="outside")
    d.arrow((780, 463), (680, 463))
    d.text((768, 452), "read", quiet=True, anchor="end")
    d.arrow((24, 86), (10, 86), (10, 548), (858, 548), (858, 502), dashed=True)
    d.text((109, 541), "writes checkpoints", quiet=True)
    return d.svg()

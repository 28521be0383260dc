"""`make demo`: a trainer publishes weights, a fleet of real workers takes them, things go wrong.

place.py      the cluster: one of our own, or the one of the current kubeconfig.
trainer.py    a pod that writes checkpoints, and publishes them with `rlfleet.Weights`.
sampler.py    clients that generate through the Service all the time and keep every reply.
watch.py      what the cluster and the workers say of themselves.
screen.py     the same, live in a terminal or as plain lines.
story.py      what happens, act by act, and what must hold after each.
verdict.py    the summary, with every token recomputed offline.
"""

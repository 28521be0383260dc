"""Names by which the start of a process and its engine's loader find each other."""

LOAD_FORMAT = "rlfleet"
"""vLLM's name of the loader that compares tensors with their digests (`engine.start_loader`)."""
START_PREFIX = "rlfleet-start-"
"""Beginning of the name of the directory that vLLM starts on (`process.start_directory`)."""
DIGESTS_FILE = "rlfleet-digests.json"
"""Next to the links to the weights: tensor name → digest (`checkpoint.digests`); null for sealed memory."""

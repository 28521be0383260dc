"""The process: command line, start, hand-over to vLLM, signals and the end."""

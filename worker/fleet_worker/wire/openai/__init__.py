"""vLLM's own chat and completion routes: log-probabilities that name their tokens."""

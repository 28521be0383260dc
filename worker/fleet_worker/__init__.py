"""The rlfleet worker: stock vLLM with a latch, checked weight loads and version stamps."""

"""LoRA adapters: their files, their slots in the engine, and the calls that change them."""

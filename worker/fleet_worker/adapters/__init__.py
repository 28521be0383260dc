"""What talks to the world: files, memory, vLLM, torch, transformers, uvicorn.

The only importers of vLLM, torch, transformers and safetensors in the worker are here.
"""

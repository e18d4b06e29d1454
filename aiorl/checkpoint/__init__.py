"""Checkpoints: directories that are whole or absent, of tensors (safetensors) and one JSON manifest."""

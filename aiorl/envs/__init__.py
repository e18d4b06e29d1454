"""Batched robot tasks on MuJoCo, each usable without the rest of aiorl."""

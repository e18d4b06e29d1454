"""Soft actor-critic (arXiv 1801.01290, 1812.05905)."""

"""Asynchronous PPO with V-trace and a target policy (IMPACT, arXiv 1912.00167)."""

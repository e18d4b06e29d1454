"""Baselines and measurements that aiorl is compared with; no part of the installed package."""

"""Every knob of a run: frozen, bounded, explained once; imports no torch."""

from aiorl.settings.algorithm import AlgorithmSettings
from aiorl.settings.load import load_settings
from aiorl.settings.run import RunSettings

__all__ = ["AlgorithmSettings", "RunSettings", "load_settings"]

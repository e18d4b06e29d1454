"""The presets that ship with aiorl: `<algorithm>/<env>.yaml`, only what differs from the defaults."""

from __future__ import annotations

from pathlib import Path

from aiorl.errors import SettingsError
from aiorl.settings.explain import nearest

QUICK_START = "sac/pendulum"

_PACKAGE = Path(__file__).resolve().parents[1]


def preset_dir() -> Path:
    """Return the folder of the presets: inside the wheel, or `settings/` of a checkout."""
    shipped = _PACKAGE / "presets"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "settings"


def preset_names() -> list[str]:
    """Return the names of all presets, such as `sac/pendulum`."""
    root = preset_dir()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def find(name: str | Path) -> tuple[Path, str]:
    """Return the file of a preset or path, and the label that error messages use for it.

    Raises:
        SettingsError: there is neither such a file nor such a preset.

    """
    path, text = Path(name), str(name)
    if path.suffix in (".yaml", ".yml"):
        if _is_file(path):
            return path, text
        raise SettingsError(f"{text}: no such settings file")
    preset = preset_dir() / f"{text}.yaml"
    if text in preset_names():
        return preset, f"{text}.yaml"
    if _is_file(path):
        raise SettingsError(f"{text}: a settings file must end in .yaml")
    raise SettingsError(
        f"{text}: no such preset or settings file{nearest(text, preset_names())}"
        " (`aiorl settings list` shows the presets)"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a name may be, or not a name at all
        return False

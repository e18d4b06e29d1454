"""Ten thousand settings that somebody, or something, has damaged: settings or a refusal in sentences, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiorl.errors import SettingsError
from aiorl.settings import RunSettings, load_settings
from aiorl.settings.presets import preset_names
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import read_mapping, write_mapping

CASES = 10_000
SLICES = 8
LONGEST_S = 5.0
HOSTILE = [
    *("", "~", "null", "no", "true", ".nan", "-.inf", "1e400", "-1", "0", "1e-300", "9" * 400, "0x1F", "1__0", "1:30"),
    *("[]", "{}", "[1, [2, [3]]]", "{a: {b: {c: 1}}}", "&a [1]", "*a", "<<: *a", "!!python/object:os.system x"),
    *('"\\x00"', "'\\'", "\u202e", "é" * 300, "\x85", "a\tb", "- -", "? x", "|", ">-", "%", "@", "`", "2001-01-01"),
    *(
        "/dev/zero",
        "../../etc/passwd",
        "__class__",
        "aiorl.testing:no_such",
        "os:system",
        "x" * 5000,
        "${HOME}",
        "$(id)",
    ),
]
PRESETS = [
    Path(__file__).parents[2].joinpath("settings", f"{name}.yaml").read_text(encoding="utf-8")
    for name in preset_names()
]
KEYS = [
    f"{section}.{field}"
    for section, info in run_settings_model().model_fields.items()
    if hasattr(info.annotation, "model_fields")
    for field in info.annotation.model_fields  # type: ignore[union-attr]
]


def damaged(text: str, rng: random.Random) -> str:
    """A preset with a few things done to it."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(9):
            case 0:
                del lines[at]
                lines = lines or [""]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), line)
            case 2:
                rng.shuffle(lines)
            case 3:
                lines[at] = f"{line.partition(':')[0]}: {rng.choice(HOSTILE)}"
            case 4 if line:
                place = rng.randrange(len(line))
                lines[at] = line[:place] + chr(rng.choice([*range(1, 256), 0x2028, 0x1F600])) + line[place + 1 :]
            case 5:
                lines[at] = " " * rng.randint(1, 9) + line
            case 6:
                lines.insert(at, f"{rng.choice(KEYS).replace('.', ': {')}: {rng.choice(HOSTILE)}}}")
            case 7:
                lines[at] = line[: rng.randint(0, len(line))]
            case _:
                lines.append(f"{rng.choice(HOSTILE)}: {rng.choice(HOSTILE)}")
    return "\n".join(lines)


def override(rng: random.Random) -> str:
    key = rng.choice(KEYS)
    match rng.randrange(6):
        case 0:
            key = key[: rng.randint(0, len(key))]
        case 1:
            key += rng.choice([".x", ".", "..", ".0", ".id.id", "\n"])
        case 2:
            key = rng.choice(HOSTILE)
    return f"{key}{rng.choice(['=', '=', '=', '==', '', ' = '])}{rng.choice(HOSTILE)}"


def settings_or_sentences(load: Callable[[], RunSettings], shown: object) -> bool:
    """Load; return whether it was taken. What is taken reads back the same, what is refused is told in sentences."""
    begin = time.process_time()
    try:
        loaded = load()
    except SettingsError as error:
        assert error.problems, shown
        assert all(problem.strip() and len(problem.splitlines()) == 1 for problem in error.problems), (shown, error)
        loaded = None
    assert time.process_time() - begin < LONGEST_S, shown
    if loaded is None:
        return False
    tree, _ = read_mapping(write_mapping(loaded.tree()), "again")
    assert run_settings_model().model_validate(tree) == loaded, shown
    return True


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=() if part < 1 else pytest.mark.slow) for part in range(SLICES)]
)
def test_damaged_files_overrides_and_variables(part: int, tmp_path: Path) -> None:
    rng = random.Random(part)
    path = tmp_path / "damaged.yaml"
    taken = 0
    for number in range(CASES // SLICES):
        overrides: list[str] = []
        environ: dict[str, str] = {}
        files: list[str | Path] = [rng.choice(preset_names())]
        match number % 4:
            case 0 | 1:
                path.write_text(damaged(rng.choice(PRESETS), rng), encoding="utf-8", errors="replace")
                files = [*files[: rng.randrange(2)], path]
            case 2:
                overrides = [override(rng) for _ in range(rng.randint(1, 3))]
            case _:
                name = rng.choice(KEYS).upper().replace(".", rng.choice(["__", "__", "_", "___"]))
                environ = {f"AIORL_{name}": rng.choice(HOSTILE)}
        shown = (part, number, overrides, environ, path.read_text(encoding="utf-8") if path in files else files)
        taken += settings_or_sentences(lambda: load_settings(*files, overrides=overrides, environ=environ), shown)  # noqa: B023
    assert CASES // SLICES // 50 < taken < CASES // SLICES, "some of it does no harm, most of it does"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "bytes.yaml"
    for preset in PRESETS:
        for _ in range(100):
            data = bytearray(preset.encode())
            for _ in range(rng.randint(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(bytes(data))
            settings_or_sentences(lambda: load_settings(path, environ={}), bytes(data))


def test_a_few_lines_of_aliases_are_not_written_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 9):
        before = ", ".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} [{before}]")
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match=r"laughs\.yaml:\d+: more than 20000 values"):
        load_settings(path, environ={})

"""Goldens on their way from setting to setting: each recorded and checked by `checker.py` in a process of its own, and kept in a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import products
from checker import FACTS, GOLDENS, beside
from circumstances import ONE_THREAD, Circumstance
from verdicts import Verdict, read

from precheck.goldens import file

ROOT = Path(__file__).parents[3]
CHECKER = Path(__file__).parent / "checker.py"
REPOSITORY = Circumstance("this repository")
"""The goldens that are kept beside the tests, wherever they were recorded. Nothing is checked under it."""


def run_all(folder: Path, settings: Sequence[Circumstance]) -> None:
    """Records and checks what is not in `folder` yet."""
    adopt(folder / REPOSITORY.folder)
    for each in settings:
        if not (folder / each.folder / FACTS).exists():
            run(folder, each, "multiplying", Path(products.__file__))
            run(folder, each, "recording", CHECKER)
    recorded = held(folder, settings)
    for each in recorded:
        others = [folder / other.folder for other in (each, *recorded, REPOSITORY)]
        missing = [other for other in dict.fromkeys(others) if not beside(folder / each.folder, other).exists()]
        if missing:
            run(folder, each, f"checking beside {len(missing)} settings", CHECKER, missing)


def held(folder: Path, settings: Sequence[Circumstance]) -> list[Circumstance]:
    """The settings under which goldens were recorded."""
    return [each for each in settings if (folder / each.folder / FACTS).exists()]


def adopt(into: Path) -> None:
    """A copy of the goldens that are kept beside the tests."""
    if not (into / FACTS).exists():
        shutil.copytree(ROOT / "golden" / "models" / "test_goldens", into / GOLDENS, dirs_exist_ok=True)
        known = file.read(next((into / GOLDENS).iterdir())).provenance
        told = {"torch": known["torch"], "capability": known["cpu"], "threads": "not known", "set": "not known"}
        (into / FACTS).write_text(json.dumps(told) + "\n", encoding="utf8")


def run(folder: Path, setting: Circumstance, what: str, program: Path, goldens: Sequence[Path] = ()) -> bool:
    """Whether the program got through under that setting; what it says is kept beside what it makes."""
    place = folder / setting.folder
    place.mkdir(parents=True, exist_ok=True)
    print(f"{setting.name}: {what}", flush=True)
    command = [setting.python, str(program), str(place), *map(str, goldens)]
    with (place / "log.txt").open("a", encoding="utf8") as log:
        done = subprocess.run(command, env=environment(setting), stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        print(f"{setting.name}: it ended with {done.returncode}; see {place / 'log.txt'}", flush=True)
    return not done.returncode


def environment(setting: Circumstance) -> dict[str, str]:
    """The caller's, but for what settings are made of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "ONEDNN_", "DNNL_", "MKL_", "OMP_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **ONE_THREAD, **setting.environment}


def pairs(folder: Path, settings: Sequence[Circumstance]) -> Iterator[tuple[str, str, list[Verdict], list[Verdict]]]:
    """Whose golden, checked where: the verdicts beside its own golden, and beside that one. Without what is not there."""
    for here in settings:
        for whose in (*settings, REPOSITORY):
            own, other = (beside(folder / here.folder, folder / name) for name in (here.folder, whose.folder))
            if whose is not here and own.exists() and other.exists():
                yield whose.name, here.name, read(own), read(other)


def multiplied(folder: Path, settings: Sequence[Circumstance]) -> dict[str, Any]:
    """What `products.py` came to, by setting."""
    return {each.name: json.loads((folder / each.folder / products.FILE).read_text(encoding="utf8")) for each in settings}


def facts(folder: Path, setting: Circumstance) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / setting.folder / FACTS).read_text(encoding="utf8"))
    return {"name": setting.name, "set": setting.told, **found}

"""Names of tests: the golden that belongs to one, and what to type to run one again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precheck.goldens.place import golden_path
from precheck.plugin.settings import KEY


def golden_of(item: pytest.Item, call: int = 1) -> Path:
    """The golden of the `call`-th check in a test. All precisions share it, so the precision is left out of the name."""
    paths = item.config.getini("testpaths")
    under = paths[0] if len(paths) == 1 else ""
    file, _, name = without_precision(item).partition("::")
    path = golden_path(item.config.stash[KEY].golden_dir, file, name, under=under.strip("/"))
    return path.with_name(f"{path.stem}+{call}{path.suffix}") if call > 1 else path


def first_call(path: Path) -> Path:
    """The golden of the first check in the test that `path` belongs to."""
    return path.with_name(re.sub(r"\+\d+$", "", path.stem) + path.suffix)


def without_precision(item: pytest.Item) -> str:
    """The node id with the precision taken out of its parameters."""
    return _with(item, "")


def under_float32(item: pytest.Item) -> str:
    """The node id that the test has where no precision is asked for."""
    return _with(item, "32-true")


def _with(item: pytest.Item, replacement: str) -> str:
    """The plugin's own parameter comes first among the ids, since its hook runs first."""
    callspec = getattr(item, "callspec", None)
    own = getattr(callspec, "params", {}).get("precision") if callspec else None
    name = getattr(own, "name", None)
    base, bracket, ids = item.nodeid.partition("[")
    if not bracket or name is None:
        return item.nodeid
    rest = ids.removesuffix("]").removeprefix(name).removeprefix("-")
    kept = "-".join(part for part in (replacement, rest) if part)
    return f"{base}[{kept}]" if kept else base


def shown(path: Path, root: Path) -> str:
    """Relative to the root of the project where it lies below it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)

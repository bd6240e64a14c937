"""Maps tests to node ids, to their goldens and to folders of goldens, and gives the command that runs a test again."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from precheck.goldens.place import golden_path
from precheck.plugin.settings import KEY, MODELS

_ANY = "x.py"  # any test file, where only its folder matters


def golden_of(item: pytest.Item, call: int = 1) -> Path:
    """The golden of the `call`-th check in a test. All precisions share it, so the precision is left out of the name."""
    return golden_of_id(item.config, plain_id(item), call)


def golden_of_id(config: pytest.Config, nodeid: str, call: int = 1) -> Path:
    """The golden of the `call`-th check in the test with this node id, as `plain_id` gives it."""
    path = _golden(config, *_split(nodeid))
    return path.with_name(f"{path.stem}+{call}{path.suffix}") if call > 1 else path


def first_call(path: Path) -> Path:
    """The golden of the first check in the test that `path` belongs to."""
    return path.with_name(re.sub(r"\+\d+$", "", path.stem) + path.suffix)


def family(item: pytest.Item) -> str:
    """The common beginning of the paths of all goldens of a test function, with any parameters."""
    file, name = _split(plain_id(item))
    path = _golden(item.config, file, name.partition("[")[0])
    return str(path.with_name(path.stem.partition("~")[0]))


def folder_of(config: pytest.Config, path: Path) -> Path | None:
    """The folder of goldens for a test file or a folder of tests. None for a path outside the project."""
    relative = Path(os.path.relpath(path, config.rootpath)).as_posix()
    if relative.startswith(".."):
        return None
    if relative == ".":
        return config.stash[KEY].golden_dir
    return _golden(config, relative, "x").parent if path.is_file() else _golden(config, f"{relative}/{_ANY}", "x").parents[1]


def models_folder(config: pytest.Config) -> Path:
    """The folder of goldens of --precision-model."""
    return _golden(config, MODELS, "x").parent


def asked_for(config: pytest.Config) -> list[Path]:
    """The folders of goldens whose tests all belong to the run, by the paths on the command line or by default."""
    root, golden_dir = config.rootpath, config.stash[KEY].golden_dir
    paths = [Path(os.path.normpath(config.invocation_params.dir / argument)) for argument in config.args]
    folders = [folder for path in paths if (folder := folder_of(config, path))]
    if any(root == path or root.is_relative_to(path) for path in paths):
        return [golden_dir]
    # the golden folder mirrors the folder of all tests, except for its part for tests outside that folder
    elsewhere = golden_path(golden_dir, _ANY, "x", under="y").parents[1]
    inner = [path for path in golden_dir.iterdir() if path != elsewhere] if golden_dir.is_dir() else []
    under = root / _under(config)
    whole = golden_dir in folders or any(under.is_relative_to(path) for path in paths)
    return [*(inner if whole else []), *(folder for folder in folders if folder != golden_dir)]


def _under(config: pytest.Config) -> str:
    paths = config.getini("testpaths")
    return str(paths[0]).strip("/") if len(paths) == 1 and not re.search(r"[*?\[]", paths[0]) else ""


def _golden(config: pytest.Config, file: str, name: str) -> Path:
    return golden_path(config.stash[KEY].golden_dir, file, name, under=_under(config))


def _split(nodeid: str) -> tuple[str, str]:
    file, _, name = nodeid.partition("::")
    return file, name


def plain_id(item: pytest.Item, precision: str = "") -> str:
    """The node id with `precision` in place of the plugin's parameter, and without additions of other plugins.

    The plugin's own parameter comes first among the ids, since its hook runs first; xdist adds the test's group.
    """
    base = f"{item.parent.nodeid if item.parent else ''}::{getattr(item, 'originalname', None) or item.name}"
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return base
    own = given_precision(item)
    rest = callspec.id.removeprefix(own).removeprefix("-") if own else callspec.id
    ids = "-".join(part for part in (precision if own else "", rest) if part)
    return f"{base}[{ids}]" if ids else base


def given_precision(item: pytest.Item) -> str:
    """The name of the precision with which the plugin parametrized a test. "" if it did not."""
    value: Any = getattr(getattr(item, "callspec", None), "params", {}).get("precision")
    return value.name if any(value is each for each in item.config.stash[KEY].precisions) else ""


def command(item: pytest.Item, option: str, precision: str) -> str:
    """The command that runs this test with that option under that precision, from the folder where pytest was started."""
    words = ["pytest", option]
    if item.config.getoption("golden_dir") is not None:
        words.append(_quoted(f"--golden-dir={item.config.getoption('golden_dir')}"))
    file, name = _split(plain_id(item, precision))
    file = Path(os.path.relpath(item.config.rootpath / file, item.config.invocation_params.dir)).as_posix()
    return " ".join([*words, _quoted(f"{file}::{name}", always=True)])


def _quoted(word: str, *, always: bool = False) -> str:
    """Quotes a word for a shell. Uses double quotes if all shells read them alike."""
    if re.search(r'["$`\\!%]', word):
        return shlex.quote(word)
    return f'"{word}"' if always or re.search(r"[^\w@+=:,./-]", word) else word


def shown(path: Path, root: Path) -> str:
    """A path relative to the root of the project if it lies below it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)

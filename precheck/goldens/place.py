"""Maps each test to the path of its golden. Standard library only, since the plugin uses it before it imports torch."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

SUFFIX = ".safetensors"
_LONGEST = 92  # characters; 120 with hash, suffix and number of a call, and 143 for a temporary name, the limit of eCryptfs
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # reserved on Windows
_ELSEWHERE = "~"  # the folder for goldens of tests outside `under`; no sanitised name is "~"


def golden_path(directory: Path, test_file: str, test_name: str, *, under: str = "") -> Path:
    """`directory`/<path of the test file>/<name of the test>.safetensors.

    `test_file` is relative to the root of the project, with forward slashes. `under` is the folder of all tests, if there is one; the path leaves
    it out. `test_name` may contain classes and parameters. Names that some file systems refuse, or cannot tell apart, are simplified and get a
    hash, so that different tests never share a file.
    """
    file = PurePosixPath(test_file)
    parts = (*file.parts[:-1], file.stem if file.suffix == ".py" else f"{file.name}/")  # so x gets a hash, unlike x.py
    root = PurePosixPath(under).parts
    inside = parts[: len(root)] == root and len(parts) > len(root)
    folders = [_plain(part) for part in (parts[len(root) :] if inside else parts)]
    return directory.joinpath(*([] if inside else [_ELSEWHERE]), *folders, _test(test_name) + SUFFIX)


def golden_files(directory: Path) -> list[Path]:
    """All goldens below `directory`, sorted. Temporary files that a crash left are not included."""
    return sorted(path for path in directory.rglob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))


def _test(name: str) -> str:
    """The file name for a test: `name-params` for `name[params]`, classes joined with dots. A name that contains dots or hyphens gets a hash."""
    with_parameters = re.fullmatch(r"([a-z_][a-z0-9_]*)\[([a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)\]", name)
    if with_parameters and _fit("-".join(with_parameters.groups())):
        return "-".join(with_parameters.groups())
    dotted = name.replace("::", ".")
    return _hashed(dotted, name) if re.search(r"[.-]", name) or not _fit(dotted) else dotted


def _plain(name: str) -> str:
    return name if _fit(name) and not name.endswith(SUFFIX) else _hashed(name, name)


def _fit(name: str) -> bool:
    """Whether every file system accepts `name` unchanged and tells it from other such names."""
    return _safe(name) == name == name.lower() != "" and not _is_device(name)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:_LONGEST]


def _hashed(name: str, original: str) -> str:
    digest = hashlib.blake2b(original.encode("utf8", "surrogatepass"), digest_size=5).hexdigest()
    safe = _safe(name) or "x"
    return f"{'x-' if _is_device(safe) else ''}{safe}~{digest}"


def _is_device(name: str) -> bool:
    return name.partition(".")[0].lower() in _DEVICES

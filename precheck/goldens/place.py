"""Which file belongs to which test. Standard library only: the plugin asks before torch is needed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

SUFFIX = ".safetensors"
_LONGEST = 92  # characters; with a hash, the suffix and a call's number 120, and a temporary name beside it 143, which eCryptfs takes
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # reserved on Windows
_ELSEWHERE = "~"  # holds the goldens of tests outside `under`; no sanitised name is a bare "~"


def golden_path(directory: Path, test_file: str, test_name: str, *, under: str = "") -> Path:
    """`directory`/<path of the test file>/<name of the test>.safetensors.

    `test_file` is relative to the root of the project, with forward slashes. `under` is the folder that all tests live in, if there is one; the
    path leaves it out. `test_name` may hold classes and parameters. Some file systems would refuse some names, or take two for one. These get a
    plain form and a hash of their own, so that different tests never share a file.
    """
    file = PurePosixPath(test_file)
    parts = (*file.parts[:-1], file.stem if file.suffix == ".py" else f"{file.name}/")  # the slash earns a hash: x.py is not x
    root = PurePosixPath(under).parts
    inside = parts[: len(root)] == root and len(parts) > len(root)
    folders = [_plain(part) for part in (parts[len(root) :] if inside else parts)]
    return directory.joinpath(*([] if inside else [_ELSEWHERE]), *folders, _test(test_name) + SUFFIX)


def golden_files(directory: Path) -> list[Path]:
    """Every golden below `directory`, in order; what a crash left half written is none."""
    return sorted(path for path in directory.rglob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))


def _test(name: str) -> str:
    """`name-params` for `name[params]`; classes are joined with dots. A name with dots or hyphens of its own is not left plain."""
    with_parameters = re.fullmatch(r"([a-z_][a-z0-9_]*)\[([a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)\]", name)
    if with_parameters and _fit("-".join(with_parameters.groups())):
        return "-".join(with_parameters.groups())
    dotted = name.replace("::", ".")
    return _hashed(dotted, name) if re.search(r"[.-]", name) or not _fit(dotted) else dotted


def _plain(name: str) -> str:
    return name if _fit(name) and not name.endswith(SUFFIX) else _hashed(name, name)


def _fit(name: str) -> bool:
    """Whether every file system takes `name` as it is, and none takes another such name for it."""
    return _safe(name) == name == name.lower() != "" and not _is_device(name)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:_LONGEST]


def _hashed(name: str, original: str) -> str:
    digest = hashlib.blake2b(original.encode("utf8", "surrogatepass"), digest_size=5).hexdigest()
    safe = _safe(name) or "x"
    return f"{'x-' if _is_device(safe) else ''}{safe}~{digest}"


def _is_device(name: str) -> bool:
    return name.partition(".")[0].lower() in _DEVICES

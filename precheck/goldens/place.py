"""Which file belongs to which test. Standard library only: the plugin asks before torch is needed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

SUFFIX = ".safetensors"
_LONGEST = 100  # characters of a name, so that every file system takes it with what is added to it
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # reserved on Windows


def golden_path(directory: Path, test_file: str, test_name: str, *, under: str = "") -> Path:
    """`directory`/<path of the test file>/<name of the test>.safetensors.

    `test_file` is relative to the root of the project, with forward slashes; `under` is the folder that all tests live in, if
    there is one, which the path leaves out. `test_name` may hold classes and parameters. Names that some file system would not
    take, or would mix up, get a plain form and a hash of their own, so that different tests never share a file.
    """
    file = PurePosixPath(test_file)
    parts = (*file.parts[:-1], file.stem if file.suffix == ".py" else file.name)
    if under:
        root = PurePosixPath(under).parts
        parts = parts[len(root) :] if parts[: len(root)] == root and len(parts) > len(root) else ("~", *parts)
    name = _plain(test_name.replace("::", "."), hashed=test_name if "." in test_name else "")
    return directory.joinpath(*("~" if part == "~" else _plain(part) for part in parts), name + SUFFIX)


def golden_files(directory: Path) -> list[Path]:
    """Every golden below `directory`, in order; what a crash left half written is none."""
    return sorted(path for path in directory.rglob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))


def _plain(name: str, *, hashed: str = "") -> str:
    """`name` if it is fit for every file system, else what is left of it and a hash of the whole (of `hashed`, if given)."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-. ")[:_LONGEST].rstrip("-. ")
    if not hashed and plain == name == name.lower() and plain.partition(".")[0] not in _DEVICES:
        return plain
    return f"{plain or 'x'}~{hashlib.blake2b((hashed or name).encode('utf8', 'surrogatepass'), digest_size=5).hexdigest()}"

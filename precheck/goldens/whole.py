"""Files written whole or not at all: a reader, a crash or another process sees the old file or the new one. Standard library only."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_TEMPORARY = ".tmp"


def replace(path: Path, data: bytes) -> None:
    """Puts `data` in the place of what is at `path`. Raises OSError, and leaves what was there and nothing else, where that cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # an interrupt too leaves nothing behind
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """So that the rename itself survives a loss of power; Windows opens no folders, and some network file systems sync none."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

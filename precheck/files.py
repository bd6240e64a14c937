"""Files written whole or not at all: a reader, a crash or another process sees the old file or the new one. Standard library only.

Every file that precheck writes is written here. A temporary file has a name that nobody can foresee. It is opened only if nothing has that name
yet, so that a link that somebody put into the folder cannot lead to another file of the user's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Puts `data` in the place of what is at `path`. Raises OSError, and leaves what was there and nothing else, where that cannot be.

    A link is replaced, not followed. A pipe or a device, such as /dev/null, is written to: to replace it would destroy it.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".precheck.{secrets.token_hex(8)}.tmp")  # as short as can be, since `path.name` may have the longest name allowed
    try:
        create(temporary, data)
        temporary.replace(path)
    except BaseException:  # an interrupt too leaves nothing behind
        _remove(temporary)
        raise
    _sync_folder(path.parent)


def create(path: Path, data: bytes) -> None:
    """Writes a new file. Raises FileExistsError where there is one or a link, OSError where it cannot be written; then nothing of it is left."""
    file = path.open("xb")
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """So that the rename itself survives a loss of power; Windows opens no folders, and some network file systems sync none."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

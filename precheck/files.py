"""Writes files atomically: a reader, or a crash, sees the old file or the new one. Standard library only.

Every file that precheck writes is written here. The name of a temporary file is random, and the file is opened only if the name is free. So a link
that somebody put into the folder cannot redirect the write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Replaces the file at `path` by one that holds `data`. If that fails, raises OSError and leaves the old file as it was.

    A link is replaced, not followed. A pipe or a device, such as /dev/null, is written to, since replacing it would destroy it.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".precheck.{secrets.token_hex(8)}.tmp")  # short, since `path.name` may be as long as the file system allows
    try:
        create(temporary, data)
        temporary.replace(path)
    except BaseException:  # also an interrupt must leave no temporary file
        _remove(temporary)
        raise
    _sync_folder(path.parent)


def create(path: Path, data: bytes) -> None:
    """Writes a new file. Raises FileExistsError if the name is taken, OSError if writing fails. Then no part of the file is left."""
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
    """Syncs a folder, so that a rename survives a loss of power. Does nothing on Windows and on file systems that cannot."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

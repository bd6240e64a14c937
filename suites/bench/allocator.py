"""The C library's allocator, told to keep what is freed.

glibc gives memory back to the operating system where the end of its heap is free, and has it back page by page, each for a microsecond
or more: where many contestants with much memory take turns, whoever frees last pays for all. In one process of one test nobody pays
twice, and a first step pays for its pages whoever takes it.
"""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of <malloc.h>


def keep() -> bool:
    """Whether this process keeps its memory from now on: false where there is no glibc, whose switches these are."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1))

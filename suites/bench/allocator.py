"""The C library's allocator, told to keep what is freed, and to hold as much as will be needed from the beginning.

glibc gives memory back to the operating system where the end of its heap is free, and has it back page by page, each for a microsecond
or more: where many contestants with much memory take turns, whoever frees last pays for all, and whoever asks for most pays for each turn by
which its heap has come apart. In one process of one test nobody pays twice, and a first step pays for its pages whoever takes it.
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of <malloc.h>
_A_PARAMETER = 130
"""Bytes for each parameter of the largest model: weights, moments, gradients and shadows of all contestants, and activations, came to 110 at 17 M."""


def keep(millions: int = 0) -> bool:
    """Whether this process keeps its memory from now on, and what models of so many million parameters will need, if that is at hand; false
    where there is no glibc, whose switches these are."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    kept = bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, -1))  # no trimming at all
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    bytearray(b"\1") * min(millions * 1_000_000 * _A_PARAMETER, free // 2)  # asked for, written, and given back to the heap at once
    return kept

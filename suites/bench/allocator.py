"""The C library's allocator, told to keep what is freed, and to hold as much as will be needed from the beginning.

glibc gives memory back to the operating system where the end of its heap is free, and has it back page by page, each for a microsecond
or more: where many contestants with much memory take turns, whoever frees last pays for all, and whoever asks for most pays for each turn by
which its heap has come apart. In one process of one test nobody pays twice, and a first step pays for its pages whoever takes it.
"""

from __future__ import annotations

import ctypes
import platform

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of <malloc.h>
_A_PARAMETER = 100
"""Bytes for each parameter of the largest model: its weights, moments, gradients and shadows in all contestants, and activations, came to 90."""


def keep(millions: int = 0) -> bool:
    """Whether this process keeps its memory from now on, and what models of so many million parameters will need, if that is at hand; false
    where there is no glibc, whose switches these are."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    kept = bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, -1))  # no trimming at all
    torch.zeros(millions * 1_000_000 * _A_PARAMETER, dtype=torch.uint8).fill_(1)
    return kept

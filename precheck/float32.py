"""Whether float32 means float32: tf32 and bfloat16 inside float32's products, forbidden or allowed for a block.

torch has two sets of switches, and reading one set after the other was written raises an error. They are `allow_tf32` with
`set_float32_matmul_precision`, and since 2.9 `fp32_precision` for each backend and kind of op (docs/notes/cuda). Whatever the program around the
block has used is as it was after it. oneDNN obeys them on a CPU too, where it has the instructions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from precheck.torch_internals import set_cudnn_tf32

Value = TypeVar("Value")


@contextlib.contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """Inside, float32's products are float32's own; with `tf32`, CUDA's round their operands to it where the hardware can."""
    backends: Any = torch.backends
    cuda = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    onednn = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
    before = [(switch, _own(switch, backends.cudnn)) for switch in cuda] + [(switch, _own(switch, backends.mkldnn)) for switch in onednn]
    matmul, cudnn = _read(torch.get_float32_matmul_precision), _read(lambda: bool(backends.cudnn.allow_tf32))
    try:
        _older("high" if tf32 else "highest", tf32)  # so that code inside which reads them is not told of a mixture
        for switch in cuda + onednn:
            switch.fp32_precision = "tf32" if tf32 and switch in cuda else "ieee"
        yield
    finally:
        _older(matmul or "highest", cudnn is not False)  # what could not be read held sway over nothing
        for switch, value in before:
            switch.fp32_precision = value


def _own(switch: Any, backend: Any) -> str:
    """What a switch is set to; "none" where it may as well have been asked of its backend, whose word it then goes on following."""
    value: str = switch.fp32_precision
    return "none" if value == backend.fp32_precision else value


def _read(switch: Callable[[], Value]) -> Value | None:
    """What an older switch says; None where the newer have been used, of which it refuses to speak."""
    try:
        return switch()
    except RuntimeError:
        return None


def _older(matmul: str, cudnn: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    set_cudnn_tf32(cudnn)

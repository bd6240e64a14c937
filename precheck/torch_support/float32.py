"""Sets whether float32 matrix products may use tf32 or bfloat16, inside the block `products`.

torch has two sets of switches, and reading one set after the other was written raises an error. They are `allow_tf32` with
`set_float32_matmul_precision`, and since 2.9 `fp32_precision` for each backend and kind of op (docs/notes/cuda). After the
block, the switches that the program has used are as they were. oneDNN obeys them on a CPU too, if it has the instructions.
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
    """Inside the block float32 products compute in float32. With `tf32`, those on CUDA round their operands to tf32 where the hardware can."""
    backends: Any = torch.backends
    cuda = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    onednn = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
    before = [(switch, _own(switch, backends.cudnn)) for switch in cuda] + [(switch, _own(switch, backends.mkldnn)) for switch in onednn]
    matmul, cudnn = _read(torch.get_float32_matmul_precision), _read(lambda: bool(backends.cudnn.allow_tf32))
    try:
        _older("high" if tf32 else "highest", tf32)  # so that reading them inside the block raises no error about mixed settings
        for switch in cuda + onednn:
            switch.fp32_precision = "tf32" if tf32 and switch in cuda else "ieee"
        yield
    finally:
        _older(matmul or "highest", cudnn is not False)  # a switch that could not be read had no effect
        for switch, value in before:
            switch.fp32_precision = value


def _own(switch: Any, backend: Any) -> str:
    """The value of a switch. "none" if it equals that of its backend, so that after the block the switch follows its backend again."""
    value: str = switch.fp32_precision
    return "none" if value == backend.fp32_precision else value


def _read(switch: Callable[[], Value]) -> Value | None:
    """The value of an older switch. None where the newer switches have been used, since reading the older one raises an error then."""
    try:
        return switch()
    except RuntimeError:
        return None


def _older(matmul: str, cudnn: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    set_cudnn_tf32(cudnn)

"""float32 means float32 inside the block, however a program has switched tf32 on, and every switch is as it was after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from precheck.torch_support.float32 import products

BACKENDS: Any = torch.backends
CUDA, CUDNN, ONEDNN = BACKENDS.cuda, BACKENDS.cudnn, BACKENDS.mkldnn
NEW = (BACKENDS, CUDNN, ONEDNN, CUDA.matmul, CUDNN.conv, CUDNN.rnn, ONEDNN.matmul, ONEDNN.conv, ONEDNN.rnn)


def told(read: Callable[[], object]) -> object:
    try:
        return read()
    except RuntimeError:
        return "mixed"


def state() -> list[object]:
    old = [lambda: CUDA.matmul.allow_tf32, lambda: CUDNN.allow_tf32, torch.get_float32_matmul_precision]
    return [*(switch.fp32_precision for switch in NEW), *(told(read) for read in old)]


def as_torch_starts() -> None:
    for switch in NEW:
        switch.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for switch in (CUDA.matmul, ONEDNN.matmul):
        switch.fp32_precision = "none"
    CUDNN.allow_tf32 = True


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    as_torch_starts()
    yield
    as_torch_starts()


def newer(switch: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(switch, "fp32_precision", value)


def older(switch: Any, value: bool) -> Callable[[], None]:
    return lambda: setattr(switch, "allow_tf32", value)


PROGRAMS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "matmul.allow_tf32": older(CUDA.matmul, True),
    "cudnn.allow_tf32 off": older(CUDNN, False),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "matmul.fp32_precision": newer(CUDA.matmul, "tf32"),
    "conv.fp32_precision": newer(CUDNN.conv, "ieee"),
    "all": newer(BACKENDS, "tf32"),
    "all ieee": newer(BACKENDS, "ieee"),
    "all of cudnn": newer(CUDNN, "tf32"),
    "oneDNN's products in bfloat16": newer(ONEDNN.matmul, "bf16"),
}


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_all_switches_say_so_inside_and_what_they_said_after_it(program: str, tf32: bool) -> None:
    PROGRAMS[program]()
    before = state()
    with products(tf32=tf32):
        word = "tf32" if tf32 else "ieee"
        assert [switch.fp32_precision for switch in (CUDA.matmul, CUDNN.conv, CUDNN.rnn)] == [word] * 3
        assert [switch.fp32_precision for switch in (ONEDNN.matmul, ONEDNN.conv, ONEDNN.rnn)] == ["ieee"] * 3
        assert (CUDA.matmul.allow_tf32, CUDNN.allow_tf32) == (tf32, tf32), "which code inside may read, without an error"
    assert state() == before


def test_after_an_exception_too() -> None:
    PROGRAMS["medium"]()
    before = state()
    with pytest.raises(KeyError), products(tf32=True):
        raise KeyError
    assert state() == before


def test_what_followed_its_backend_goes_on_following_it() -> None:
    newer(BACKENDS, "tf32")()
    with products(tf32=False):
        pass
    newer(BACKENDS, "ieee")()
    assert (CUDA.matmul.fp32_precision, ONEDNN.conv.fp32_precision) == ("ieee", "ieee")


def test_blocks_nest() -> None:
    with products(tf32=False), products(tf32=True):
        assert CUDA.matmul.fp32_precision == "tf32"
        with products(tf32=False):
            assert CUDA.matmul.fp32_precision == "ieee"
        assert CUDA.matmul.fp32_precision == "tf32"

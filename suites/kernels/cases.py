"""What the sets hold: kernels broken as real ones were, each with its fixed twin, and rewrites, which are right. And what both are made of."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Case(NamedTuple):
    """`kernel(wrong)` gives the broken kernel or its fixed twin. `rule`: the class of the fault. `link`: where it was mended or reported."""

    name: str
    rule: str
    link: str
    reference: Callable[..., Any]
    kernel: Callable[[bool], Callable[..., Any]]
    inputs: Callable[[], Any]


class Rewrite(NamedTuple):
    """A reference, another formulation of it, what makes the inputs in a format, and which gradients are compared."""

    reference: Callable[..., Any]
    candidate: Callable[..., Any]
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    gradients: bool | str = True


BROKEN: defaultdict[int, dict[str, Case]] = defaultdict(dict)
REWRITES: defaultdict[int, dict[str, Rewrite]] = defaultdict(dict)
"""The cases of each set, by name."""


def _set() -> int:
    """The set of the file that enters a case: `broken/set08_attention.py` is of set 8."""
    return int(sys._getframe(2).f_globals["__name__"].rpartition(".set")[2][:2])


def case(name: str, rule: str, link: str, reference: Callable[..., Any], inputs: Callable[[], Any]) -> Callable[[Any], Any]:
    """Enters a kernel whose first argument, `wrong`, says whether it is broken; or, if it has no other argument, what makes the kernel.

    The link's thread was read, and says what the kernel does wrong.
    """
    into = BROKEN[_set()]

    def enter(kernel: Callable[..., Any]) -> Callable[..., Any]:
        made = kernel if len(inspect.signature(kernel).parameters) == 1 else functools.partial(functools.partial, kernel)
        into[name] = Case(name, rule, f"https://github.com/{link}", reference, made, inputs)
        return kernel

    return enter


def rewrite(name: str, reference: Callable[..., Any], inputs: Callable[[torch.dtype], tuple[Any, ...]],
            gradients: bool | str = True) -> Callable[[Any], Any]:  # fmt: skip
    """Enters a kernel that is right."""
    into = REWRITES[_set()]

    def enter(candidate: Callable[..., Any]) -> Callable[..., Any]:
        into[name] = Rewrite(reference, candidate, inputs, gradients)
        return candidate

    return enter


def pairs(found: dict[str, Rewrite]) -> Iterator[tuple[str, Rewrite, torch.dtype]]:
    """Each rewrite in each format."""
    for name, each in found.items():
        for dtype in DTYPES:
            yield f"{name}/{str(dtype).removeprefix('torch.')}", each, dtype


def drawn(*sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Makes normal numbers of these shapes."""
    return lambda: _normal(0, sizes, dtype)


def shapes(*sizes: tuple[int, ...]) -> Callable[[torch.dtype], tuple[Any, ...]]:
    """Makes normal numbers of these shapes, in a format."""
    return lambda dtype: _normal(7, sizes, dtype)


def _normal(seed: int, sizes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in sizes)


def whole(*shape: int, most: int, seed: int = 3, least: int = 0) -> torch.Tensor:
    """Whole numbers from `least` to below `most`."""
    return torch.randint(least, most, shape, generator=torch.Generator().manual_seed(seed))


def need(*met: Any) -> None:
    """Refuses the inputs unless all of these are true."""
    if not all(met):
        raise ValueError("inputs that fit are needed")


def wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, each of its results in the format of the first tensor."""

    @functools.wraps(formula)
    def made(*inputs: Any, **named: Any) -> Any:
        up = {name: _float32(each) for name, each in named.items()}
        out = formula(*map(_float32, inputs), **up)
        dtype = (*inputs, *named.values())[0].dtype
        return tuple(each.to(dtype) for each in out) if isinstance(out, tuple) else out.to(dtype)

    return made


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """An autograd.Function. `forward(*inputs)` gives the result and what is saved; `backward(saved, gradient)` gives gradients."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            result, saved = forward(*inputs)
            ctx.save_for_backward(*saved)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return backward(ctx.saved_tensors, gradient)

    return Function.apply


def as_if(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`x` as a kernel reads it that believes in these strides. As it is, where that would read outside its memory."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) + x.storage_offset()
    held = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided(x.shape, strides, x.storage_offset()) if x.numel() and 0 <= last < held else x


def packed(shape: torch.Size) -> tuple[int, ...]:
    """Strides of memory without gaps."""
    return torch.empty(shape, device="meta").stride()

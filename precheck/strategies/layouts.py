"""Memory layouts of tensors (`LAYOUTS`): puts a tensor into a layout, and checks which layouts fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precheck.observe.job import InputError


def _contiguous(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous()


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    """Done by hand, since torch does not change the strides of dimensions of size one."""
    return values.movedim(1, -1).contiguous().movedim(-1, 1)


def _strided(values: torch.Tensor) -> torch.Tensor:
    wide = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1])[..., ::2]
    return wide.copy_(values)


def _offset(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(values.numel() + 1)[1:].view(values.shape).copy_(values)


def _expanded(values: torch.Tensor) -> torch.Tensor:
    return values[:1].contiguous().expand(values.shape)


_MADE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {  # with the fewest dimensions that each needs
    "contiguous": (_contiguous, 0),
    "transposed": (_transposed, 2),
    "channels-last": (_channels_last, 3),
    "strided": (_strided, 1),
    "offset": (_offset, 1),
    "expanded": (_expanded, 1),
}
LAYOUTS = tuple(_MADE)
"""`contiguous`. `transposed`: the last two dimensions change places in memory. `channels-last`: the second dimension is innermost. `strided`: a
gap behind each element of the last dimension. `offset`: begins one element behind its storage. `expanded`: one row (of the first dimension) stands
for all, with a stride of zero."""


def laid(values: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a tensor equal to `values` in that layout. With `expanded` all rows equal the first one."""
    make, _ = _MADE[layout]
    return make(values)


def chosen(layout: str | Sequence[str]) -> tuple[str, ...]:
    """Validates the argument `layout`. Returns the layouts, the simplest first. Raises InputError."""
    names = LAYOUTS if layout == "any" else (layout,) if isinstance(layout, str) else tuple(layout)
    unknown = [name for name in names if name not in _MADE]
    if unknown or not names:
        raise InputError(f"layout={layout!r}; pass one of {', '.join(LAYOUTS)}, several of them, or 'any'")
    return tuple(name for name in LAYOUTS if name in names)


def fitting(names: Sequence[str], dimensions: int, asked: str | Sequence[str]) -> list[str]:
    """The layouts of `names` that a tensor of so many dimensions can have. Raises InputError if there are none."""
    left = [name for name in names if _MADE[name][1] <= dimensions]
    if not left:
        least = min(_MADE[name][1] for name in names)
        what = f"layout={asked!r} needs {least} dimensions or more, and the shape has {dimensions}"
        raise InputError(f"{what}; give it more, or pass layout='any'")
    return left

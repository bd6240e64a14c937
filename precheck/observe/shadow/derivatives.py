"""The derivative of a product of many factors, which torch computes in another way under any dispatch mode.

`prod` has two forms of it: the result divided by each factor, and products of all other factors, which stands a factor of zero. Torch takes the
second where a factor is zero, and always under a dispatch mode (`isTensorSubclassLike` of its `FunctionsManual.cpp`). So a watched run would round
at other places than the user's. Here the first is put back where torch would have taken it, for products that are asked for as `torch.prod` or as a
method. A name that was bound to torch's function before is not followed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from precheck.observe.shadow.python_numbers import _Wrapped
from precheck.torch_internals import backward_node, script_builtin, without_modes

_lock = threading.Lock()
_watching: list[None] = []  # one for each block
_SIGNED = 1 << 63
"""From here on torch shows a negative dimension of a node as an unsigned number."""


class _Followed(_Wrapped):
    """Sees to the gradient of each product that it makes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__wrapped__(*args, **kwargs)
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and node.name() in ("ProdBackward0", "ProdBackward1"):
            node.register_hook(functools.partial(_gradient, *_along(node)))
        return result


@contextlib.contextmanager
def usual() -> Iterator[None]:
    """Inside, gradients of products are those of a run that nobody watches. Nests, in any thread."""
    with _lock:
        _watching.append(None)
        if len(_watching) == 1:
            function = _Followed(torch.prod)
            script_builtin(function, function.__wrapped__)
            torch.prod, torch.Tensor.prod = function, _Followed(torch.Tensor.prod)  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _watching.pop()
            if not _watching:
                _restored()


def _restored() -> None:
    if isinstance(torch.prod, _Followed):  # else somebody has wrapped it
        function = torch.prod
        torch.prod = function.__wrapped__
        script_builtin(function, None)
    if isinstance(vars(torch.Tensor).get("prod"), _Followed):  # inherited from torch's own base class
        del torch.Tensor.prod


def _along(node: Any) -> tuple[int, bool]:
    """The dimension of a product, and whether its result has it. A product of all has no dimension, and its result fits as it is."""
    if node.name() == "ProdBackward0":
        return 0, True
    dim: int = node._saved_dim
    return dim - 2 * _SIGNED if dim >= _SIGNED else dim, node._saved_keepdim


def _gradient(
    dim: int, kept: bool, inputs: tuple[torch.Tensor | None, ...], outputs: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor] | None:
    """As `prod_backward` of torch has it, where no factor is zero; else what torch has computed."""
    node: Any = backward_node()
    gradient = outputs[0]
    if gradient is None or inputs[0] is None or node is None:
        return None
    factors, result = node._saved_self, node._saved_result
    with without_modes(), torch.no_grad():
        if factors.dim() == 0 or factors.is_meta or bool((factors == 0).any()):
            return None
    factors = factors.to(gradient.dtype)
    if not kept:
        gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
    return ((gradient * (result / factors).conj()).to(inputs[0].dtype),)

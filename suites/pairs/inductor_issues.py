"""Public issues on the accuracy of torch.compile on a CPU: what they compile, and what they were closed as.

    python suites/pairs/inductor_issues.py            # each issue: how far eager and compiled are apart here, and what `compare` says

`wrong`: maintainers took it for wrong code, or have not closed it. Else they closed it as rounding that is expected of a compiler. Excerpts of the
threads were read, so that inputs are drawn here where an excerpt has none.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F

import precheck

ISSUES: dict[int, Issue] = {}


class Issue(NamedTuple):
    """`function` is compiled and called with `inputs`."""

    number: int
    wrong: bool
    function: Callable[..., Any]
    inputs: Callable[[], Any]

    @property
    def link(self) -> str:
        return f"https://github.com/pytorch/pytorch/issues/{self.number}"


def issue(number: int, inputs: Callable[[], Any], *, wrong: bool) -> Callable[[Any], Any]:
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        ISSUES[number] = Issue(number, wrong, function, inputs)
        return function

    return enter


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
    def make() -> Any:
        torch.manual_seed(42)
        return tuple(torch.randn(shape).to(dtype) for shape in shapes)

    return make


@issue(191499, lambda: (torch.tensor([5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80], dtype=torch.uint8),), wrong=True)
def smallest(x: torch.Tensor) -> torch.Tensor:
    return torch.min(x)


@issue(191308, lambda: (torch.ones(1, 1, 2, dtype=torch.int8), torch.ones(1, 2, 2, dtype=torch.int8)), wrong=True)
def whole_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b)


@issue(174172, drawn((6,)), wrong=True)
def signed(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.copysign(x, -0.0)  # type: ignore[no-any-return]


@issue(173478, drawn((64,)), wrong=True)
def digamma(x: torch.Tensor) -> torch.Tensor:
    return torch.special.psi(torch.atan(x))


ROWS = [
    [-1.5256, -0.7502, -0.6540, -1.6095, -0.1002, -0.6092, -0.9798],
    [-1.6091, -0.7121, 0.3037, -0.7773, -0.2515, -0.2223, 1.6871],
    [0.2284, 0.4676, -0.6970, -1.1608, 0.6995, 0.1991, 0.8657],
    [0.2444, -0.6629, 0.8073, 1.1017, -0.1759, -2.2456, -1.4465],
    [0.0612, -0.6177, -0.7981, -0.1316, -0.7984, 0.3357, 0.2753],
]


@issue(183082, lambda: (torch.tensor(ROWS),), wrong=True)
def place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.sin_()
    return x.t().argmax()


@issue(138908, lambda: (torch.tensor([[0, 1]]), torch.randn(2, 32, generator=torch.Generator().manual_seed(0))), wrong=True)
def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[x] += y[x]
    return y


@issue(105264, lambda: (torch.full((20,), 128, dtype=torch.uint8),), wrong=True)
def overflowing(x: torch.Tensor) -> torch.Tensor:
    return (x + x).to(torch.int16)


@issue(93829, lambda: (torch.full((20,), 6, dtype=torch.uint8),), wrong=True)
def negated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    less = torch.neg(x)
    return less, torch.lt(less, torch.tensor(4, dtype=torch.uint8))


@issue(108963, lambda: (torch.zeros(1, dtype=torch.double), torch.rand(1, dtype=torch.double)), wrong=True)
def added_at(x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = x.index_add(0, torch.tensor([0]), source, alpha=2.0) / 2
    return out, source


@issue(159154, lambda: (torch.ones(5, 1, 32, 32), torch.ones(5)), wrong=True)
def weighed(xs: torch.Tensor, ls: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(-torch.einsum("i...,i->i...", xs, ls))
    return torch.einsum("i,i...->i...", 1 / torch.einsum("i...->i", powers), powers)


@issue(185702, drawn((4, 8, 32), (4, 8), (8,), (8,)), wrong=True)
def stacked(x: torch.Tensor, y: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    x = x[..., 16]
    positive, rates = F.softplus(x) + 1e-4, F.softplus(y) + 1e-4
    gamma, bell = torch.special.gammaln(positive + alpha.abs().view(1, -1)), torch.special.erf(x * beta.view(1, -1))
    return torch.stack([gamma, bell, torch.special.xlogy(positive, rates)], -1)


@issue(142839, drawn((1, 3, 512, 512)), wrong=True)
def instance(x: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x)


@issue(189787, drawn((43, 40)), wrong=True)
def folded(x: torch.Tensor) -> torch.Tensor:
    return torch.floor(x.softmax(-1).sum(-1))


@issue(143182, lambda: (torch.randn(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)),), wrong=False)
def layer(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-2:])


@issue(142223, drawn((64, 64)), wrong=False)
def tangent(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


@issue(142224, drawn((64, 64)), wrong=False)
def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@issue(141561, drawn((1, 4, 64, 64), (1, 4, 3, 3)), wrong=False)
def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1)


@issue(189803, drawn((24, 57, 37)), wrong=False)
def cancelling(x: torch.Tensor) -> torch.Tensor:
    bent = F.elu(x, alpha=1.24)
    return torch.reciprocal(bent + torch.exp(bent))


@issue(189804, lambda: (torch.tensor([-5.533906936645508, -5.531643390655518, 0.3, 1.0]),), wrong=False)
def side(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(F.gelu(x))


@issue(183761, drawn((40, 30), dtype=torch.float16), wrong=False)
def half(x: torch.Tensor) -> torch.Tensor:
    return (torch.where(x > 0, torch.full_like(x, 0.1), x).float() + 0.3).half() + x


@issue(173307, drawn((1, 30, 1), (1, 30, 1), dtype=torch.bfloat16), wrong=False)
def slope(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.infinitely_differentiable_gelu_backward(gradient, x)  # type: ignore[no-any-return]


@issue(150165, drawn((1, 3, 32, 32)), wrong=False)
def inverted(x: torch.Tensor) -> torch.Tensor:
    return torch.inverse(F.interpolate(x, size=(64, 64), mode="bilinear", align_corners=True) + 3 * torch.eye(64))


@issue(131910, drawn((20,)), wrong=False)
def byte(x: torch.Tensor) -> torch.Tensor:
    return x.byte()


def told(one: Issue) -> tuple[bool, precheck.Report]:
    """Whether the two differ here, bit for bit; and what is said of them."""
    torch._dynamo.reset()
    inputs = one.inputs()
    eager, compiled = one.function(*inputs), torch.compile(one.function)(*inputs)
    eager, compiled = (each if isinstance(each, tuple) else (each,) for each in (eager, compiled))
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
    torch._dynamo.reset()
    return not same, precheck.compare(one.function, torch.compile(one.function), inputs)


def main() -> None:
    warnings.simplefilter("ignore")
    for one in ISSUES.values():
        if len(sys.argv) > 1 and str(one.number) not in sys.argv[1:]:
            continue
        differs, report = told(one)
        closed, here = "wrong" if one.wrong else "expected", "differs" if differs else "the same bits"
        print(f"| [{one.number}]({one.link}) | {one.function.__name__} | {closed} | {here} | {report.verdict} |", flush=True)


if __name__ == "__main__":
    main()

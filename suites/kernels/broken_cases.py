"""What a kernel of the benchmark is: a reference, a kernel with a switch between broken and fixed, and where the bug was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ALL: dict[str, Case] = {}
UNSEEN: dict[str, Case] = {}
"""Those of `unseen_broken`: written when the judge was finished, and frozen before it saw any of them."""
LATER: dict[str, Case] = {}
"""Those of `later_broken`: a second frozen set, written when the first had been learnt from."""
FRESH: dict[str, Case] = {}
"""Those of `fresh_broken`: a third one."""
FOURTH: dict[str, Case] = {}
"""Those of `fourth_broken`."""
FIFTH: dict[str, Case] = {}
"""Those of `fifth_broken`."""
SIXTH: dict[str, Case] = {}
"""Those of `sixth_broken`."""
SEVENTH: dict[str, Case] = {}
"""Those of `seventh_broken` and `seventh_broken_more`."""
EIGHTH: dict[str, Case] = {}
"""Those of `eighth_broken`, `eighth_broken_more` and `eighth_broken_last`."""
NINTH: dict[str, Case] = {}
"""Those of `ninth_broken`, `ninth_broken_more` and `ninth_broken_last`."""
TENTH: dict[str, Case] = {}
"""Those of `tenth_broken` and `tenth_broken_more`."""
ELEVENTH: dict[str, Case] = {}
"""Those of `eleventh_broken` and `eleventh_broken_more`."""
TWELFTH: dict[str, Case] = {}
"""Those of `twelfth_broken`, `twelfth_broken_more` and `twelfth_broken_last`."""
THIRTEENTH: dict[str, Case] = {}
"""Those of `thirteenth_broken`, `thirteenth_broken_more` and `thirteenth_broken_last`."""


class Case(NamedTuple):
    """`kernel(wrong)` gives the broken kernel or its fixed twin. `rule`: the class of the fault. `link`: where it was mended or reported."""

    name: str
    rule: str
    link: str
    reference: Callable[..., Any]
    kernel: Callable[[bool], Callable[..., Any]]
    inputs: Callable[[], Any]


def case(name: str, rule: str, link: str, reference: Callable[..., Any], inputs: Callable[[], Any], *,
         into: dict[str, Case] = ALL) -> Callable[[Any], Any]:  # fmt: skip
    """Enters a factory of kernels. The link's thread was read, and says what the kernel does wrong."""

    def enter(kernel: Callable[[bool], Callable[..., Any]]) -> Callable[[bool], Callable[..., Any]]:
        into[name] = Case(name, rule, f"https://github.com/{link}", reference, kernel, inputs)
        return kernel

    return enter


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Normal numbers of these shapes."""

    def make() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    return make

"""Inputs lie between guards in storages of their own, which have to hold the same bits after the call.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from precheck.rules.kernel_mutation.about import ABOUT
from precheck.rules.rule import Rule


class KernelMutation(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT

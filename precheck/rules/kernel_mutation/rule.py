"""A call changes its inputs. Each input has a storage of its own, with guards around it, and its bits must be the same after the call.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel_mutation.about import ABOUT
from precheck.rules.rule import Rule


class KernelMutation(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT

"""A call changes its inputs. They lie between guards in separate storages, whose bits must be the same after the call.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel_mutation.about import ABOUT
from precheck.rules.rule import Rule


class KernelMutation(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT

"""The error grows with the length of a dimension, measured in errors of correct implementations.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_accumulation.about import ABOUT


class KernelAccumulation(KernelRule):
    about = ABOUT

"""A call changes its inputs. They lie between guards in separate storages, whose bits must be the same after the call. An output in the
memory of an input is a fault too, unless the reference's lies there as well: who writes into one of them changes the other.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_mutation.about import ABOUT


class KernelMutation(KernelRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()

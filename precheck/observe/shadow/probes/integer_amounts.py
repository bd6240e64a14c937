"""Marks integers that are amounts, not positions or counts: results of integer matrix products, such as int8's."""

from __future__ import annotations

from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.replay import OpPlan
from precheck.observe.shadow.storages import Storages


class IntegerAmounts:
    """The storages of a watched run that hold such integers."""

    def __init__(self) -> None:
        self.known: Storages[bool] = Storages()

    def made(self, planned: OpPlan, result: Any) -> None:
        """After an op without floats: marks the result of an integer product."""
        if planned.base in ops.PRODUCTS and isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.known.put(result, True)

    def given(self, args: tuple[Any, ...]) -> bool:
        """Whether an op reads such integers."""
        return bool(self.known) and any(isinstance(arg, torch.Tensor) and arg.layout is torch.strided and bool(self.known.get(arg)) for arg in args)

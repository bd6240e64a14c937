"""Integers that are amounts, not positions or counts: sums of products of integers, as an int8 product gives."""

from __future__ import annotations

from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.replay import OpPlan
from precheck.observe.shadow.storages import Storages


class IntegerAmounts:
    """The storages of a watched run that hold such integers, until something else is written there."""

    def __init__(self) -> None:
        self.known: Storages[bool] = Storages()

    def made(self, planned: OpPlan, result: Any) -> Any:
        """An op has given `result`, which has no floats in it; that is handed on."""
        if planned.base in ops.PRODUCTS and isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.known.put(result, True)
        return result

    def given(self, args: tuple[Any, ...]) -> bool:
        """Whether an op is given such integers, as a cast is."""
        return bool(self.known) and any(isinstance(arg, torch.Tensor) and arg.layout is torch.strided and bool(self.known.get(arg)) for arg in args)

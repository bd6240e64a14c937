"""A model whose author keeps a part in float32, by overriding `_apply`, `to`, `half` or `bfloat16`, is converted as in a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.observe import state
from precheck.observe.models import conversion

LOW = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "bf16-master": torch.bfloat16}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), self.made()

    def made(self) -> nn.Module:
        return nn.BatchNorm1d(4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.layer(values).float())
        return result.to(values.dtype)


class Unrounded(nn.BatchNorm1d):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def kept(tensor: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(tensor)
            return tensor.to(moved.device) if moved.is_floating_point() else moved

        return super()._apply(kept, recurse)


class Applied(Net):
    def made(self) -> nn.Module:
        return Unrounded(4)


class Moved(Net):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        super().to(*args, **kwargs)
        self.norm.float()
        return self


class Halved(Net):
    def half(self) -> Any:
        super().half()
        self.norm.float()
        return self

    def bfloat16(self) -> Any:
        super().bfloat16()
        self.norm.float()
        return self


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("kind", [Applied, Moved, Halved])
def test_it_is_converted_as_it_says(kind: type[Net], precision: str) -> None:
    model, inputs = kind(), torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    before = {name: (id(each), each.data_ptr(), each.dtype) for name, each in model.state_dict(keep_vars=True).items()}
    seen: list[Any] = []

    def see(module: Any, args: Any) -> None:
        seen.append(tuple(each.dtype for each in (module.layer.weight, module.norm.weight, module.norm.running_var)))

    model.register_forward_pre_hook(see)
    report = precheck.measure(model, inputs, precision=precision, loss=lambda out: (out.float() * inputs).mean())
    assert not report.findings
    assert seen[0] == (LOW[precision], torch.float32, torch.float32)
    assert {name: (id(each), each.data_ptr(), each.dtype) for name, each in model.state_dict(keep_vars=True).items()} == before


def test_a_model_without_methods_of_its_own_is_converted_as_any() -> None:
    for model in (Net(), nn.LSTM(2, 2), nn.Sequential(nn.Linear(2, 2))):
        assert conversion.conversion(model, torch.bfloat16) is None
        assert not conversion.left_alone(model, torch.bfloat16)
    assert conversion.conversion(Applied(), torch.float32) is None


def test_what_goes_through_the_low_format_on_its_way_is_not_left_alone() -> None:
    model = Moved()
    with torch.no_grad():
        model.norm.weight.fill_(1 + 2**-12)
    alone = conversion.left_alone(model, torch.bfloat16)
    assert model.norm.weight.data_ptr() not in alone
    assert model.norm.bias.data_ptr() in alone  # zeros, which any format holds
    with state.preserved(model):
        conversion.converted(model, torch.bfloat16)
        assert model.norm.weight.tolist() == [1.0] * 4

"""Modules kept in float32: what they see, what they give back, and that they survive conversions, copies and saving."""

from __future__ import annotations

import copy
import re
from collections import namedtuple
from typing import Any

import pytest
import torch
from faulty import Stack, job, measured
from torch import nn

from precheck.observe.models import float32_parts

Pair = namedtuple("Pair", "first second")
LOW = (torch.bfloat16, torch.float16)


class Seeing(nn.Module):
    """Remembers the dtypes it was given and computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(0.1, 1, 4))
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor, *more: Any, **others: Any) -> Any:
        result = self.linear(x) * self.table
        self.seen += [x.dtype, (x @ self.linear.weight).dtype, result.dtype]
        return result


class Given(nn.Module):
    """Gives back what `make` makes of its arguments."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.make(*args, **kwargs)


def kept(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`module`, kept in float32 in a model stored in `dtype`, in which there are other weights."""
    model = nn.Sequential(nn.Linear(4, 4), module)
    float32_parts.in_float32(model, ["1"])
    model.to(dtype)
    return module


@pytest.mark.parametrize("dtype", LOW)
def test_inside_all_is_float32_and_outside_the_models_format(dtype: torch.dtype) -> None:
    module = kept(Seeing(), dtype)
    assert module(torch.randn(2, 4, dtype=dtype)).dtype is dtype
    assert module.seen == [torch.float32] * 3
    assert {tensor.dtype for tensor in (*module.parameters(), *module.buffers())} == {torch.float32}


def test_under_autocast_the_result_stays_float32() -> None:
    module = kept(Seeing(), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        low = nn.Linear(4, 4)(torch.randn(2, 4))
        assert module(low).dtype is torch.float32
        assert nn.Linear(4, 4)(low).dtype is torch.bfloat16, "autocast goes on afterwards"
    assert low.dtype is torch.bfloat16
    assert module.seen == [torch.float32] * 3


def test_a_float64_model_stays_one() -> None:
    module = kept(Seeing(), torch.float64)
    assert module(torch.randn(2, 4, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize("first", ["convert", "keep"])
def test_it_may_be_kept_before_or_after_the_conversion(first: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Seeing(), nn.Linear(4, 4))
    exact = model[1].linear.weight.detach().clone()
    if first == "convert":
        model.bfloat16()
    float32_parts.in_float32(model, ["1"])
    if first == "keep":
        model.bfloat16()
    assert model(torch.randn(2, 4).bfloat16()).dtype is torch.bfloat16
    weight = model[1].linear.weight
    assert weight.dtype is torch.float32
    assert torch.equal(weight, exact if first == "keep" else exact.bfloat16().float())


def test_modules_without_floating_arguments_answer_in_the_models_format() -> None:
    module = kept(Given(lambda ids: ids * 0.1), torch.bfloat16)
    assert module(torch.arange(4)).dtype is torch.bfloat16


def test_a_model_turned_back_to_float32_answers_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Seeing())
    float32_parts.in_float32(model, ["1"])
    assert model.half().float()(torch.randn(2, 4)).dtype is torch.float32


def test_arguments_and_results_are_cast_wherever_they_are_nested() -> None:
    def make(pair: Pair, *, others: dict[str, Any]) -> dict[str, Any]:
        seen = [pair.first.dtype, pair.second[0].dtype, others["x"][1].dtype, others["ids"].dtype]
        return {"seen": seen, "pair": Pair(pair.first, [pair.second[0], others["ids"]])}

    x, ids = torch.randn(2, dtype=torch.bfloat16), torch.arange(2)
    result = kept(Given(make), torch.bfloat16)(Pair(x, [x]), others={"x": (None, x), "ids": ids})
    assert result["seen"] == [torch.float32, torch.float32, torch.float32, torch.int64]
    assert isinstance(result["pair"], Pair)
    assert torch.equal(result["pair"].first, x)
    assert result["pair"].first.dtype is result["pair"].second[0].dtype is torch.bfloat16
    assert result["pair"].second[1] is ids


def test_a_dictionary_of_a_models_own_keeps_its_class() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    module = kept(Given(lambda x: BaseModelOutput(last_hidden_state=x)), torch.bfloat16)
    result = module(torch.randn(2, dtype=torch.bfloat16))
    assert isinstance(result, BaseModelOutput)
    assert result.last_hidden_state.dtype is result["last_hidden_state"].dtype is torch.bfloat16


def test_what_holds_nothing_low_is_passed_on_itself() -> None:
    """A module may append to a list that it is given."""
    collected: list[torch.Tensor] = []
    module = kept(Given(lambda x, into: into.append(x)), torch.bfloat16)
    assert module(torch.randn(2, dtype=torch.bfloat16), collected) is None
    assert [tensor.dtype for tensor in collected] == [torch.float32]


@pytest.mark.parametrize("dtype", LOW)
def test_gradients_are_those_of_the_float32_module(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = Seeing()
    module = kept(copy.deepcopy(plain), dtype)
    x, weight = torch.randn(8, 4).to(dtype).requires_grad_(), torch.randn(8, 4)
    wide = x.detach().float().requires_grad_()
    (module(x).float() * weight).sum().backward()
    (plain(wide).to(dtype).float() * weight).sum().backward()
    for own, exact in zip(module.parameters(), plain.parameters(), strict=True):
        assert own.grad.dtype is torch.float32
        assert torch.equal(own.grad, exact.grad)
    assert torch.equal(x.grad, wide.grad.to(dtype))


def test_copies_and_state_dicts_work() -> None:
    """A copy runs on its own weights, not on those it was copied from."""
    model = Stack([])
    names = list(model.state_dict())
    float32_parts.in_float32(model, ["blocks.1.norm"])
    twin = copy.deepcopy(model).half()
    with torch.no_grad():
        model.blocks[1].norm.weight.zero_()
    assert twin.blocks[1].norm(torch.ones(1, 16).half()).abs().sum() > 0
    assert twin.blocks[1].norm.weight.dtype is torch.float32
    assert list(model.state_dict()) == names
    Stack([]).load_state_dict(twin.state_dict())


def test_the_class_goes_by_the_name_it_had() -> None:
    """transformers looks up by it what a model can record."""
    module = nn.LayerNorm(4)
    name = str(type(module))
    kept(module, torch.bfloat16)
    assert str(type(module)) == name
    assert isinstance(module, nn.LayerNorm)


def test_hooks_see_the_models_format_and_fire_once() -> None:
    seen: list[torch.dtype] = []
    module = Seeing()
    module.register_forward_hook(lambda _, args, output: seen.extend([args[0].dtype, output.dtype]))
    kept(module, torch.bfloat16)(torch.randn(2, 4).bfloat16())
    assert seen == [torch.bfloat16] * 2


def test_an_exempted_model_is_afterwards_what_it_was() -> None:
    model = Stack([2]).bfloat16()
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    attributes = [(module, type(module), dict(module.__dict__)) for module in model.modules()]

    class StopError(Exception):
        pass

    def inside() -> None:
        with float32_parts.exempted(model, ["blocks.2", "head"]):
            assert model.head.weight.dtype is torch.float32
            model.head.weight.data.zero_()
            raise StopError

    with pytest.raises(StopError):
        inside()
    for module, kind, held in attributes:
        assert type(module) is kind
        assert module.__dict__.keys() == held.keys()
    for name, value in model.state_dict().items():
        pointer, values = before[name]
        assert (value.data_ptr(), value.dtype) == (pointer, values.dtype)
        assert torch.equal(value, values)


def test_an_unknown_module_is_refused_before_anything_is_changed() -> None:
    model = Stack([])
    with pytest.raises(AttributeError, match="nrom"), float32_parts.exempted(model, ["blocks.0.norm", "blocks.0.nrom"]):
        pass
    assert float32_parts.kept_in_float32(model) == []


def test_a_misspelt_module_is_told_what_is_meant() -> None:
    model = Stack([])
    with pytest.raises(AttributeError, match=r"^Stack has no module 'block\.0\.norm'; do you mean 'blocks\.0\.norm'\?$"):
        float32_parts.in_float32(model, ["block.0.norm"])
    with pytest.raises(TypeError, match=r"^names='blocks' is a str; pass a list: \['blocks'\]$"):
        float32_parts.functions_in_float32(model, "blocks", ["softmax"])
    with pytest.raises(AttributeError, match=r"^Linear has no module 'inner'; it has none$"):
        float32_parts.in_float32(nn.Linear(2, 2), ["inner"])


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (["sofmax"], "torch has no function 'sofmax'; do you mean 'softmax'?"),
        (["torch.nn.functional.softmax"], "torch has no function 'torch.nn.functional.softmax'; do you mean 'softmax'?"),
        (["pow", "add_"], "add_ writes in place, so it computes in the format of the tensor that it changes; call add in the model"),
        (["qqq"], "torch has no function 'qqq'; pass names as in [\"softmax\", \"pow\"]"),
    ],
)
def test_a_function_that_would_never_be_called_is_refused(functions: list[str], message: str) -> None:
    model = Stack([])
    before = type(model.blocks)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        float32_parts.functions_in_float32(model, ["blocks"], functions)
    assert type(model.blocks) is before


def test_functions_are_a_list_of_names() -> None:
    """In the text "softmax" is "max", too."""
    with pytest.raises(TypeError, match=r"^functions='softmax' is a str; pass a list: \['softmax'\]$"):
        float32_parts.functions_in_float32(Stack([]), ["blocks"], "softmax")


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "bf16-master"])
def test_a_module_that_says_it_is_kept_is_left_alone_by_a_run(precision: str) -> None:
    """The mark alone, on a model's own module: its weights are not converted, those around it are."""
    stored: dict[str, torch.dtype] = {}

    class Own(nn.Linear):
        keep_in_float32 = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stored[f"inside {x.dtype}"] = self.weight.dtype
            return super().forward(x.float()).to(x.dtype)

    report = measured(job(lambda: nn.Sequential(nn.Linear(16, 16), Own(16, 16), nn.Linear(16, 4))), precision)
    low = torch.float16 if precision.startswith("16") else torch.bfloat16
    assert report.errors == []
    assert stored[f"inside {low}"] is torch.float32


class Steps(nn.Module):
    """Remembers the dtype of each step's result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 4), {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = self.seen["pow"] = x.pow(2)
        mean = self.seen["mean"] = square.mean(-1, keepdim=True)
        root = self.seen["sqrt"] = mean.sqrt()
        scaled = self.seen["div"] = x / root
        scaled += 1
        scaled[0] = 0
        return self.linear(scaled)


def partly(module: nn.Module, functions: list[str], dtype: torch.dtype) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), module)
    float32_parts.functions_in_float32(model, ["1"], functions)
    model.to(dtype)
    return module


@pytest.mark.parametrize("dtype", LOW)
def test_functions_of_those_names_are_wide_and_the_others_low(dtype: torch.dtype) -> None:
    module = partly(Steps(), ["pow", "mean"], dtype)
    assert module(torch.randn(2, 4, dtype=dtype)).dtype is dtype
    assert {name: value.dtype for name, value in module.seen.items()} == {"pow": torch.float32, "mean": torch.float32, "sqrt": dtype, "div": dtype}
    assert module.linear.weight.dtype is dtype


def test_between_widened_functions_nothing_is_rounded() -> None:
    """300 squared is beyond float16, its mean's root is not."""
    module, x = partly(Steps(), ["pow", "mean", "sqrt"], torch.float16), torch.full((2, 4), 300.0).half()
    module(x)
    assert torch.equal(module.seen["sqrt"], torch.full((2, 1), 300.0))
    assert torch.equal(module.seen["div"][1], torch.full((4,), 2.0).half())


def test_what_writes_into_a_widened_result_is_seen_by_all_who_hold_it() -> None:
    module = partly(Steps(), ["div"], torch.bfloat16)
    result = module(torch.randn(2, 4).bfloat16())
    assert module.seen["div"].dtype is torch.float32
    assert torch.equal(module.seen["div"][0], torch.zeros(4))
    assert torch.equal(result[0], module.linear.bias)


def test_a_widened_function_computes_in_float32_under_autocast_too() -> None:
    module, x = partly(Steps(), ["linear"], torch.float32), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        low, wide = Steps.forward(module, x), module(x)
        assert (x @ x.T).dtype is torch.bfloat16, "autocast goes on afterwards"
    assert (low.dtype, wide.dtype) == (torch.bfloat16, torch.float32)


def test_gradients_of_widened_functions_are_those_of_float32() -> None:
    x = torch.linspace(-1, 1, 4).bfloat16().requires_grad_()
    partly(Given(torch.Tensor.exp), ["exp"], torch.bfloat16)(x).sum().backward()
    wide = x.detach().float().requires_grad_()
    wide.exp().bfloat16().sum().backward()
    assert torch.equal(x.grad, wide.grad.bfloat16())


def test_a_result_that_leaves_the_module_is_in_the_models_format_wherever_it_is_nested() -> None:
    module = partly(Given(lambda x: {"a": [x.exp()], "b": (x,)}), ["exp"], torch.bfloat16)
    result = module(torch.zeros(2).bfloat16())
    assert (result["a"][0].dtype, result["b"][0].dtype) == (torch.bfloat16, torch.bfloat16)
    assert not hasattr(result["b"][0], "narrow_dtype")


def test_a_model_with_widened_functions_is_afterwards_what_it_was() -> None:
    model = Stack([2])
    with float32_parts.exempted(model, ["blocks.2.norm"], ["mul"]):
        assert isinstance(model.blocks[2].norm, float32_parts.PartlyInFloat32)
    assert type(model.blocks[2].norm).__mro__[1] is nn.Module


def test_copies_of_a_model_with_widened_functions_keep_them() -> None:
    module = partly(Steps(), ["pow"], torch.bfloat16)
    twin = copy.deepcopy(module)
    twin(torch.randn(2, 4).bfloat16())
    assert twin.seen["pow"].dtype is torch.float32
    assert type(twin).__name__ == "Steps"

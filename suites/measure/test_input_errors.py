"""What cannot be measured is refused in one sentence: what is wrong with the value given, what is accepted, what to type."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import precheck
from precheck import InputError, PrecisionError


def mean(out: torch.Tensor) -> torch.Tensor:
    return out.float().mean()


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


STRANGER = nn.Linear(3, 5)
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": 3}, "model is an int; pass a torch.nn.Module, or a function of tensors"),
    "a class": ({"model": nn.Linear}, "model is the class Linear; pass an instance, as in Linear(...)"),
    "a lazy module": ({"model": nn.LazyLinear(2)}, "weight has no shape yet; call the model once on its inputs, which gives its lazy modules"),
    "no whole seed": ({"seed": "0"}, "seed='0'; pass a whole number"),
    "a loss that is a class": ({"loss": nn.MSELoss}, "loss is the class MSELoss; pass a function of the model's output, as in loss=lambda out"),
    "a loader for a batch": (
        {"inputs": DataLoader([torch.ones(4)])}, "inputs is a DataLoader, and the model is called with it; pass one batch, as in next(iter(loader))"),
    "a data set for a batch": (
        {"inputs": TensorDataset(torch.ones(2, 4))}, "inputs is a TensorDataset, and the model is called with it; pass one batch, as in next(iter(D"),
    "a batch without rows": ({"inputs": (torch.ones(0, 4),)}, "inputs has no elements (shape (0, 4)), so there is nothing to compare; pass a batch"),
    "nothing to train": (
        {"model": nn.Linear(4, 4).requires_grad_(False), "loss": mean, "optimizer": sgd},
        "no parameter of the model requires a gradient, so an optimizer has nothing to step; leave the optimizer and steps out, or train some"),
    "no steps": ({"loss": mean, "optimizer": sgd, "steps": 0}, "steps=0; pass a whole number from 1"),
    "steps that are true": ({"loss": mean, "optimizer": sgd, "steps": True}, "steps=True; pass a whole number from 1"),
    "half a step": ({"loss": mean, "optimizer": sgd, "steps": 2.5}, "steps=2.5; pass a whole number from 1"),
    "steps without an optimizer": ({"loss": mean, "steps": 2}, "steps=2 without an optimizer; pass optimizer=lambda params: torch.optim.AdamW"),
    "an optimizer without a loss": ({"optimizer": sgd}, "an optimizer needs a loss; pass loss=lambda out: ... too, or loss=lambda out: out if"),
    "an optimizer that is made already": (
        {"loss": mean, "optimizer": sgd(STRANGER.parameters())}, "optimizer is made already (SGD); pass a function that makes one,"),
    "something else than an optimizer": ({"loss": mean, "optimizer": list}, "optimizer returned list; it must return a torch.optim.Optimizer, as in"),
    "an optimizer over other parameters": (
        {"loss": mean, "optimizer": lambda params: sgd(STRANGER.parameters())},
        "the optimizer holds 2 of 2 parameters that are not the ones it was given (first: shape (5, 3)); build it from its argument"),
    "an optimizer over some others": (
        {"loss": mean, "optimizer": lambda params: sgd([*params, *STRANGER.parameters()])}, "the optimizer holds 2 of 4 parameters"),
    "a loss that is a number": ({"loss": lambda out: 0.5}, "loss returned float, not a tensor; it must return a scalar tensor, as in loss="),
    "a loss that is not a scalar": ({"loss": lambda out: out}, "loss returned a tensor of shape (2, 4); it must be a scalar, so reduce it"),
    "a loss of integers": (
        {"loss": lambda out: out.argmax(), "optimizer": sgd},
        "the loss does not depend on any parameter that requires a gradient (it is a tensor of torch.int64, which has none)"),
    "a loss of integers without an optimizer": ({"loss": lambda out: out.argmax()}, "(it is a tensor of torch.int64, which has none); return one"),
    "a detached loss without an optimizer": ({"loss": lambda out: mean(out).detach()}, "(something on the way to it is detached, or computed under"),
    "a model without numbers": (
        {"model": nn.Linear(4, 4, device="meta")},
        'weight is a tensor on the meta device, which has a shape but no numbers to compare; move the model with .to_empty(device="cpu")'),
    "inputs without numbers": (
        {"inputs": (torch.ones(2, 4, device="meta"),)}, "inputs[0] is a tensor on the meta device, which has a shape but no numbers to compare; "),
    "an input that a run uses up": (
        {"inputs": {"input": iter([torch.ones(4)])}}, "inputs[input] is a list_iterator, which is empty once the model has gone through it"),
    "a detached loss": (
        {"loss": lambda out: mean(out).detach(), "optimizer": sgd}, "the loss does not depend on any parameter that requires a gradient"),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master", "32-true"])
@pytest.mark.parametrize("case", CASES)
def test_one_clear_error(case: str, precision: str) -> None:
    options, message = CASES[case]
    model = options.get("model", nn.Linear(4, 4))
    given = {"inputs": torch.ones(2, 4)} | {name: value for name, value in options.items() if name != "model"}
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        precheck.measure(model, precision=precision, **given)
    assert "\n" not in str(caught.value)


class Chooses(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        return {"best": x.argmax(-1), "any": (x > 0).any()}


class Keeps(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        self.made = x * 2
        return self


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Chooses(), "a tensor of int64, a tensor of bool"),
        (Keeps(), "Keeps"),
        (lambda x: None, "NoneType"),
        (lambda x: x.to_sparse(), "a tensor of float32"),
        (lambda x: torch.nested.nested_tensor([x, x]), "a nested tensor of float32"),
    ],
    ids=["choices", "itself", "nothing", "sparse", "nested"],
)
def test_a_model_of_which_nothing_could_be_compared_is_refused(model: Any, found: str) -> None:
    message = f"the model returned {found}, in which there is no dense floating-point tensor to compare"
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        precheck.measure(model, torch.ones(2, 4))
    assert "pass loss=lambda out: ..." in str(caught.value)
    loss = precheck.measure(model, torch.ones(2, 4), loss=lambda out: torch.ones(()))
    assert [row.kind for row in loss.boundaries] == ["loss"]


def test_a_model_of_inference_mode() -> None:
    """Its tensors take no other storage and no gradient; under no_grad it is a model like any other, as are inputs made in either."""
    with torch.inference_mode():
        model, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    with pytest.raises(InputError, match=r"weight is a tensor of torch.inference_mode\(\), which nothing .* make the model outside of it"):
        precheck.measure(model, inputs)
    with torch.no_grad():
        model = nn.Linear(4, 4)
    assert not precheck.measure(model, inputs, loss=lambda out: out.mean()).errors


def test_a_function_may_take_a_whole_loader() -> None:
    loader = DataLoader([torch.ones(4), torch.ones(4)], batch_size=2)
    assert precheck.measure(lambda batches: torch.stack([batch.exp() for batch in batches]), loader).boundaries


@pytest.mark.parametrize(("given", "look"), [("nan", ""), ("inf", "; look for Inf in the inputs and weights, Inf - Inf and 0/0")])
def test_a_result_without_a_number_is_said_to_be_unjudged(given: str, look: str) -> None:
    summary = precheck.measure(nn.Linear(4, 4), torch.full((2, 4), float(given)), loss=mean).summary()
    assert f"not judged: output, loss: Inf or NaN in float32 too, in all elements{look}\n" in summary
    assert "not judged" not in precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), loss=mean).summary()


@pytest.mark.parametrize(("result", "told"), [(lambda x: {"x": x}, False), (lambda x: (None, [x]), False), (lambda x: object(), True)])
def test_a_result_in_which_there_is_no_tensor_is_said_to_be_unseen(result: Any, told: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> object:
            return result(self.inner(x))

    line = "not looked at: what the model returns, since it holds no floating-point tensor"
    model = Model()
    assert (line in precheck.measure(model, torch.ones(2, 4)).summary()) is told
    assert line not in precheck.measure(model, torch.ones(2, 4), loss=lambda out: model.inner.weight.sum()).summary()


def test_a_loss_that_forgets_to_return() -> None:
    with pytest.raises(InputError, match="loss returned NoneType, not a tensor"):
        precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out: None)


def test_a_loss_that_is_no_function() -> None:
    with pytest.raises(InputError, match="loss is a Tensor"):
        precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), loss=torch.ones(()))


@pytest.mark.parametrize(("name", "message"), [("fp17", "unknown precision 'fp17'"), ("half", "means two things"), (16.5, "unknown precision 16.5")])
def test_an_unknown_precision_is_refused_before_anything_runs(name: Any, message: str) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it ran")

    with pytest.raises(PrecisionError, match=message):
        precheck.measure(model, torch.ones(2, 4), precision=name)


def test_the_number_16_is_a_name_too() -> None:
    assert precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), precision=16).precision == "16-mixed"  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [torch.ones(2, 3), (torch.ones(2, 4), 1), {"y": torch.ones(2, 4)}], ids=["shape", "too many", "unknown name"])
def test_the_models_own_error_about_its_inputs_is_not_hidden(inputs: Any) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"mat1 and mat2|takes 2 positional|unexpected keyword"):
        precheck.measure(nn.Linear(4, 4), inputs)


def test_an_error_of_the_loss_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="logits"):
        precheck.measure(nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out: {}["logits"])


def test_errors_are_of_the_family_that_callers_catch() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(PrecisionError, ValueError)


def test_a_loss_without_a_gradient_is_no_fault_of_a_frozen_model() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    assert not precheck.measure(model, torch.ones(2, 4), precision="bf16-mixed", loss=mean).errors


class Keywords(nn.Module):
    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        return nn.Identity()(x, x) if x.ndim == 1 else x * 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_a_call_that_does_not_fit_is_told_how_arguments_are_passed() -> None:
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given") as refused:
        precheck.measure(Keywords(), torch.ones(2, 4), precision="bf16-mixed")
    (note,) = refused.value.__notes__
    assert note.startswith("inputs is a Tensor; a tuple is passed as positional arguments, a dict as keyword arguments")
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given") as inside:
        precheck.measure(Keywords(), {"x": torch.ones(4)}, precision="bf16-mixed")
    assert not hasattr(inside.value, "__notes__")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ([torch.ones(2, 4)], r"inputs is a list of 1, and the model uses it as a tensor; pass the tensor itself, or tuple\(inputs\) if"),
        ({"input": [[1.0] * 4]}, r"inputs\['input'\] is a list of 1, and the model uses it as a tensor; pass a tensor, as in torch.as_tensor"),
        (((torch.ones(2, 4),),), r"inputs\[0\] is a tuple of 1, and the model uses it as a tensor; pass the tensor itself: a tuple is passed as pos"),
        (numpy.ones((2, 4)), r"inputs is a ndarray, and the model uses it as a tensor; pass a tensor, as in torch.as_tensor\(inputs\)"),
        (None, "inputs is None, and the model uses it as a tensor; pass a tensor$"),
        ((torch.ones(2, 4), torch.ones(2)), "inputs is a tuple of 2; a tuple is passed as positional arguments, .*; targets go into the loss"),
        ({"x": torch.ones(2, 4)}, "inputs is a dict with the keys x; a tuple is passed as positional arguments, a dict as keyword arguments"),
    ],
)
def test_what_is_no_tensor_is_told_beside_torchs_words(inputs: Any, told: str) -> None:
    with pytest.raises(TypeError) as refused:
        precheck.measure(nn.Linear(4, 4), inputs, precision="bf16-mixed")
    (note,) = refused.value.__notes__
    assert re.match(told, note), note


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_the_models_own_mistakes_with_lists_get_no_note() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu([x])  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="must be Tensor, not list") as refused:
        precheck.measure(model, torch.ones(2, 4), precision="bf16-mixed")
    assert not hasattr(refused.value, "__notes__")


LAYERS = nn.Sequential(nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: precheck.measure(LAYERS, x, loss=mean, optimizer="adamw"), "optimizer is a str; pass a function that makes one"),
        (lambda x: precheck.measure(None, x), "model is None; pass a torch.nn.Module"),
        (lambda x: precheck.check(LAYERS, x, golden=None), "golden is None; pass the path of the file, as in golden="),
        (lambda x: precheck.compare(LAYERS, nn.Linear, x), r"other is the class Linear; pass an instance, as in Linear\(\.\.\.\)"),
        (lambda x: precheck.vary(LAYERS, x, over="batchs"), "over: there is no variation 'batchs'; do you mean batch"),
        (lambda x: precheck.vary(LAYERS, x, over=()), r"over=\(\) names no variation, so nothing would be compared; leave it out, or pass some"),
        (lambda x: precheck.in_float32(None, ["0"]), "model is None; pass a torch.nn.Module"),
        (lambda x: precheck.in_float32(LAYERS, [LAYERS[0]]), r"names holds a Linear; pass names of modules, as in \['0'\]"),
        (lambda x: precheck.in_float32(LAYERS, []), r"names=\[\] names no module; pass at least one, as in \['0'\]"),
        (lambda x: precheck.in_float32(LAYERS, None), "names=None names no module; pass at least one"),
        (lambda x: precheck.layers_in(LAYERS, [], "bf16"), r"names=\[\] names no module; pass at least one, as in \['0'\]"),
        (lambda x: precheck.layers_in(LAYERS, "0", "bf16"), r"names='0' is a str; pass a list: \['0'\]"),
        (lambda x: precheck.layers_in(LAYERS, ["O"], "bf16"), "Sequential has no module 'O'; it has 0"),
    ],
)
def test_each_public_function_says_what_it_was_given_and_what_it_takes(call: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError), match=told):
        call(torch.ones(2, 4))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_an_optimizer_of_no_arguments_is_told_how_it_is_called() -> None:
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given") as refused:
        precheck.measure(LAYERS, torch.ones(2, 4), loss=mean, optimizer=lambda: sgd(LAYERS.parameters()))
    assert refused.value.__notes__[0].startswith("optimizer is called with a list of parameters, alone; write optimizer=lambda params: ")

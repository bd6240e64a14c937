"""Whatever form a model is held in, `compare` and `vary` either judge it or say clearly why they cannot."""

from __future__ import annotations

import contextlib
import os
import warnings

import forms_given
import pytest
import torch
from forms import FORMS

import precheck
from precheck.observe.job import InputError

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
assert forms_given.FORMS is FORMS
EVERY = 1 if "PRECHECK_SLOW" in os.environ else 47
"""Of all combinations, each so-manieth is tried in every run of the suite."""
TRIED = [(form, verb, precision) for form in FORMS for verb in ("as model", "as other", "vary") for precision in PRECISIONS]

REFUSED = {"lazy": "has no shape yet", "on no device": "on the meta device"}
NO_ROWS = "inputs hold no tensor with a batch dimension"
IN_THIS_WAY = "the model runs as it is, but not in this way"
REFUSED_BY_VARY = {
    "given no rows": NO_ROWS, "given nothing": NO_ROWS,
    **dict.fromkeys(("exported", "exported filters", "an exported module", "exported in parts", "a sparse weight", "counts its calls",
                     "given a packed sequence", "returns a packed sequence", "returns ragged rows"), IN_THIS_WAY),
}  # fmt: skip
"""A graph that was exported for four rows takes four, and rows of a ragged output cannot be put in another order by torch."""
CHANGED = {"changes its input"}
"""In some precisions the model works on a copy of its input, and runs; in others torch refuses the backward pass of several calls."""
TORCH_REFUSES = {
    ("given nothing", "bf16-true"), ("of eight bits", "bf16-true"), ("of eight bits when called", "bf16-true"), ("scripted and frozen", "bf16-true"),
    ("frozen for inference", "bf16-true"), *(("to be trained for eight bits", precision) for precision in PRECISIONS[1:]),
}  # fmt: skip
"""What does not run in plain torch under that precision either: the model's own error is passed on."""
WITHOUT_GRADIENTS = {"in no_grad", "in inference mode", "recomputed by re-entry"}
"""Forms whose weights get no gradients, which is told apart from the plain network rightly. The last is so where no input needs a gradient."""


def asked(form: str, verb: str, precision: str) -> precheck.Report:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what is deprecated and what a trace does not see
        made = FORMS[form]()
        if verb == "vary":
            return precheck.vary(made.model, made.inputs, precision=precision, loss=made.loss)
        pair = (made.model, made.plain) if verb == "as model" else (made.plain, made.model)
        return precheck.compare(*pair, made.inputs, precision=precision, loss=made.loss)


@pytest.mark.parametrize(("form", "verb", "precision"), TRIED[::EVERY])
def test_a_form_is_judged_or_refused(form: str, verb: str, precision: str) -> None:
    if (form, precision) in TORCH_REFUSES and form not in REFUSED:
        with pytest.raises(RuntimeError):
            asked(form, verb, precision)
        return
    refused = REFUSED | (REFUSED_BY_VARY if verb == "vary" else {})
    if form in refused:
        with pytest.raises(InputError, match=refused[form]):
            asked(form, verb, precision)
        return
    with contextlib.suppress(InputError) if form in CHANGED else contextlib.nullcontext():
        report = asked(form, verb, precision)
    if form not in CHANGED and verb != "vary":
        assert bool(report.errors) == (form in WITHOUT_GRADIENTS), [each.message for each in report.errors]


@pytest.mark.parametrize("form", ["scripted", "traced", "traced filters", "compiled in place", "row by row", "complex weights"])
def test_forms_that_were_not_judged_once(form: str) -> None:
    for verb in ("as model", "as other", "vary"):
        assert not asked(form, verb, "16-mixed").errors


def test_a_fault_in_a_script_and_in_a_part_compiled_in_place_is_found() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    wrong = torch.nn.Sequential(model[0], torch.nn.GELU(approximate="tanh"), model[2])
    x = torch.randn(8, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert precheck.compare(model, torch.jit.script(wrong), x).verdict == "different"
    wrong[1].compile(backend="aot_eager")
    assert precheck.compare(model, wrong, x).verdict == "different"


def compiled_wrongly(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
    """A backend that gets a sign wrong."""
    return lambda *args: [-each for each in graph(*args)]


class Bent(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


@pytest.mark.parametrize("whole", [True, False])
def test_a_module_compiled_in_place_runs_as_it_was_compiled(whole: bool) -> None:
    torch.manual_seed(0)
    inner, x = torch.nn.Linear(4, 4), torch.randn(8, 4)
    model, other, bent = Bent(inner), Bent(inner), torch.nn.Sequential(Bent(inner))
    (other if whole else bent[0]).compile(backend=compiled_wrongly)
    assert precheck.compare(model, other if whole else bent, x).errors
    assert not precheck.compare(model, Bent(inner), x).errors


def test_both_parts_of_a_complex_gradient_are_compared_where_losses_are_scaled() -> None:
    class Turned(torch.nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.turn, self.sign = torch.nn.Parameter(torch.tensor([1 + 1j, 2 - 1j])), sign

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turn = torch.complex(self.turn.real, self.turn.imag + self.sign * (self.turn.imag - self.turn.imag.detach()))
            return torch.view_as_real(torch.complex(x, x) * turn)

    x = torch.randn(4, 2)
    for precision in ("32-true", "16-mixed"):
        told = [precheck.compare(Turned(0.0), Turned(sign), x, precision=precision, loss=lambda out: out.square().mean()) for sign in (0.0, 0.5)]
        assert [bool(report.errors) for report in told] == [False, True]


def test_modules_behind_decorators_are_reached() -> None:
    net = torch.nn.Linear(4, 4)
    for function in (torch.no_grad()(net.forward), torch.func.vmap(net)):
        assert precheck.compare(function, function, torch.randn(3, 4), precision="bf16-true").verdict == "bitwise"


def test_an_argument_that_is_a_dict_stays_one() -> None:
    class Reads(torch.nn.Module):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return batch["x"] * 2

    assert precheck.vary(Reads(), ({"x": torch.randn(4, 3)},)).verdict == "bitwise"

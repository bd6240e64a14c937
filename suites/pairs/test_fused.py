"""Compiled code that leaves out a rounding: the finding names the kernel, and says that it is cured where Inductor rounds as eager code does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import precheck
from precheck.pairs import fused
from precheck.pairs.compiled_decisions import first_changed
from precheck.torch_internals import generated_modules

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU"),
    pytest.mark.filterwarnings("ignore"),  # of torch's own compiler
]


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@torch.library.custom_op("precheck_fused::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).clone()


turned.register_fake(torch.empty_like)
turned.register_autograd(lambda _, gradient: turned(gradient), setup_context=lambda ctx, inputs, output: None)


class Split(torch.nn.Module):
    """A number as its high part in bfloat16 and what that leaves. Each goes through an op that Inductor does not look into, and both are added."""

    def __init__(self, together: bool = False) -> None:
        super().__init__()
        self.together, self.first = together, torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        high = x.to(torch.bfloat16)
        if self.together:  # what is left of it is made of what was stored
            high = turned(high)
            return high.float() + (turned(x) - high.float())
        return turned(high).float() + turned(x - high.float())


class Signed(Split):
    """The same, with the sign of what is left apart. A kernel that does not round leaves nothing, and no sign."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        high = x.to(torch.bfloat16)
        rest = x - high.float()
        sign = torch.where(rest < 0, -1.0, 1.0)
        return turned(high).float() + turned(sign) * turned(rest.abs())


class Coarse(torch.nn.Module):
    """Code that rounds to 256ths, but only where it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return (x * 256).round() / 256 if torch.compiler.is_compiling() else x


def compared(model: torch.nn.Module) -> precheck.Report:
    torch.manual_seed(0)
    return precheck.compare(model, torch.compile(model), torch.randn(8, 16))


def test_a_rounding_that_is_left_out_is_told_with_its_kernel_and_its_cure() -> None:
    report = compared(Split())
    (error,) = report.errors
    assert error.rule == "less-accurate"
    cured, _, kernel = error.message.rpartition("; ")[2].partition(": ")
    assert cured == "compiled with torch._inductor.config.emulate_precision_casts it does not"
    assert kernel.startswith("its fused kernel cpp_fused_")
    assert kernel.endswith(" leaves out a rounding that eager code makes")


def test_the_decision_is_told_that_comes_out_otherwise() -> None:
    model = Signed()
    (error,) = compared(model).errors
    told = re.fullmatch(r".*; so lt at .*test_fused.py:(\d+) decides otherwise for (\d+) of 128 elements", error.message)
    assert told is not None, error.message
    line = Path(__file__).read_text(encoding="utf8").splitlines()[int(told[1]) - 1]
    assert "rest < 0" in line
    assert 32 < int(told[2]) < 96  # half of what is left is negative


def decided(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    torch.manual_seed(0)
    x = torch.randn(2048, 64).bfloat16()
    return first_changed(lambda backend: torch.compile(function, backend=backend)(x), fused.OPTION)


def test_each_kind_of_decision_is_compared() -> None:
    def scores(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.37 + 0.21) * 0.77 + x

    assert decided(lambda x: (scores(x) * 8).round()).startswith("round at ")
    assert decided(lambda x: (scores(x) * 0.5).floor().argmax(-1) + 0 * x[:, 0]).startswith("floor at ")
    assert decided(lambda x: scores(x).argmax(-1)).startswith("argmax at ")
    assert decided(lambda x: scores(x).max(-1).indices).startswith("max at ")
    assert decided(lambda x: torch.where(scores(x) > 1.0, x, -x)).startswith("gt at ")


def test_decisions_that_agree_are_not_told() -> None:
    assert decided(lambda x: torch.where(x > 0, x + 1, x)) == ""  # nothing is rounded before
    assert decided(lambda x: x.float().exp() + x.long()) == ""


def test_what_is_made_of_what_was_stored_passes() -> None:
    report = compared(Split(together=True))
    assert not report.errors, report.summary()


def test_what_no_rounding_of_inductor_explains_is_not_cured() -> None:
    (error,) = compared(Coarse()).errors
    assert error.rule == "less-accurate"
    assert error.message.endswith("; compiled with torch._inductor.config.emulate_precision_casts it loses accuracy too")


def test_a_compiled_function_is_compiled_again_too() -> None:
    torch.manual_seed(0)
    model = Split()

    def function(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    report = precheck.compare(function, torch.compile(function), torch.randn(8, 16))
    assert "leaves out a rounding" in report.summary()


def test_kernels_are_given_back_after_they_were_exchanged() -> None:
    first, second = SimpleNamespace(kernel="a"), SimpleNamespace(kernel="b")
    seen = []

    def interrupted() -> None:
        with fused.Kernel("kernel", (first,), second, (0, 1)).exchanged():
            seen.append(first.kernel)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert [*seen, first.kernel] == ["b", "a"]


def test_only_kernels_with_another_text_that_are_called_alike_are_exchanged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def module(name: str, body: str, calls: str) -> SimpleNamespace:
        path = tmp_path / name
        path.write_text(f"same = async_compile.cpp('')\nother = async_compile.cpp('{body}')\nasync_compile.wait(globals())\n{calls}")
        return SimpleNamespace(__file__=str(path))

    first = [module("a", "x", "call"), module("b", "x", "another call"), SimpleNamespace()]
    second = module("c", "convert<at::BFloat16", "call")
    (found,) = fused.kernels(first, [second, SimpleNamespace(__file__=None)])
    assert (found.name, found.first, found.second, found.casts) == ("other", (first[0],), second, (0, 1))
    turned_round = fused.Kernel("other", (), second, (2, 1))
    assert turned_round.words == "its fused kernel other rounds where eager code does not"


def test_what_was_not_compiled_by_inductor_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Coarse()
    known = generated_modules()
    report = precheck.compare(model, torch.compile(model, backend="aot_eager"), torch.randn(8, 16))
    assert [each.rule for each in report.errors] == ["less-accurate"]
    assert generated_modules() == known

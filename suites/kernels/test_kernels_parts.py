"""The parts of the judge: memory and its guards, numbers like an example's, exact and noise runs, what a candidate remembers."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from typing import Any, ClassVar

import pytest
import torch

import precheck
from precheck.analysis.noise_floor import kernel_floor
from precheck.kernels import contents, dimensions, examples, masks, memory, protocol, running
from precheck.kernels.bench import Bench
from precheck.kernels.clock import Budget
from precheck.kernels.running import Outcome, Wishes
from precheck.kernels.session import Session
from precheck.kernels.states import State
from precheck.kernels.trial_result import Judged, Reference
from precheck.kernels.trials import Trial, trial_inputs


@pytest.mark.parametrize("layout", ["contiguous", *memory.LAYOUTS])
def test_a_layout_holds_the_numbers_and_its_guards_tell_who_writes(layout: str) -> None:
    values = torch.randn(3, 4, 5, dtype=torch.complex64 if "conjugated" in layout else torch.float32)
    assert memory.fits(values, layout)
    held = memory.laid(values, layout)
    assert torch.equal(held.tensor, values[:1].expand(3, 4, 5) if layout == "expanded" else values)
    assert held.tensor.is_contiguous() == (layout in ("contiguous", "offset", "conjugated when read"))
    made = eval(memory.LAYOUTS.get(layout, "x"), {"x": values, "torch": torch})  # what reports show as code
    assert torch.equal(made, held.tensor)
    assert made.stride() == held.tensor.stride()
    assert held.touched() == ""
    held.storage[-1] = 0
    assert held.touched() == "the memory beside it"
    held.tensor[0, 0, 0] += 1
    assert held.touched() == "it"


@pytest.mark.parametrize(
    ("example", "kept"),
    [
        (torch.rand(5, 8).softmax(-1), lambda x: torch.allclose(x.sum(-1), torch.ones(9).double())),
        (torch.rand(40), lambda x: bool((x >= 0).all() and (x <= 1).all())),
        (torch.arange(7), lambda x: torch.equal(x, torch.arange(len(x)))),
        (torch.tensor([0, 3, 3, 9]), lambda x: bool((x.diff() >= 0).all()) and int(x[0]) == 0 and int(x[-1]) == 9),
        (torch.tensor([4, -100, 2, 7, -100, 1]), lambda x: bool(((x >= 0) | (x == -100)).all())),
        (torch.ones(6, 6, dtype=torch.bool).tril(), lambda x: torch.equal(x, torch.ones_like(x).tril())),
        (torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf), lambda x: bool(x[0, 1:].isinf().all() and (x[-1] == 0).all())),
        (torch.randn(5, 5) @ torch.randn(5, 5).mT, lambda x: True),
    ],
)
def test_numbers_are_like_the_example(example: torch.Tensor, kept: Any) -> None:
    shape = (9,) if example.dim() == 1 else (9, 9)
    bounds = contents.Bounds(lengths={9: 9})
    drawn, _ = contents.like(example, shape, torch.Generator().manual_seed(1), bounds)
    assert drawn.shape == shape
    assert kept(drawn), drawn


def test_indices_stay_below_a_size_that_shrinks() -> None:
    example = examples.read((torch.arange(6).repeat(2), torch.randn(6, 4)), None, True)[0]
    known = dimensions.of(example)
    ids, table = trial_inputs(example, known, Trial(sizes=(("=6", 2),))).values
    assert table.shape == (2, 4)
    assert int(ids.max()) < 2


def test_the_exact_run_ignores_low_formats_and_noise_runs_have_them() -> None:
    def low(x: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16() * 3).float().sum(-1)

    example = examples.read(torch.randn(4, 16), None, True)[0]
    values = [leaf.tensor for leaf in example.leaves]
    exact = running.run(low, example, values, {}, Wishes(), kind="exact").values
    assert torch.allclose(exact["output"], 3 * values[0].double().sum(-1), rtol=1e-14)
    noisy, _ = running.noise(low, example, values, {}, Wishes(), 1, 2.0**-24)
    assert noisy.values["output"].dtype is torch.float32
    off = float((noisy.values["output"] - exact["output"]).norm() / exact["output"].norm())
    assert 2.0**-12 < off < 2.0**-5


def test_incoming_gradients_are_the_same_in_every_kind_of_run() -> None:
    example = examples.read(torch.randn(4, 6), None, True)[0]
    values = [leaf.tensor for leaf in example.leaves]
    plain = running.run(torch.clone, example, values, {}, Wishes()).values["gradient of inputs"]
    exact = running.run(torch.clone, example, values, {}, Wishes(), kind="exact").values["gradient of inputs"]
    noisy = running.noise(torch.clone, example, values, {}, Wishes(), 1, 2.0**-24)[0].values["gradient of inputs"]
    assert torch.equal(plain.double(), exact)
    assert torch.equal(plain, noisy)


def test_a_floor_allows_rounding_and_no_wrong_element_or_row() -> None:
    exact = torch.randn(40, 64, dtype=torch.float64)
    floor = kernel_floor.combined(exact, torch.bfloat16, [exact.bfloat16(), exact.bfloat16()])
    assert kernel_floor.distance(floor, exact.bfloat16()).ratio < 1
    one = exact.clone()
    one[3, 5] += 0.5
    found = kernel_floor.distance(floor, one)
    assert found.ratio > 1
    assert (found.elements, found.first) == (1, (3, 5))
    row = exact * torch.where(torch.arange(40) == 7, 1 + 2.0**-6, 1.0)[:, None]
    assert kernel_floor.distance(floor, row).ratio > 1


def test_what_a_candidate_remembers_is_put_back() -> None:
    cache: dict[str, int] = {}
    kept = {"count": 0}

    @functools.lru_cache
    def table(size: int) -> int:
        kept["count"] += 1
        return size

    def candidate(size: int) -> int:
        cache.setdefault("size", size)
        return cache["size"] + 0 * table(size)

    state = State(candidate)
    assert candidate(3) == 3
    with state.restored():
        assert candidate(5) == 5
    assert candidate(7) == 3


class Kept(torch.autograd.Function):
    seen: ClassVar[dict[str, int]] = {}

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return Kept.apply(x) if x.dim() == 2 else x.clone()


def test_what_an_autograd_function_remembers_is_found_through_apply() -> None:
    state = State(Kept.apply)
    Kept.seen["calls"] = 1
    with state.restored():
        assert not Kept.seen
    assert Kept.seen.pop("calls") == 1


@pytest.mark.parametrize(("shape", "calls"), [((2, 3), True), ((6,), False)])
def test_an_autograd_function_calls_another_only_where_it_runs_its_forward(shape: tuple[int, ...], calls: bool) -> None:
    """`apply` of any two of them is one function of torch's."""
    example = examples.read(torch.zeros(shape), None, False)[0]
    bench = Bench(Other.apply, Kept.apply, example, dimensions.of(example), Wishes(gradients=False))
    assert protocol.calls_reference(bench) is calls


@pytest.mark.parametrize(("inner", "calls"), [(torch.sin, False), (torch.cos, True)])
def test_of_what_one_decorator_makes_each_is_its_own_function(inner: Any, calls: bool) -> None:
    """They share their code, and differ in what they hold. A wrapper of the same function is the reference; so is a candidate that calls it."""

    def wide(function: Any) -> Any:
        return lambda x: function(x.double()).to(x.dtype)

    reference, example = wide(torch.cos), examples.read(torch.zeros(6), None, False)[0]
    bench = Bench(wide(inner), reference, example, dimensions.of(example), Wishes(gradients=False))
    assert protocol.calls_reference(bench) is calls
    bench = Bench(lambda x: reference(x) + 0, reference, example, dimensions.of(example), Wishes(gradients=False))
    assert protocol.calls_reference(bench)


def test_the_largest_has_a_gradient_in_noise_runs_too() -> None:
    """It is disturbed and rounded, and then equal to none; and of equals one is drawn, or all."""
    x = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(0))
    x[:, 2] = x[:, 1]
    example = examples.read(x, None, True)[0]
    for seed in range(1, 4):
        outcome, ambiguous = running.noise(lambda x: x.amax(-2), example, [x], {}, Wishes(), seed, 2.0**-24)
        gradient = outcome.values["gradient of inputs"]
        assert gradient is not None
        assert not ambiguous
        assert bool(gradient.isfinite().all())
        assert bool(((gradient != 0).sum(-2) >= 1).all())


@pytest.mark.parametrize("known", [True, False])
def test_what_the_floor_does_not_know_tells_nothing(known: bool) -> None:
    """Zeros would be refused for a number that is beyond its bound, but not where noise runs are NaN and the bound is for nothing."""
    x = torch.ones(4, 6)
    example = examples.read(x, None, False)[0]
    bench = Bench(torch.clone, torch.clone, example, dimensions.of(example), Wishes(gradients=False))
    session = Session(bench, State(torch.clone), Budget(0.0))
    floor = kernel_floor.combined(x.double(), x.dtype, [x, x if known else x * torch.nan])
    session._power(Judged(Trial(), reference=Reference(Outcome(), Outcome(), {"output": floor})))
    assert session.told.told_by == ({"output"} if known else set())


@pytest.mark.parametrize(("way", "first", "last"), [("early", 4, 0), ("late", 2, 0), ("ends early", 3, -1), ("ends late", 3, 1)])
def test_a_window_is_moved_at_one_of_its_edges(way: str, first: int, last: int) -> None:
    away = torch.arange(9) - torch.arange(9)[:, None]
    moved = masks._shifted((away > 0) | (away < -3), way)
    assert moved is not None
    assert torch.equal(moved, (away > last) | (away < -first))
    assert masks._shifted(away > 0, way) is None  # a triangle has one edge


def test_a_size_that_the_reference_refuses_becomes_the_next_that_it_takes() -> None:
    """Groups of three channels are seen, although no size on the list has them."""
    seen = set()

    def groups(x: torch.Tensor) -> torch.Tensor:
        seen.add(x.shape[1])
        return torch.nn.functional.group_norm(x * 1, 4)

    x = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(0))
    precheck.compare_kernels(groups, lambda x: torch.nn.functional.group_norm(x, 4), x, trials=150)
    assert {size % 4 for size in seen} == {0}
    assert any((size // 4) & (size // 4 - 1) for size in seen)


def test_a_tensor_without_dimensions_varies_below_the_example() -> None:
    drawn = [float(contents.like(torch.tensor(-0.75), (), torch.Generator().manual_seed(seed), contents.Bounds())[0]) for seed in range(5)]
    assert len(set(drawn)) == 5
    assert all(-0.75 <= each <= -0.375 for each in drawn)
    kept = [torch.tensor(float("-inf")), torch.tensor(7)]
    assert [contents.like(each, (), torch.Generator(), contents.Bounds())[0].item() for each in kept] == [each.item() for each in kept]


@pytest.mark.parametrize("cut", [False, True], ids=["rounds operands", "cuts operands off"])
def test_a_product_in_tf32_may_round_its_operands_or_cut_them_off(cut: bool) -> None:
    """Of positive numbers, what is cut off adds up: the error grows with the length and not with its root."""

    def operand(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int32)
        return ((bits if cut else bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)

    inputs = tuple(torch.rand(shape, generator=torch.Generator().manual_seed(3)) for shape in ((24, 300), (300, 20)))
    report = precheck.compare_kernels(lambda a, b: operand(a) @ operand(b), torch.matmul, inputs, precision="tf32", gradients=False, trials=40)
    assert not report.errors, report.summary()
    report = precheck.compare_kernels(lambda a, b: operand(a) @ operand(b), torch.matmul, inputs, gradients=False, trials=10)
    assert report.errors, "in float32 both are wrong"


def test_a_loop_over_a_long_row_does_not_end_the_process() -> None:
    code = """
        import torch
        from precheck.kernels.parts import Parts
        x = torch.randn(2, 100_003, requires_grad=True)
        total = x.new_zeros(2)
        for column in x.unbind(1):
            total = total + column
        with Parts([total], {"x": x}):
            torch.autograd.grad(total, [x], torch.ones(2))
        del total
        print("alive")
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "alive", ran.stderr[-400:]

"""Tensors of every kind: the shadow follows them, or says that it does not; torch's own answer is the same either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside import Program, check, normal, off, same, seen, shadow_now, twins
from torch import nn
from torch.nn import functional

import precheck
from precheck.formats import TF32
from precheck.torch_support.emulation import gemm_inputs


def complex_numbers(dtype: torch.dtype) -> list[torch.Tensor]:
    """matmul reads conjugate bits itself: a shadow without them would be another number's."""
    low = normal(4, 8).to(dtype)
    x = low.float()
    f, z = torch.fft.rfft(x), torch.view_as_complex(x.view(4, 4, 2))
    torch.view_as_real(z).mul_(0.3)
    turned = torch.polar(x.abs(), x)
    given = torch.complex(normal(4, 8), normal(4, 8, seed=1)).mul_(normal(4, 8).to(dtype))
    return [f, z, turned, given, f.conj() @ f.T, (f.conj() * f).real, torch.fft.irfft(f.conj(), 8), z.mH @ z, f.conj().resolve_conj(), z.abs()]


def negative_bits(dtype: torch.dtype) -> list[torch.Tensor]:
    low = normal(4, 4, 2).to(dtype) * 1.1
    x = torch.view_as_complex(low.float())
    imaginary = x.conj().imag
    results = [imaginary @ imaginary, torch.dot(imaginary[0], imaginary[0]), imaginary.clone(), imaginary * 2]
    x.conj().mul_(2)
    imaginary.add_(1)
    return [*results, torch.view_as_real(x)]


def test_a_negative_bit_is_no_drift() -> None:
    low = normal(4, 4, 2).bfloat16()
    x = torch.view_as_complex(low.float())
    with precheck.watch() as report:
        x.mul_(normal(4, 4).bfloat16())
        x.conj().imag.copy_(normal(4, 4, seed=1).bfloat16())
        x.conj().mul_(2)
    assert max(row.drift for row in report.ops) < 1e-2  # a rounding or two; a sign that was lost would be 2


def rotary(dtype: torch.dtype) -> list[torch.Tensor]:
    turns = torch.polar(torch.ones(4, 4), normal(4, 4))
    low = normal(2, 4, 8).to(dtype)
    pairs = torch.view_as_complex(low.float().reshape(2, 4, 4, 2))
    return [torch.view_as_real(pairs * turns).flatten(2).to(dtype)]


def empty_and_single(dtype: torch.dtype) -> list[torch.Tensor]:
    nothing, third = torch.zeros(0, 4, dtype=dtype), torch.tensor(1 / 3).to(dtype)
    return [
        nothing @ normal(4, 2).to(dtype), nothing.sum() + third * third, torch.cat([nothing, normal(2, 4).to(dtype) * third]), third + 1,
        nothing.mean(0), third.expand(3, 3) * normal(3, 3).to(dtype), third.expand(3, 3).clone(),
    ]  # fmt: skip


def laid_out(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(6, 8).to(dtype) * 1.1
    wide = x[:, None].expand(6, 3, 8)
    return [
        x.t().contiguous(), x[::2, 1::3] * 2, wide * 2, wide.reshape(18, 8), x.t() @ x, x.unfold(1, 3, 2) + 1, x.as_strided((3, 3), (1, 2), 1) * 2,
        x.flip(0), x.roll(1), functional.unfold(x[None, None], 2),
    ]  # fmt: skip


def channels_last(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(2, 3, 6, 6).to(memory_format=torch.channels_last).to(dtype) * 1.1
    return [
        x, functional.conv2d(x, normal(4, 3, 3, 3).to(dtype)), x.contiguous(), x.clone(memory_format=torch.contiguous_format),
        functional.interpolate(x, scale_factor=2.0, mode="bilinear"), functional.adaptive_avg_pool2d(x, 1),
    ]  # fmt: skip


def transformed(dtype: torch.dtype) -> list[torch.Tensor]:
    """torch.func; forward mode makes zero tensors without memory of their own."""
    w, x = normal(4, 4).to(dtype), normal(4).to(dtype)

    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    _, forward = torch.func.jvp(lambda x: (x @ w).tanh(), (x,), (x * 0.7,))
    return [
        torch.func.grad(f)(w, x), torch.vmap(torch.func.grad(f), (None, 0))(w, normal(3, 4).to(dtype)), torch.func.jacrev(f, 1)(w, x),
        forward, torch.func.hessian(f, 1)(w, x),
    ]  # fmt: skip


def factories(dtype: torch.dtype) -> list[torch.Tensor]:
    """Made in the format and made in float32: positions that were rounded are seen."""
    return [
        torch.arange(0, 1000, 3, dtype=dtype), torch.full((3,), 1 / 3, dtype=dtype), torch.linspace(0, 1, 17, dtype=dtype),
        torch.tensor(1 / 3, dtype=torch.float64).to(dtype), torch.ones(3, dtype=dtype).cumsum(0) / 7, torch.eye(3, dtype=dtype) / 3,
        torch.arange(1000).to(dtype),
    ]  # fmt: skip


def factories_by_default(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.set_default_dtype(dtype)
    try:
        return [torch.arange(0, 10, 0.3), torch.full((3,), 1 / 3), torch.linspace(0, 1, 17), torch.zeros(3) + 0.1, torch.ones(3) / 3]
    finally:
        torch.set_default_dtype(torch.float32)


def dropped(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(16, 16).to(dtype).requires_grad_()
    result = functional.dropout(x, 0.3) * functional.dropout1d(x, 0.5) + functional.alpha_dropout(x, 0.2, True)
    result.float().sum().backward()
    assert x.grad is not None
    return [result, x.grad]


def ragged(dtype: torch.dtype) -> list[torch.Tensor]:
    x = torch.nested.nested_tensor([normal(3, 4).to(dtype), normal(2, 4).to(dtype)], layout=torch.jagged)
    return [(functional.linear(x, normal(4, 4).to(dtype)) * 2).values()]


PROGRAMS: tuple[Program, ...] = (
    complex_numbers, negative_bits, rotary, empty_and_single, laid_out, channels_last, transformed, factories, factories_by_default, dropped, ragged,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use of forward mode
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_shadow_follows(program: Program) -> None:
    check(program, within=1e-6 if program in (complex_numbers, negative_bits) else 0.0)  # products with a conjugate have kernels of their own


def test_random_numbers_are_the_runs_own() -> None:
    """What is drawn in the format is exact: the reference takes the same numbers."""
    with precheck.watch() as report:
        drawn = [torch.empty(99, dtype=torch.bfloat16).normal_(), torch.full((9,), 0.5).bfloat16().bernoulli()]
        assert all(same(seen(each), each.float()) for each in drawn)
    assert report.facts["opaque"] == {}
    assert max(row.drift for row in report.ops) == 0


def test_a_uniform_draw_stands_for_the_numbers_between_it_and_the_next() -> None:
    """bfloat16 has 128 numbers between a half and one; float32 would have drawn any between two of them."""
    with precheck.watch():
        drawn = torch.rand(999, dtype=torch.bfloat16)
        apart = (seen(drawn) - drawn.float()).abs()
    spacing = 2.0**-7 * torch.exp2(drawn.float().log2().floor())
    assert bool((apart <= 1.5 * spacing.clamp_min(2.0**-9)).all())  # half of one, or all that is left up to one; a zero stands for all below 2^-9
    assert bool((apart > 0).any())


def gradients_of_rows(dtype: torch.dtype) -> list[torch.Tensor]:
    layer = nn.Embedding(10, 4, sparse=True, dtype=torch.float32).to(dtype)
    result = layer(torch.tensor([1, 2, 2, 3]))
    result.float().pow(2).sum().backward()
    rows = layer.weight.grad
    torch.optim.SGD(layer.parameters(), 0.1).step()
    assert rows is not None
    return [result, rows.coalesce().values(), layer.weight]


def sparse_product(dtype: torch.dtype) -> list[torch.Tensor]:
    low = normal(2, 3).to(dtype)
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2), check_invariants=True)
    return [torch.sparse.mm(x, low.float())]


def nested(dtype: torch.dtype) -> list[torch.Tensor]:
    rows = torch.nested.nested_tensor([normal(3, 4).to(dtype), normal(2, 4).to(dtype)])
    return [torch.nested.to_padded_tensor(functional.linear(rows, normal(4, 4).to(dtype)), 0.0)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("program", [nested], ids=lambda program: program.__name__)
def test_what_has_no_shadow_is_said_to_have_none(program: Program) -> None:
    both = twins(program)
    both.unchanged()
    assert both.report.facts["opaque"]
    assert both.report.facts["covered"] < 1
    assert all("shadow" in row.opaque for row in both.report.ops if row.opaque)


def test_a_sparse_operand_is_taken_as_it_is() -> None:
    both = twins(sparse_product)
    both.unchanged()
    both.true()
    assert both.report.facts["covered"] == 1


def test_sparse_gradients_are_taken_as_the_run_has_them() -> None:
    """Their own rounding is not in the shadow: the step is 0.1 of gradients known to 2^-8, of weights of about their size."""
    both = twins(gradients_of_rows)
    both.unchanged()
    assert off(both.shadows[2], both.reference[2]) < 0.1 * 2**-7
    assert not same(both.run[2].float(), both.shadows[2])


def test_eight_bit_formats_are_compared() -> None:
    """They have no arithmetic, not even a difference."""
    x = normal(64, 64)
    with precheck.watch() as report:
        y = x.bfloat16().to(torch.float8_e4m3fn)
        assert same(seen(y), x.bfloat16().float()) or same(seen(y), x)
    cast = next(row for row in report.ops if row.dtype == "float8_e4m3fn")
    assert report.facts["opaque"] == {}
    assert 0.01 < cast.drift < 2**-4  # half a spacing of three mantissa bits, at most


def test_meta_tensors_pass_by() -> None:
    with precheck.watch() as report:
        layer = nn.Linear(4, 4, device="meta", dtype=torch.bfloat16)
        layer(torch.empty(3, 4, device="meta", dtype=torch.bfloat16)).sum().backward()
    assert report.facts["opaque"] == {}
    assert layer.weight.grad is not None


def test_fake_tensors_pass_by() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = normal(4).bfloat16()
    with precheck.watch() as report, FakeTensorMode() as mode:
        faked = mode.from_tensor(x) * torch.empty(4, dtype=torch.bfloat16)
    assert faked.shape == (4,)
    assert report.facts["opaque"] == {}


class Wrapper(torch.Tensor):
    """A subclass with ops of its own, as torchao's and DTensor's."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*(arg.inner if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


class Labelled(torch.Tensor):
    """A subclass with functions of its own."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_wrapper_is_followed_inside() -> None:
    with precheck.watch() as report:
        x = Wrapper(normal(4, 4).bfloat16())
        y = (x @ x) * 2
        assert same(seen(y.inner), (normal(4, 4) @ normal(4, 4)) * 2)
    assert [row.op for row in report.ops] == ["aten._to_copy.default", "aten.mm.default", "aten.mul.Tensor"]


def test_a_subclass_sees_the_users_calls_alone() -> None:
    def program() -> torch.Tensor:
        x = normal(4, 4).bfloat16().as_subclass(Labelled)
        return (x @ x).mul_(2).exp()

    Labelled.calls = 0
    program()
    alone, Labelled.calls = Labelled.calls, 0
    with precheck.watch() as report:
        watched = program()
    assert type(watched) is Labelled
    assert Labelled.calls == alone
    assert report.facts["opaque"] == {}


def labelled() -> list[torch.Tensor]:
    """By the class that `torch.Tensor` gives its kinds: of a tensor, of numbers, of a size."""
    weight = normal(4, 4).requires_grad_()
    made = Labelled((weight * 2).bfloat16())
    (made @ Labelled(made)).float().sum().backward()
    assert weight.grad is not None
    empty = Labelled(2, 3)
    assert (type(made), type(empty), empty.shape) == (Labelled, Labelled, (2, 3))
    return [made, Labelled([1.0, 2.0]), weight.grad]


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_a_program_makes_tensors_of_its_own_classes(precision: str) -> None:
    """Under any dispatch mode, torch alone raises an exception there."""
    alone, of_torch = labelled(), torch.Tensor.__new__
    with gemm_inputs(TF32) if precision == "tf32" else precheck.watch():
        watched = labelled()
        assert torch.Tensor.__new__ is of_torch  # torch.compile keeps it in a table
    assert [type(tensor) for tensor in watched] == [type(tensor) for tensor in alone] == [Labelled, Labelled, torch.Tensor]
    for one, other in zip(watched, alone, strict=True):
        assert precision == "tf32" or torch.equal(one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))
    assert "__new__" not in vars(torch.Tensor)


class Named(Labelled):
    """Its name is set after `__new__` has returned the tensor, and its functions need it. So are the poses of pypose."""

    def __new__(cls, value: torch.Tensor, name: str) -> Any:
        return value.as_subclass(cls)

    def __init__(self, value: torch.Tensor, name: str) -> None:
        self.label = name

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert all(arg.label for arg in args if isinstance(arg, Named))
        return super().__torch_function__(func, types, args, kwargs)


def test_what_a_function_returns_is_recorded_without_code_of_its_class() -> None:
    class Posed(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Named(super().forward(x), "pose").as_subclass(torch.Tensor) * 2

    report = precheck.measure(Posed(4, 4), normal(2, 4), precision="bf16-mixed")
    assert any("Named.__new__()" in row.tensor for row in report.boundaries)
    assert not report.errors


class Turns(torch.Tensor):
    """Angles, whose product is one turn after another."""

    def __mul__(self, other: Any) -> Any:
        assert isinstance(other, Turns), "a turn is multiplied by a turn"
        return self + other


def test_noise_multiplies_the_numbers_of_an_input_and_keeps_its_class() -> None:
    class Turned(torch.nn.Linear):
        def forward(self, x: Any) -> torch.Tensor:
            return super().forward((x * x).as_subclass(torch.Tensor))

    report = precheck.measure(Turned(4, 4), normal(2, 4).as_subclass(Turns), precision="bf16-true")
    assert not report.errors
    assert all(row.floor for row in report.boundaries if row.kind == "output")


def test_statistics_beside_a_result_are_compared_with_their_own() -> None:
    """GroupNorm gives a mean and a deviation of other shapes after its result; where they are all rounding, exact arithmetic is asked too."""
    torch.manual_seed(0)
    linear, norm = nn.Linear(64, 64), nn.GroupNorm(4, 64)
    with precheck.watch() as report, torch.autocast("cpu", torch.bfloat16):
        made = linear(torch.randn(128, 64))
        mean = made.float().view(128, 4, 16).mean(-1, keepdim=True)
        norm(made - mean.expand(128, 4, 16).reshape(128, 64)).square().mean().backward()
    assert report.facts["opaque"] == {}


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout in one op, as on a GPU": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "probabilities": lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
    "in place": lambda x: x.uniform_(),
    "noise": lambda x: x + torch.randn_like(x),
    "choices": lambda x: torch.multinomial(x.abs() + 0.1, 3),
    "slopes": lambda x: torch.rrelu(x, 0.1, 0.3, training=True),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_from_doubtful_numbers_takes_no_random_numbers_of_the_users(name: str) -> None:
    """Doubtful numbers are followed twice, with and without a disturbance. Neither may draw again."""
    big = torch.full((16, 16), 2048.0).bfloat16()

    def draw() -> torch.Tensor:
        torch.manual_seed(7)
        DRAWS[name](big + 11 - big)  # 16, where float32 finds 11
        return torch.rand(4)

    with precheck.watch():
        watched = draw()
        assert shadow_now().any_perturbed
    assert torch.equal(watched, draw())

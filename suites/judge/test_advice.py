"""The advice of a finding fits its line: the format that is wide enough, the op's own `dtype=`, the cast to leave out, a formula without the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graph import Graph, given
from torch import Tensor, nn
from torch.nn import functional

import precheck
from precheck import ops
from precheck.findings import Finding
from precheck.observe.shadow.operations import Origin
from precheck.rules.advice import since, widened

LOW = torch.bfloat16
HALF = torch.float16


def uniform(*shape: int, least: float = 0.0, most: float = 1.0) -> Tensor:
    return least + (most - least) * torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def first(code: Callable[[], Tensor], precision: str | None = None) -> Finding:
    """The first error on a block."""
    with precheck.watch(precision=precision) as report:
        kept = code()
    assert report.errors, (kept.dtype, report.summary())
    return report.errors[0]


def centred(x: Tensor) -> Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


def apart(a: Tensor, b: Tensor) -> Tensor:
    return (a * a).sum(-1, keepdim=True) + (b * b).sum(-1) - 2 * (a @ b.T)


def apart_by_sums(a: Tensor, b: Tensor) -> Tensor:
    return a.square().sum(-1) + b.square().sum(-1) - 2 * (a * b).sum(-1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    return torch.acos((a * b).sum(-1))


NEAR = uniform(64, least=1e-3, most=2e-2)
SCORES = (25 * uniform(32, 8)).to(HALF)
POINTS = 20 + uniform(32, 8)
UNIT = functional.normalize(uniform(64, 3).double(), dim=-1)
BESIDE = functional.normalize(UNIT + 1e-3 * UNIT.flip(0), dim=-1)
FORMS: dict[str, tuple[str, Callable[[torch.dtype], Tensor], Callable[[], Tensor], str | None]] = {
    "expm1": ("torch.expm1", lambda dtype: NEAR.to(dtype).exp() - 1.0, lambda: torch.expm1(NEAR.double()), None),
    "sigmoid": ("torch.sigmoid(-x)", lambda dtype: 1 - torch.sigmoid((5 + 200 * NEAR).to(dtype)),
                lambda: torch.sigmoid(-5 - 200 * NEAR.double()), None),
    "cosine": ("torch.sin(x / 2)", lambda dtype: 1 - NEAR.to(dtype).cos(), lambda: 2 * torch.sin(NEAR.double() / 2) ** 2, None),
    "square": ("(1 - x) * (1 + x)", lambda dtype: 1 - (1 - NEAR).to(dtype) ** 2, lambda: (2 - NEAR.double()) * NEAR.double(), None),
    "log1p": ("torch.log1p(x)", lambda dtype: (1 + NEAR.to(dtype)).log(), lambda: torch.log1p(NEAR.double()), None),
    "log1p of less": ("torch.log1p(-x)", lambda dtype: -(1 - NEAR.to(dtype)).log(), lambda: -torch.log1p(-NEAR.double()), None),
    "variance": ("x.var(dim, correction=0)", lambda dtype: centred(POINTS.to(dtype)), lambda: POINTS.double().var(-1, correction=0), None),
    "distance": ("(a - b).square().sum(-1)", lambda dtype: apart(POINTS.to(dtype), POINTS.flip(0).to(dtype)),
                 lambda: (POINTS.double()[:, None] - POINTS.flip(0).double()).square().sum(-1), None),
    "distance by sums": ("(a - b).square().sum(-1)", lambda dtype: apart_by_sums(POINTS.to(dtype), POINTS.flip(0).to(dtype)),
                         lambda: (POINTS.double() - POINTS.flip(0).double()).square().sum(-1), None),
    "log softmax": ("torch.log_softmax", lambda dtype: torch.softmax(SCORES.to(dtype), -1).log(),
                    lambda: torch.log_softmax(SCORES.double(), -1), None),
    "log sigmoid": ("logsigmoid", lambda dtype: torch.sigmoid((-3 * POINTS).to(dtype)).log(),
                    lambda: functional.logsigmoid(-3 * POINTS.double()), None),
    "logsumexp": ("torch.logsumexp", lambda dtype: POINTS.to(dtype).exp().sum(-1).log(), lambda: torch.logsumexp(POINTS.double(), -1), None),
    "softmax": ("torch.softmax(x, dim)", lambda dtype: (each := POINTS.to(dtype).exp()) / each.sum(-1, keepdim=True),
                lambda: torch.softmax(POINTS.double(), -1), None),
    "norm": ("torch.linalg.vector_norm", lambda dtype: (40 * POINTS).to(dtype).square().sum(-1).sqrt(),
             lambda: torch.linalg.vector_norm(40 * POINTS.double(), dim=-1), None),
    "angle": ("torch.atan2", lambda dtype: angle(UNIT.to(dtype), BESIDE.to(dtype)),
              lambda: 2 * torch.atan2((UNIT - BESIDE).norm(dim=-1), (UNIT + BESIDE).norm(dim=-1)), "32-true"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_formula_that_loses_digits_is_told_with_one_that_does_not(name: str) -> None:
    better, code, exact, precision = FORMS[name]
    dtype = torch.float32 if precision else HALF
    assert better in first(lambda: code(dtype), precision).remedy
    torch.testing.assert_close(code(torch.float64), exact(), rtol=1e-4, atol=1e-4)  # both are one function


def test_other_formulas_get_no_form() -> None:
    """A difference of two tensors is no `expm1`, and a sum of squares without a root no norm."""
    x = 1 + uniform(64) * 2**-6
    found = first(lambda: x.to(LOW).exp() - (x + 2**-9).to(LOW).exp())
    assert found.rule == "cancellation"
    assert found.remedy == "compute the terms in float32, and subtract them before any is rounded"


def test_a_logarithm_beside_another_number_than_one_gets_no_form() -> None:
    """log1p gives log(1 + x), and not log(1.5 + x)."""
    x = (NEAR - 0.5).to(HALF)
    found = first(lambda: (1.5 + x).log())
    assert found.source
    assert "log1p" not in found.remedy


def test_a_sum_is_given_its_dtype() -> None:
    found = first(lambda: (60 * uniform(4, 4000)).to(HALF).sum(-1))
    assert found.remedy == "pass dtype=torch.float32 to sum; or scale its input down, and undo this later"
    for name in sorted(ops.WIDENED):
        packets = [getattr(torch.ops.aten, each) for each in {name, name.strip("_")}]
        schemas = [getattr(packet, overload)._schema for packet in packets for overload in packet.overloads()]
        assert any(argument.name == "dtype" for schema in schemas for argument in schema.arguments), name


def test_a_cast_that_autocast_makes_for_a_module_cannot_be_left_out() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))

    def scaled() -> Tensor:
        with torch.autocast("cpu", HALF):
            return model(1e6 * uniform(4, 8))

    assert first(scaled).remedy.startswith("run module 0 in float32, with torch.autocast(..., enabled=False) and .float() on its input")


@pytest.mark.parametrize(("low", "cure"), [(True, "leave out this cast, and round after aten.cos.default at "), (False, "leave out this cast")])
def test_a_cast_is_left_out_and_its_reader_rounds_if_it_did(low: bool, cure: str) -> None:
    def angles() -> Tensor:
        places = (40 * uniform(200)).to(LOW)
        return torch.cos(8 * (places if low else places.float()))

    told = first(angles).remedy
    assert told.startswith(cure)
    assert ("round after" in told) == low


def test_the_line_that_made_it_low_is_named() -> None:
    def squares() -> Tensor:
        values = (300 + uniform(64)).to(HALF)
        return values * values

    found = first(squares)
    assert found.rule == "overflow"
    path, _, line = found.source.rpartition(":")
    assert found.remedy == f"stay in float32 from {path}:{int(line) - 1} on; or scale its input down, and undo this later"


def test_no_factor_goes_through_an_exponential() -> None:
    """A part of x has no part of exp(x), so scaling is no cure. Where float32 overflows too, no wider format is one."""
    remedies = [first(lambda scale=scale: (scale * (1 + uniform(64))).to(HALF).exp()).remedy for scale in (20.0, 80.0)]
    assert remedies == ["stay in float32 on this line", "rewrite the formula: float32 overflows here too"]


def test_a_draw_has_no_input_to_scale() -> None:
    def noise() -> Tensor:
        torch.manual_seed(0)
        return -torch.log(torch.rand(4000, dtype=LOW))

    assert first(noise).remedy == "do not create it in bfloat16"


def test_the_gradient_of_a_small_number_is_scaled_by_the_loss() -> None:
    def steep() -> Tensor:
        x = (1e4 * uniform(64)).to(HALF).requires_grad_()
        (10 * x.float().square()).sum().backward()
        assert x.grad is not None
        return x.grad

    assert first(steep).remedy.endswith("; or scale the loss down, and undo this in the gradients")


def test_a_line_that_casts_and_computes_is_told_to_stay_wide() -> None:
    found = first(lambda: (400 * uniform(64)).to(HALF) * (400 * uniform(64)).to(HALF))
    assert found.remedy == "stay in float32 on this line; or scale its input down, and undo this later"


def test_positions_are_made_without_a_dtype() -> None:
    found = first(lambda: torch.arange(400, dtype=LOW).cos())
    assert found.rule == "integer-rounding"
    assert found.remedy.startswith("do not create them in bfloat16: keep whole numbers in torch.long or float32 until ")


def test_float32_is_told_of_float64() -> None:
    found = first(lambda: centred(3000 + uniform(8, 64)), "32-true")
    assert "float64" in found.remedy
    assert "float32" not in found.remedy
    assert "keep the accumulator" not in first(lambda: torch.arange(2**24, 2**24 + 64).float().cos(), "32-true").remedy


def test_a_state_and_an_accumulator_are_made_wide_where_they_are_created() -> None:
    def summed() -> Tensor:
        total = torch.zeros(64, dtype=LOW)
        for each in uniform(600, 64):
            total += each.to(LOW)
        return total

    assert "make the accumulator float32 at " in first(summed).remedy


@pytest.mark.parametrize("equation", ["ij, jk -> ik", "ij, jk -> ijk"])
def test_a_cast_that_autocast_makes_is_not_called_the_user_s(equation: str) -> None:
    """Of an outer product einsum makes a product element by element, and autocast casts for einsum as CUDA does."""

    def advice(low: bool) -> str:
        def angles(steps: Tensor, places: Tensor) -> Tensor:
            return torch.einsum(equation, steps, (places.to(LOW) if low else places)[None]).cos()

        return precheck.measure(angles, (uniform(8, 1), torch.arange(300).float()), precision="bf16-mixed").errors[0].remedy

    assert advice(False) == "run this line with torch.autocast(..., enabled=False) and .float() on what it reads"
    assert advice(True).startswith("leave out this cast: keep whole numbers in torch.long or float32")


def test_a_product_under_autocast_is_taken_out_of_it() -> None:
    layer = nn.Linear(64, 64)
    x = 4000 * uniform(8, 64)

    def weighed() -> Tensor:
        with torch.autocast("cpu", dtype=HALF):
            return x @ (40 * layer.weight.abs()).T

    found = first(weighed)
    assert found.rule == "overflow"
    assert found.remedy.startswith("run this line with torch.autocast(..., enabled=False) and .float() on what it reads")


def test_a_layer_of_torchs_own_is_run_wide() -> None:
    class Heavy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)
            nn.init.constant_(self.layer.weight, 40.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).float()

    report = precheck.measure(Heavy(), 400 * uniform(8, 64), precision="16-mixed")
    assert report.errors[0].remedy.startswith("run module layer in float32, with torch.autocast(..., enabled=False) and .float() on its input")


def test_the_code_of_the_line_is_shown() -> None:
    with precheck.watch() as report:
        kept = torch.arange(400, dtype=LOW).cos()  # the line that is shown
    assert kept.numel() == 400
    shown = [line for line in report.summary().splitlines() if "  |  " in line]
    assert shown == [f"    {report.errors[0].source}  |  kept = torch.arange(400, dtype=LOW).cos()  # the line that is shown"]


@pytest.mark.parametrize(
    ("op", "cast", "told"),
    [
        ("model.py:7", "model.py:3", "model.py:3"),
        ("model.py:7", "/env/lib/site-packages/keras/core.py:308", ""),  # which the user cannot change
        ("/env/lib/site-packages/llama/model.py:7", "/env/lib/site-packages/llama/model.py:3", "/env/lib/site-packages/llama/model.py:3"),
    ],
)
def test_the_line_since_which_an_op_is_low_is_one_that_its_author_can_change(op: str, cast: str, told: str) -> None:
    graph = Graph()
    graph.op("mul.Tensor", given(), source=op, since=("bfloat16", Origin(cast)))
    (operation,) = graph.observation.operations
    assert since(operation) == told


@pytest.mark.parametrize(("dtype", "told"), [
    ("bfloat16", "call .float() on what this line reads"),
    ("float32", "keep what this line reads in float32, from where it is made on"),
])  # fmt: skip
def test_what_is_computed_in_float32_already_is_told_to_keep_what_it_reads(dtype: str, told: str) -> None:
    """Its fault lies in what was rounded before it, which `.float()` does not bring back."""
    graph = Graph()
    graph.op("square", given(), source="model.py:2", makes={"dtype": dtype})
    assert widened(graph.last, "float32") == told

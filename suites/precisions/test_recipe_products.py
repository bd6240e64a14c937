"""Recipes carried out: the operands of all three products of a layer are what the format's own casts make of them, and nothing else moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precheck
from precheck.formats import E2M1, E4M3FN, E5M2, integers, mx, nvfp4, scaled
from precheck.formats.tiles import Tile
from precheck.precisions import resolve
from precheck.recipes import RECIPES, quantising
from precheck.recipes.products import RecipeProducts

Cast = Callable[[torch.Tensor], torch.Tensor]
"""Of a matrix whose last dimension is summed over."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensorwise(fmt: precheck.formats.Format) -> Cast:
    return lambda x: scaled.dequantised(*scaled.quantised(x, fmt))


def tiled(rows: int, columns: int) -> Cast:
    return lambda x: scaled.dequantised(*scaled.quantised(x, E4M3FN, tile=Tile(rows, columns), power_of_two=True), Tile(rows, columns))


def mxed(x: torch.Tensor) -> torch.Tensor:
    return mx.dequantised(*mx.quantised(x, E4M3FN, mode="rceil"))


CASTS: dict[str, tuple[Cast, ...]] = {  # input, weight; gradient, weight; gradient, input
    "Float8CurrentScaling": (tensorwise(E4M3FN), tensorwise(E4M3FN), tensorwise(E5M2), tensorwise(E4M3FN), tensorwise(E5M2), tensorwise(E4M3FN)),
    "Float8CurrentScaling-E4M3": (tensorwise(E4M3FN),) * 6,
    "tensorwise": (tensorwise(E4M3FN), tensorwise(E4M3FN), tensorwise(E5M2), tensorwise(E4M3FN), tensorwise(E5M2), tensorwise(E4M3FN)),
    "rowwise": (tiled(1, -1),) * 6,
    "Float8BlockScaling": (tiled(1, 128), tiled(128, 128), tiled(1, 128), tiled(128, 128), tiled(1, 128), tiled(1, 128)),
    "MXFP8BlockScaling": (mxed,) * 6,
}


def step(precision: str, layer: nn.Linear, x: torch.Tensor, upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A layer's result, the gradient of its input and that of its weight, with no autocast about it."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with RecipeProducts(RECIPES[precision]):
        out = layer(x)
        out.backward(upstream)
    assert x.grad is not None
    assert layer.weight.grad is not None
    return out.detach(), x.grad, layer.weight.grad.clone()


@pytest.mark.parametrize("batch", [(96,), (4, 24)], ids=["matrix", "batch"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CASTS)
def test_each_of_the_three_products_has_its_operands_cast(name: str, bias: bool, batch: tuple[int, ...]) -> None:
    layer, x, upstream = nn.Linear(160, 64, bias=bias), normal(*batch, 160), normal(*batch, 64, seed=1)
    out, input_gradient, weight_gradient = step(name, layer, x, upstream)
    flat, up, weight = x.reshape(-1, 160), upstream.reshape(-1, 64), layer.weight.detach()
    given, first, gradient, second, turned_gradient, turned_given = CASTS[name]
    expected = F.linear(given(flat), first(weight), layer.bias.detach() if bias else None)
    torch.testing.assert_close(out.reshape(-1, 64), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(input_gradient.reshape(-1, 160), gradient(up) @ second(weight.t()).t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight_gradient, turned_gradient(up.t()) @ turned_given(flat.t()).t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("places", "sum_of_chunks"), [([0, 129, 257], 2**24), ([0, 129, 130], 2**24 + 2)], ids=["a chunk each", "two of a chunk"])
def test_blocks_are_added_to_a_float32_sum_one_by_one(places: list[int], sum_of_chunks: int) -> None:
    """Of 2^24, 1 and 1 float32 drops each 1 that is added alone, and keeps the 2 of a chunk. No order of single terms gives both sums."""
    layer, x = nn.Linear(384, 1, bias=False), torch.zeros(1, 384)
    x[0, places] = torch.tensor([4096.0, 1.0, 1.0])
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, places] = torch.tensor([4096.0, 1.0, 1.0])
    assert step("Float8BlockScaling", layer, x, torch.ones(1, 1))[0].item() == sum_of_chunks


def test_nvfp4_turns_the_weight_gradients_operands_and_rounds_gradients_by_chance() -> None:
    layer, x, upstream = nn.Linear(64, 32), normal(64, 64), normal(64, 32, seed=1)
    many = [step("NVFP4BlockScaling", layer, x, upstream) for _ in range(2)]
    assert all(torch.equal(one, two) for one, two in zip(*many, strict=True))  # each run has generators of its own
    weight, over = layer.weight.detach(), nvfp4.tensor_scale(layer.weight.detach().abs().amax())
    square = nvfp4.dequantised(*nvfp4.quantised(weight, over=over, tile=nvfp4.SQUARE), over, nvfp4.SQUARE)
    over = nvfp4.tensor_scale(x.abs().amax())
    line = nvfp4.dequantised(*nvfp4.quantised(x, over=over), over)
    torch.testing.assert_close(many[0][0], F.linear(line, square, layer.bias.detach()), rtol=1e-5, atol=1e-5)
    mode, drawn = RecipeProducts(RECIPES["NVFP4BlockScaling"]), []
    how = RECIPES["NVFP4BlockScaling"].weight_gradient[0]
    assert how is not None
    for _ in range(400):
        drawn.append(quantising.rounded(quantising.rotated(upstream.t(), 16), how, generator=mode._generator(torch.device("cpu"))))
    mean = torch.stack(drawn).mean(0)
    held = quantising.rotated(upstream.t(), 16)
    assert (mean - held).norm() < 2.5 / 400**0.5 * (drawn[0] - held).norm()  # what chance leaves of a mean of 400, where nothing is biased
    turned = quantising.rotated(normal(5, 48), 16)
    product = turned @ quantising.rotated(normal(7, 48, seed=1), 16).t()
    torch.testing.assert_close(product, normal(5, 48) @ normal(7, 48, seed=1).t(), rtol=1e-5, atol=1e-5)


def test_delayed_scales_follow_the_steps_before_and_serve_the_whole_step() -> None:
    layer, upstream = nn.Linear(32, 16, bias=False), normal(8, 16)
    recipe = dataclasses.replace(RECIPES["DelayedScaling"], history=2)
    outs = []
    with RecipeProducts(recipe):
        for size in (1.0, 4.0, 1.0, 1.0, 1.0):
            x = (size * normal(8, 32)).requires_grad_()
            out = layer(x)
            out.backward(upstream)
            outs.append((x.detach(), out.detach(), layer.weight.grad.clone()))  # type: ignore[union-attr]
            layer.zero_grad()
    amax = normal(8, 32).abs().amax()
    weight = scaled.dequantised(*scaled.quantised(layer.weight.detach(), E4M3FN))
    gradient = scaled.dequantised(*scaled.quantised(upstream, E5M2))
    for (x, out, weight_gradient), expected in zip(outs, (1, 1, 4, 4, 1), strict=True):  # what the last two steps have seen
        by = scaled.multipliers((expected * amax).reshape(1, 1), E4M3FN)
        given = scaled.dequantised(*scaled.quantised(x, E4M3FN, by=by))
        torch.testing.assert_close(out, given @ weight.t(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weight_gradient, gradient.t() @ given, rtol=1e-5, atol=1e-5)
    assert (outs[1][1] - outs[1][0] @ layer.weight.detach().t()).norm() > 0.3 * outs[1][1].norm()  # four times as large as expected: clipped


@pytest.mark.parametrize(
    ("name", "cast"),
    [
        ("Int8WeightOnlyConfig", lambda w: integers.dequantised(integers.quantised(w, integers.INT8, *integers.parameters(w, integers.INT8)),
                                                                *integers.parameters(w, integers.INT8))),
        ("Int4WeightOnlyConfig", lambda w: _grouped(w)),
    ],
)  # fmt: skip
def test_weight_only_quantises_the_weight_and_leaves_the_rest(name: str, cast: Cast) -> None:
    layer, x, upstream = nn.Linear(256, 32), normal(8, 256), normal(8, 32, seed=1)
    out, input_gradient, weight_gradient = step(name, layer, x, upstream)
    torch.testing.assert_close(out, F.linear(x, cast(layer.weight.detach()), layer.bias.detach()), rtol=1e-5, atol=1e-5)
    assert torch.equal(input_gradient, upstream @ layer.weight.detach())
    assert torch.equal(weight_gradient, upstream.t() @ x)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    tile = integers.group(128)
    scale, zero = integers.parameters(weight, integers.UINT4, tile=tile, symmetric=False)
    return integers.dequantised(integers.quantised(weight, integers.UINT4, scale, zero, tile), scale, zero, tile)


@pytest.mark.parametrize("name", RECIPES)
def test_a_transformer_layer_is_healthy_under_each_recipe_and_its_noise_is_what_it_loses(name: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    report = precheck.measure(
        layer, (normal(4, 8, 32),), precision=name, loss=lambda out: (out - normal(4, 8, 32, seed=1)).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.01), steps=2,
    )  # fmt: skip
    assert not report.errors, report.summary()
    ratios = [row.r for row in report.boundaries if row.kind in ("output", "gradient")]
    assert 0.3 < max(ratios) < 2
    assert report.precision == name


def test_noise_is_as_large_as_rounding_and_leaves_what_rounding_leaves() -> None:
    x = torch.cat([normal(400, 64), torch.tensor([0.0, 0.5, -6.0, 6.0]).repeat(1, 16)])
    for name in ("MXFP8BlockScaling", "mxfp4", "NVFP4BlockScaling", "rowwise", "Int8WeightOnlyConfig", "Int4WeightOnlyConfig"):
        how = RECIPES[name].forward[1]
        assert how is not None
        low = quantising.rounded(x, how) - x
        noisy = quantising.rounded(x, how, noise=True, generator=torch.Generator().manual_seed(1)) - x
        assert 0.85 < low[:400].norm() / noisy[:400].norm() < 1.15
        assert name not in ("mxfp4", "rowwise") or not bool(noisy[400].any())  # numbers of the format stay


def test_a_checkpoints_recomputation_is_a_forward_pass() -> None:
    layer, x, upstream = nn.Linear(32, 32), normal(16, 32), normal(16, 32, seed=1)
    plain = step("DelayedScaling", layer, x, upstream)
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with RecipeProducts(RECIPES["DelayedScaling"]):
        out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        out.backward(upstream)
    for one, other in zip(plain, (out.detach(), x.grad, layer.weight.grad), strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]


def test_under_autocast_the_copies_of_weights_are_weights() -> None:
    layer, x, upstream = nn.Linear(64, 32, bias=False), normal(16, 64), normal(16, 32, seed=1)
    x = x.requires_grad_()
    precision = resolve("fp8-current")
    with precision.step():
        with precision.autocast():
            out = layer(x)
        out.backward(upstream.to(out.dtype))
    gradient = scaled.dequantised(*scaled.quantised(upstream.bfloat16(), E5M2))
    weight = scaled.dequantised(*scaled.quantised(layer.weight.detach().bfloat16().t(), E4M3FN)).t()
    given = scaled.dequantised(*scaled.quantised(x.detach().bfloat16(), E4M3FN))
    torch.testing.assert_close(out.float(), F.linear(given, weight).bfloat16().float())
    torch.testing.assert_close(x.grad, (gradient @ weight).bfloat16().float())
    torch.testing.assert_close(layer.weight.grad, (gradient.t() @ given).bfloat16().float())


def test_products_of_two_activations_and_empty_ones_stay() -> None:
    with RecipeProducts(RECIPES["mxfp4"]):
        assert torch.equal(torch.bmm(normal(2, 8, 8), normal(2, 8, 8)), normal(2, 8, 8).bmm(normal(2, 8, 8)))
        assert (torch.zeros(0, 8) @ normal(8, 4)).shape == (0, 4)
        assert torch.equal(torch.ones(2, 3, dtype=torch.int64) @ torch.ones(3, 2, dtype=torch.int64), torch.full((2, 2), 3))


def test_torchaos_objects_mean_their_recipes() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    config = pytest.importorskip("torchao.float8.config")
    assert resolve(config.Float8LinearRecipeName.ROWWISE).name == "rowwise"
    assert resolve(quantization.Int8WeightOnlyConfig()).name == "Int8WeightOnlyConfig"
    grouped = resolve(quantization.Int4WeightOnlyConfig(group_size=32))
    assert grouped.name == "Int4WeightOnlyConfig"
    assert isinstance(grouped.gemm, precheck.recipes.Recipe)
    assert grouped.gemm.forward[1].along == 32  # type: ignore[union-attr]
    assert E2M1.unit_roundoff == resolve("nvfp4").roundoff


@pytest.mark.parametrize("name", ["fp8", "mxfp4", "int8-dynamic"])
def test_what_is_kept_in_float32_is_not_quantised(name: str) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    plain = model(normal(4, 32))
    precheck.in_float32(model, ["0", "1"])
    x, precision = normal(4, 32).requires_grad_(), resolve(name)
    with precision.step():
        with precision.autocast():
            out = model(x)
        out.sum().backward()
    assert torch.equal(out.float(), plain)
    assert x.grad is not None
    assert torch.equal(x.grad, (torch.ones(4, 8) @ model[1].weight @ model[0].weight).detach())


def delayed(layer: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients of one step under delayed scales, which have nothing before them: those of each tensor itself."""
    given = x.clone().requires_grad_()
    layer.zero_grad()
    with RecipeProducts(RECIPES["DelayedScaling"]):
        out = layer(given)
        out.backward(upstream)
    return [out.detach(), given.grad, *(parameter.grad.clone() for parameter in layer.parameters())]  # type: ignore[list-item, union-attr]


class Three(nn.Module):
    """Three layers that read the same input, whose gradients differ by a thousand: each has a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q(x), 1e-4 * self.k(x), 1e4 * self.v(x)], -1)


def test_layers_with_a_common_input_have_scales_of_their_own() -> None:
    torch.manual_seed(0)
    layer, x, upstream = Three(), normal(16, 32), normal(16, 96, seed=1)
    *_, q, k, v = delayed(layer, x, upstream)
    given = scaled.dequantised(*scaled.quantised(x, E4M3FN))
    for found, part in ((q, upstream[:, :32]), (k, 1e-4 * upstream[:, 32:64]), (v, 1e4 * upstream[:, 64:])):
        expected = scaled.dequantised(*scaled.quantised(part, E5M2)).t() @ given
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


class Loop(nn.Module):
    """One layer, called thrice; of the last call's results nothing counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.layer(x), self.layer(2 * x), 0 * self.layer(3 * x)]).sum(0)


def test_a_call_whose_gradient_is_zero_leaves_no_scale_behind() -> None:
    torch.manual_seed(0)
    layer, x, upstream = Loop(), normal(16, 32), normal(16, 32, seed=1)
    *_, found = delayed(layer, x, upstream)
    exact = upstream.t() @ (3 * x)
    assert (found - exact).norm() < 0.15 * exact.norm()  # the scale of the first call clips what twice as large inputs exceed


def test_a_product_of_two_activations_is_no_layers() -> None:
    torch.manual_seed(0)
    image, text = (normal(16, 32, seed=seed).requires_grad_() for seed in (0, 1))
    layer = nn.Linear(32, 32, bias=False)

    def similarity(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first @ second.t()

    with RecipeProducts(RECIPES["mxfp4"]):
        hidden = layer(image)
        made = similarity(hidden, text)
        made.sum().backward()
    assert torch.equal(made, similarity(hidden, text))
    assert torch.equal(text.grad, torch.ones(16, 16).t() @ hidden.detach())  # type: ignore[arg-type]
    assert not torch.equal(hidden, layer(image))


@pytest.mark.parametrize(
    "make", [lambda w, a, b: w + a @ b, lambda w, a, b: torch.cat([w, a.t()]), lambda w, a, b: w.bfloat16(), lambda w, a, b: w.float() / w.norm()]
)
def test_what_is_made_of_weights_alone_is_a_weight(make: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    weight, low, high = (nn.Parameter(normal(*shape, seed=seed)) for seed, shape in enumerate([(32, 32), (32, 4), (4, 32)]))
    x = normal(16, 32, seed=5)
    with torch.no_grad(), RecipeProducts(RECIPES["MXFP8BlockScaling"]):
        whole = make(weight, low, high)
        made = x.to(whole.dtype) @ whole.t()
    plain = x.to(whole.dtype) @ whole.t()
    assert 1e-3 < (made - plain).norm() / plain.norm() < 0.1


def test_a_gradient_that_rounded_terms_cancel_to_zero_is_not_flushed() -> None:
    """Two samples of two classes have opposite gradients. In e4m3 they are equal but for the sign, and their sum is 0 in float32."""
    torch.manual_seed(1)
    model, x, classes = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 2)), torch.randn(2, 32), torch.tensor([0, 1])

    def loss(made: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(made.float(), classes)

    with torch.no_grad():
        model[1].weight.mul_(0.1)
    chosen = resolve("mxfp8")
    with chosen.step():
        with chosen.autocast():
            made = loss(model(x))
        made.backward()
    assert not model[0].bias.grad.any()
    assert not precheck.measure(model, x, precision="mxfp8", loss=loss).findings

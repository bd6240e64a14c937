"""What is run instead of a CPU's kernels that have a fault of their own: as exact as a GPU's, and nothing else is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from precheck.measurement import job_of
from precheck.observe import kernel_fixes
from precheck.observe.decisions.log import DecisionLog, Recording
from precheck.observe.kernel_fixes import CONVOLUTIONS, PRODUCTS, SUBSTITUTED, substituted
from precheck.observe.recording.module_hooks import Position
from precheck.observe.records import Record
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.precisions import resolve

UNIT = 2.0**-8  # unit roundoff of bfloat16
ROWS = 4096


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def normed(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(values, weight.shape, weight)


def embedded(weight: torch.Tensor) -> torch.Tensor:
    """Few words, each thousands of times; a vocabulary larger than the batch is another way through."""
    return functional.embedding(torch.arange(ROWS) % 3, weight)


def convolved(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv3d(values, weight, padding=(1, 0, 0))


class Multiplied(TorchDispatchMode):
    """The formats of what products read."""

    def __init__(self) -> None:
        super().__init__()
        self.formats = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS | CONVOLUTIONS:
            self.formats.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def gradients(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in given]
    upstream = normal(*function(*leaves).shape, seed=9).to(given[0].dtype)
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(function(*leaves), leaves, upstream)
    return list(found)


def off(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> float:
    """Of the gradient of a weight, in unit roundoffs, against the same numbers in float64."""
    *_, mine = gradients(function, *given)
    *_, exact = gradients(function, *(each.double() for each in given))
    return float((mine.double() - exact).norm() / exact.norm()) / UNIT


@pytest.mark.parametrize(
    ("function", "shapes", "roundings"),
    [
        (normed, [(ROWS, 64), (64,)], 2),
        (normed, [(3 * ROWS, 64), (64,)], 2),
        (normed, [(16, 32, 8, 64), (8, 64)], 2),
        (embedded, [(5, 16)], 1),
        (embedded, [(4 * ROWS, 16)], 1),
    ],
    ids=["layer norm", "layer norm of rows by and by", "layer norm of two dimensions", "embedding", "embedding with many words"],
)
def test_sums_over_a_batch_are_rounded_once(function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], roundings: int) -> None:
    """A rounding is off by a unit at most, and layer norm's forward has rounded the statistics as well, on a CPU. A CPU's own kernel is off
    by more, which is what it is replaced for."""
    given = [normal(*shape, seed=place).bfloat16() for place, shape in enumerate(shapes)]
    before = off(function, *given)
    with substituted():
        assert off(function, *given) <= roundings
    assert before > roundings
    assert off(function, *given) == before, "a block that has ended changes nothing"


def test_gradients_of_a_convolution_over_three_dimensions_are_rounded_once() -> None:
    """The kernel's own have NaN or numbers of 1e34 on some processors, by chance."""
    given = normal(2, 64, 2, 4, 4).bfloat16(), normal(230, 64, 3, 1, 1).bfloat16()
    with substituted():
        assert off(convolved, *given) <= 1


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (functional.linear, [(50, 600), (70, 600)]),
        (functional.linear, [(50, 600), (70, 600), (70,)]),
        (torch.bmm, [(3, 50, 600), (3, 600, 7)]),
        (torch.baddbmm, [(3, 50, 7), (3, 50, 600), (3, 600, 7)]),
        (functional.conv2d, [(2, 16, 9, 9), (24, 16, 3, 3), (24,)]),
    ],
    ids=["product", "with a bias", "batches", "batches with a bias", "convolution"],
)
def test_products_in_float16_are_rounded_once(
    function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of float32 and by torch's own kernel, forwards and backwards, and no product in float32 by the latter."""
    given = [normal(*shape, seed=place).half() for place, shape in enumerate(shapes)]
    exact = [function(*(each.double() for each in given)), *gradients(function, *(each.double() for each in given))]
    for own in (False, True):
        monkeypatch.setattr(kernel_fixes, "multiplies_float16", lambda own=own: own)
        with substituted(torch.float16), Multiplied() as products:
            found = [function(*given), *gradients(function, *given)]
        assert products.formats == {torch.float16 if own else torch.float32}
        for mine, right in zip(found, exact, strict=True):
            assert mine.dtype is torch.float16
            assert float((mine.double() - right).norm() / right.norm()) <= 2.0 ** (-10 if own else -11)


@pytest.mark.parametrize("wanted", [[True, False, False], [False, True, True], [True, True, False]])
@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (3000, 100), (8,)])
def test_layer_norm_gives_what_is_asked_for_at_any_size(shape: tuple[int, ...], wanted: list[bool]) -> None:
    kernel = torch.ops.aten.native_layer_norm_backward.default
    values, gradient, weight, bias = (normal(*each, seed=place).bfloat16() for place, each in enumerate((shape, shape, shape[-1:], shape[-1:])))
    _, mean, scale = torch.native_layer_norm(values, shape[-1:], weight, bias, 1e-5)
    wide = kernel(*(each.float() for each in (gradient, values)), shape[-1:], mean.float(), scale.float(), weight.float(), bias.float(), wanted)
    with substituted():
        found = kernel(gradient, values, shape[-1:], mean, scale, weight, bias, wanted)
    for mine, exact in zip(found, wide, strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None:
            assert mine.dtype is torch.bfloat16
            assert torch.allclose(mine.float(), exact, rtol=2 * UNIT, atol=1e-5)


def test_a_window_of_the_whole_picture_in_channels_last() -> None:
    picture, kernel = normal(4, 64, 8, 8).bfloat16(), normal(128, 64, 8, 8, seed=1).bfloat16()
    with substituted():
        found = functional.conv2d(picture.to(memory_format=torch.channels_last), kernel)
    assert torch.allclose(found.float(), functional.conv2d(picture.float(), kernel.float()), rtol=2 * UNIT, atol=1.0)


def test_a_gradient_of_a_gradient_goes_through() -> None:
    values, weight = normal(8, 16).bfloat16().requires_grad_(), torch.ones(16, dtype=torch.bfloat16, requires_grad=True)
    with substituted():
        (first,) = torch.autograd.grad(normed(values, weight).float().pow(3).sum(), values, create_graph=True)
        first.float().square().sum().backward()
    assert values.grad is not None
    assert values.grad.any()


def test_wider_formats_run_the_kernel_itself() -> None:
    before = gradients(normed, normal(50, 8), normal(8, seed=1))
    with substituted(), substituted():
        within = gradients(normed, normal(50, 8), normal(8, seed=1))
    assert all(torch.equal(one, other) for one, other in zip(before, within, strict=True))


def test_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks nest; where the last has ended, the ops have no kernel there, as before. So they have after a block that raised."""

    def own() -> set[str]:
        names = {packet.default._schema.name for packet in SUBSTITUTED}
        return {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "ADInplaceOrView")}

    @substituted(torch.float16)
    def given_up() -> None:
        raise ValueError("given up")

    monkeypatch.setattr(kernel_fixes, "multiplies_float16", lambda: False)
    before = own()
    with substituted(torch.float16):
        with substituted(torch.float16):
            assert len(own()) == len(SUBSTITUTED)
        assert len(own()) == len(SUBSTITUTED)
    assert own() == before
    with pytest.raises(ValueError, match="given up"):
        given_up()
    assert own() == before


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(2000, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(functional.dropout(self.norm(self.words(ids))).relu())
        return result


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "16-mixed"])
def test_a_run_of_which_nothing_is_recorded_is_the_run_that_is(precision: str) -> None:
    """To the last bit, random draws too: what else is known of a recorded one is how often each module rounded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
    ids = torch.arange(600).view(4, 150) % 7
    job = job_of(net, ids, loss=lambda out: out.float().square().mean(), optimizer=lambda them: torch.optim.SGD(them, lr=0.1))
    plain, recorded = run(job, low(resolve(precision))), run(job, low(resolve(precision), records=DecisionLog()))
    assert list(plain.records) == list(recorded.records)
    assert any(record.kind == "parameter-gradient" for record in plain.records.values())
    for one, other in zip(plain.records.values(), recorded.records.values(), strict=True):
        assert _without_roundings(one) == _without_roundings(other), one.key


def _without_roundings(record: Record) -> dict[str, Any]:
    return {field.name: str(getattr(record, field.name)) for field in dataclasses.fields(record) if field.name != "roundings"}


def kept(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers that dropout keeps and their gradients, over the exact ones, in a recorded run."""
    leaf = values.clone().requires_grad_()
    torch.manual_seed(0)
    with Recording(DecisionLog(), Position()):
        made = function(leaf)
        (gradient,) = torch.autograd.grad(made, leaf, values)
    left = made != 0
    return made.detach()[left].double() * 0.9 / values[left].double(), gradient[left].double() * 0.9 / values[left].double()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.dropout(x, 0.1),
        lambda x: functional.dropout(1 * x, 0.1, inplace=True),
        lambda x: functional.dropout2d(x.view(8, 64, 1, 8), 0.1).view(-1),
        nn.Dropout(0.1),
    ],
    ids=["function", "in place", "of channels", "module"],
)
def test_dropout_multiplies_by_its_factor_in_float32(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The mean of four thousand roundings is near zero. In a mask of bfloat16 the factor of 1/0.9 is 0.16 % too small, of every number."""
    values = normal(ROWS).bfloat16()
    for ratios in kept(function, values):
        assert abs(float(ratios.mean()) - 1) < UNIT / 32
        assert float((ratios - 1).abs().max()) <= UNIT
    torch.manual_seed(0)
    plain = function(values)
    assert abs(float((plain[plain != 0].double() * 0.9 / values[plain != 0].double()).mean()) - 1) > UNIT / 4, "a CPU's own kernel"


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_dropout_of_one_half_after_another(share: float) -> None:
    """A mode is told no argument that has its default, such as the share of one half."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(functional.dropout(x, 0.1), share) * (1 - share)

    ratios, _ = kept(twice, normal(ROWS).bfloat16())
    assert abs(float(ratios.mean()) - 1) < UNIT / 8


def test_a_mask_that_the_user_scales_stays_as_it_is() -> None:
    """On a GPU this code rounds its factor too."""

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        mask = torch.empty_like(x).bernoulli_(0.9)
        return x * mask.div_(0.9)

    ratios, _ = kept(by_hand, normal(ROWS).bfloat16())
    assert abs(float(ratios.mean()) - 1) > UNIT / 4

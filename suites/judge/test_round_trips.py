"""A cast to a low format and back on one line: it is meant for data, and judged like any store for what a model computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


class Offsets(torch.nn.Module):
    """Rounds large numbers and takes nearly as large ones off."""

    def __init__(self, *, hard_coded: bool) -> None:
        super().__init__()
        self.layer, self.hard_coded = torch.nn.Linear(8, 8), hard_coded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.bfloat16 if self.hard_coded else low_dtype(self.layer.weight)
        with torch.autocast("cpu", enabled=False):
            near = self.offset(x.float(), dtype)
        return self.layer(near)

    @staticmethod
    def offset(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return (x + 100.3).to(dtype).float() - 100.3  # culprit


@pytest.mark.parametrize("hard_coded", [False, True])
def test_a_round_trip_that_a_difference_amplifies_is_a_bug(hard_coded: bool) -> None:
    """Whether or not a float32 run makes it as well: then it is wrong in float32 too."""
    torch.manual_seed(0)
    report = precheck.measure(Offsets(hard_coded=hard_coded), torch.randn(64, 8), precision="bf16-mixed")
    line = Path(__file__).read_text(encoding="utf8").splitlines().index("        return (x + 100.3).to(dtype).float() - 100.3  # culprit") + 1
    assert report.errors, report.summary()
    assert report.errors[0].source.endswith(f"test_round_trips.py:{line}")
    assert re.search(rf"grows at aten.sub.Tensor at \S*test_round_trips.py:{line}", report.summary())


def odds(chance: torch.Tensor) -> torch.Tensor:
    """Of outcomes that are nearly certain: most digits of 1 - p are lost when p is rounded."""
    chance = chance.bfloat16().float()
    return chance / (1 - chance)


def test_a_round_trip_in_a_loss_is_judged_and_one_of_data_is_meant() -> None:
    """Both are outside of all modules. Autograd follows what a model computes, and data are computed without it."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 8), torch.randn(64, 8)
    with precheck.watch() as told:
        with torch.autocast("cpu", torch.bfloat16):
            scores = layer(x)
        odds(torch.sigmoid(4 + 0.3 * scores.float())).mean().backward()
    assert told.errors, told.summary()
    assert "bfloat16" in told.errors[0].message
    assert told.errors[0].source.rpartition(":")[0].endswith("test_round_trips.py")
    with precheck.watch() as silent:
        data = odds(torch.sigmoid(4 + 0.3 * torch.randn(64, 8)))
        layer(data).mean().backward()
    assert silent.findings == [], silent.summary()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_round_trip_of_what_is_read_as_it_is_does_no_harm(precision: str) -> None:
    """Probabilities are rounded for a product, and kept wide: healthy code, whose dtype is that of the weights."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            shares = (q.float() @ k.float().transpose(-1, -2) / 4).softmax(-1).to(q.dtype).float()
            return shares @ v.float()

    torch.manual_seed(0)
    report = precheck.measure(Attention(), torch.randn(2, 24, 16), precision=precision, loss=lambda out: out.square().mean())
    assert report.errors == [], report.summary()


@pytest.mark.parametrize("coarse", [False, True])
def test_a_round_trip_to_another_format_than_in_float32_comes_with_the_precision(coarse: bool) -> None:
    """In a float32 run autocast's dtype is bfloat16, which nobody asked for: the run in float16 must not be held against its coarser rounding."""

    class Shares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                shares = self.shares(x.float())
            return self.layer(shares)

        @staticmethod
        def shares(x: torch.Tensor) -> torch.Tensor:
            low = torch.get_autocast_dtype("cpu")
            return (x.square() + 100 * coarse).to(low).float() - 100 * coarse

    torch.manual_seed(0)
    report = precheck.measure(Shares(), torch.randn(64, 16), precision="16-mixed")
    assert bool(report.errors) == coarse, report.summary()


@pytest.mark.parametrize("size", [1e-7, 1e-2])
def test_a_round_trip_that_leaves_the_last_bits_of_subnormal_numbers_is_not_meant(size: float) -> None:
    """float16 keeps a number of 1e-7 as one or two steps of its smallest spacing. That is no rounding of data, also where float32 makes it."""

    class Chances(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                shares = self.shares(x.float().square() + 0.5)
            return self.layer(shares)

        @staticmethod
        def shares(x: torch.Tensor) -> torch.Tensor:
            return (size * x).half().float() / size

    torch.manual_seed(0)
    report = precheck.measure(Chances(), torch.randn(64, 16), precision="16-mixed")
    assert bool(report.errors) == (size < 1e-4), report.summary()
    assert not report.errors or "Chances.shares() returns: off by" in report.summary()


class Model(torch.nn.Module):
    """A model whose forward pass is that function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A number as two of bfloat16, of which the second is what the first leaves."""
    x = x * 1.1
    first = x.bfloat16().float()
    return first, (x - first) * 256


def halves_on_two_lines(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x * 1.1
    low = x.bfloat16()
    first = low.float()
    return first, (x - first) * 256


def straight_through(x: torch.Tensor) -> torch.Tensor:
    x = x.exp()
    return x + (x.bfloat16().float() - x).detach()


@pytest.mark.parametrize(
    "healthy", [halves, halves_on_two_lines, straight_through, lambda x: x.bfloat16().float() - 1, lambda x: (x - 1).bfloat16().float()]
)
def test_a_rounding_that_is_meant_is_left_in_peace_in_a_block(healthy: Callable[[torch.Tensor], Any]) -> None:
    """The rest of a rounding, data that are rounded, and a result that is rounded once."""
    x = 1 + torch.rand(512, generator=torch.Generator().manual_seed(0)) / 50
    with precheck.watch() as report:
        kept = Model(healthy)(x)
    del kept
    assert report.findings == [], report.summary()

"""Attention with masks as people write them passes under every precision: the constant may become -Inf in a low format, and torch may then take
another path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck

LEAST = torch.finfo(torch.float32).min
LENGTH = 12
CAST = next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# -Inf"))


def squared(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def kept(padding: str) -> torch.Tensor:
    """Which positions each position sees: none later, and none of a padded row."""
    seen = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    if padding == "right":
        seen[1, :, :, -3:] = False
    if padding == "left":
        seen[1, :, :, :3] = False
        seen[1, :, torch.arange(3), torch.arange(3)] = True
    return seen


MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda seen: torch.zeros(seen.shape).masked_fill(~seen, LEAST),
    "multiplied": lambda seen: (1.0 - seen.float()) * LEAST,
    "two added": lambda seen: (1.0 - seen.float()) * (LEAST / 2) + torch.full(seen.shape, LEAST / 2).triu(1),
    "logarithm": lambda seen: seen.float().log().clamp(min=LEAST),
    "with distances": lambda seen: torch.where(seen, -0.1 * torch.arange(LENGTH).expand(seen.shape), torch.tensor(LEAST)),
}


class Attention(nn.Module):
    def __init__(self, mask: torch.Tensor, *, fused: bool) -> None:
        super().__init__()
        self.enter, self.out, self.mask, self.fused = nn.Linear(32, 96), nn.Linear(32, 32), mask, fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.enter(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mask = self.mask.to(query.dtype)  # -Inf
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            mixed = (query @ key.transpose(-1, -2) / 8**0.5 + mask).softmax(-1).to(value.dtype) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


def measured(model: nn.Module, precision: str) -> precheck.Report:
    torch.manual_seed(1)
    return precheck.measure(model, torch.randn(2, LENGTH, 32), precision=precision, loss=squared)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_passes(name: str, fused: bool, precision: str) -> None:
    """The first row sees one position, whose probability is 1. Its gradient is zero on paper, and in float32 a rounding."""
    torch.manual_seed(0)
    padding = ("none", "right", "left")[list(MASKS).index(name) % 3]
    measured(Attention(MASKS[name](kept(padding)), fused=fused), precision).raise_for_errors()


def hidden(rows: int) -> torch.Tensor:
    """The first rows of the second sample see nothing, as those of padding on the left."""
    seen = kept("none")
    seen[1, :, :rows] = False
    return seen


def test_rows_that_see_nothing_become_nan() -> None:
    """The least float32 leaves such a row its mean. In float16 it is -Inf, and the row has no maximum."""
    torch.manual_seed(0)
    error = measured(Attention(MASKS["filled"](hidden(4)), fused=False), "16-mixed").errors[0]
    assert error.cause_rule == "overflow"
    assert error.source.endswith(f":{CAST}")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "32-true"])
@pytest.mark.parametrize("name", ["filled", "multiplied", "logarithm"])
def test_fused_attention_gives_such_a_row_zeros_which_mean_no_more(name: str, precision: str) -> None:
    torch.manual_seed(0)
    report = measured(Attention(MASKS[name](hidden(4)), fused=True), precision)
    report.raise_for_errors()
    assert worst(report) < 3


def worst(report: precheck.Report) -> float:
    return max(row.r for row in report.boundaries)


def test_a_row_of_which_float32_keeps_the_scores_is_lost() -> None:
    """1e5 is beyond float16. In float32 it takes four digits from the scores, and the softmax takes it away again."""
    torch.manual_seed(0)
    mask = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~hidden(4), -1e5)
    measured(Attention(mask, fused=True), "bf16-mixed").raise_for_errors()
    assert measured(Attention(mask, fused=True), "16-mixed").errors


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_another_path_to_the_same_result_is_no_fault(precision: str) -> None:
    """torch compares the mask with one of -Inf, which the least float32 equals only once it is stored in bfloat16. The flips of ReLU are others."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False)
    mask = MASKS["filled"](kept("none"))[0, 0]

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, mask=mask.to(x.dtype))  # type: ignore[no-any-return]

    measured(Masked(), precision).raise_for_errors()


class OfTheBestScores(nn.Module):
    """Attention to the best scores alone. Those that a low format makes equal to the last of these are kept as well. Scores of masked places are
    filled with the least number of their format, and widened by a bias. Python reads one score, so that float32 gets a run of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out, self.bias, self.first = nn.Linear(32, 96), nn.Linear(32, 32), nn.Parameter(torch.randn(LENGTH, LENGTH)), 0.0

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2)
        return scores.masked_fill(~kept("none")[:1], -torch.finfo(scores.dtype).max) + self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.enter(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores = self.scores(query, key)
        self.first = float(scores.detach()[0, 0, 0, 0])
        best = scores.to(value.dtype)
        best = best.masked_fill(~(best >= best.topk(4).values.select(-1, -1).unsqueeze(-1)), -torch.finfo(best.dtype).max)
        return self.out((best.softmax(-1).to(value.dtype) @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_scores_that_are_filled_widened_and_chosen_from_pass(precision: str) -> None:
    torch.manual_seed(0)
    model, x = OfTheBestScores(), torch.randn(64, LENGTH, 32)
    report = precheck.measure(model, x, precision=precision, loss=squared)
    assert not report.errors, report.summary()
    assert any(note.rule == "decision-flip" for note in report.findings) is (precision == "bf16-mixed")

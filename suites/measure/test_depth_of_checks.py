"""What `depth` looks at: every op of the run, by the rules of `watch`, or its boundaries alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import precheck


class Rotated(nn.Module):
    """Attention with a rotary table of low-format positions, whose harm an untrained network dilutes to less than a noise floor."""

    def __init__(self, dtype: torch.dtype, width: int = 32) -> None:
        super().__init__()
        self.dtype, self.qkv, self.out = dtype, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            angles = torch.outer(torch.arange(x.shape[2], dtype=self.dtype).float(), 1e4 ** (-torch.arange(8) / 8))  # culprit
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


CULPRIT = f"test_depth_of_checks.py:{next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith('# culprit'))}"


def net(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.LayerNorm(32), Rotated(dtype), nn.Linear(32, 64))


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (1, 300), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_what_a_network_dilutes_is_an_error_at_the_depth_of_ops(precision: str) -> None:
    report = precheck.measure(net(torch.bfloat16), tokens(), precision=precision)
    first = report.errors[0]
    assert (first.cause_rule, first.source.rpartition("/")[2], first.tensor) == ("integer-rounding", CULPRIT, "Rotated.turned()"), report.summary()
    assert len(report.errors) == 1
    assert report.ops
    fast = precheck.measure(net(torch.bfloat16), tokens(), precision=precision, depth="boundaries")
    assert fast.errors == [], "it is diluted here: if it is not, this is no test of depth any more"
    assert fast.ops == []


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_a_table_in_float32_passes_at_both(precision: str) -> None:
    for depth in ("ops", "boundaries"):
        report = precheck.measure(net(torch.float32), tokens(), precision=precision, depth=depth)
        assert report.errors == [], report.summary()


def test_a_check_says_what_a_watch_says(tmp_path: Path) -> None:
    """Against a golden too, within whose floors the run stays."""
    from precheck.goldens.lifecycle import refresh
    from precheck.measurement import job_of

    model, ids = net(torch.bfloat16), tokens()
    path = tmp_path / "it.safetensors"
    refresh(path, job_of(model, ids))
    checked = precheck.check(model, ids, golden=path, precision="bf16-mixed")
    with precheck.watch(model) as watched, torch.autocast("cpu", torch.bfloat16):
        model(ids)
    (told,), (seen,) = checked.errors, watched.errors
    assert (told.cause_rule, told.source) == (seen.rule, seen.source)
    assert told.cause == f"{seen.rule}: {seen.message}"
    assert precheck.check(model, ids, golden=path, precision="bf16-mixed", depth="boundaries").errors == []


def test_a_run_at_the_depth_of_ops_is_the_plain_run() -> None:
    """Watching changes no bit: boundaries, updates and decisions are those of the fast check."""
    options: dict[str, Any] = {"loss": lambda out: out.float().square().mean(), "optimizer": torch.optim.AdamW, "steps": 2}
    seen, plain = (precheck.measure(net(torch.float32), tokens(), precision="bf16-true", depth=depth, **options) for depth in ("ops", "boundaries"))
    assert [row for row in seen.boundaries if row.kind != "returned"] == plain.boundaries
    assert seen.updates == plain.updates


@pytest.mark.parametrize("verb", [precheck.measure, precheck.remedy])
def test_another_depth_is_refused(verb: Any) -> None:
    with pytest.raises(precheck.InputError, match=r"^depth='op'; pass 'ops' \(every op beside float32\) or 'boundaries' \("):
        verb(net(torch.float32), tokens(), depth="op")

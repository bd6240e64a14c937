"""A loop under Accelerate, as its documentation has it: prepared model, accumulated gradients, clipping, a schedule."""

from __future__ import annotations

import pytest
import torch
from course import accused, line, loader, network, watched
from torch import nn
from torch.nn.functional import cross_entropy

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install -c constraints.txt -e '.[accelerate]'")


class Counted(nn.Module):
    """Divides by how many rows there were so far; in low precision, where it is told so, which holds no whole number beyond 256."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("rows", torch.full((), 250.0, dtype=dtype))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        with torch.no_grad():
            for row in out.float():
                self.rows += 1  # rows
                self.total += row
        return out - (self.total / self.rows.float()).to(out.dtype)


def trained(precision: str, model: nn.Module | None = None, *, rate: float = 1e-2) -> nn.Module:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True, gradient_accumulation_steps=2)
    model = model or network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, 4)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, loader(8), schedule)
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # step
            schedule.step()
            optimizer.zero_grad()
    unwrapped: nn.Module = accelerator.unwrap_model(model)
    return unwrapped


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_healthy_training_is_left_in_peace(precision: str) -> None:
    """On a CPU Accelerate has no float16 autocast: fp16 is float32 there."""
    report = watched(lambda: trained(precision))
    assert accused(report) == []
    assert (report.facts["shadowed"] > 100) == (precision == "bf16")
    assert report.facts["covered"] == 1


def test_counts_kept_in_float32_are_left_in_peace() -> None:
    assert accused(watched(lambda: trained("bf16", Counted(network(), torch.float32)))) == []


def test_counts_that_bfloat16_does_not_hold() -> None:
    report = watched(lambda: trained("bf16", Counted(network(), torch.bfloat16)))
    assert accused(report)[:1] in ([("absorption", line(Counted, "rows"))], [("integer-rounding", line(Counted, "rows"))]), report.summary()


def test_updates_that_bfloat16_weights_do_not_see() -> None:
    """Accelerate's bf16 is autocast over the weights as they come, here in bfloat16."""
    report = watched(lambda: trained("bf16", network().bfloat16(), rate=1e-4))
    assert accused(report) == [("lost-update", line(trained, "step"))], report.summary()

"""What a kernel leaves for its derivative: bytes, of which each run in another precision has its own, and numbers that are written only in part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.run import trains_recurrent
from precheck.observe.shadow.replaying.replay import OpCall, Replay


class Amplified(nn.Module):
    """An op before the recurrent layer amplifies rounding, so that the disturbed numbers are followed from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.lstm = nn.Linear(8, 16), nn.LSTM(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.lstm((self.before(x) * 300).sin())[0]
        return made


@pytest.mark.skipif(not trains_recurrent(torch.bfloat16), reason="oneDNN has no LSTM in bfloat16 for this processor")
def test_a_backward_kernel_in_float32_gets_a_workspace_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own workspace is shorter, and oneDNN wrote past the end of it: the user's process ended by a segmentation fault."""
    lengths: dict[str, list[int]] = {"mkldnn_rnn_layer": [], "mkldnn_rnn_layer_backward": []}
    real = Replay.call

    def call(self: Any, op: OpCall, change: Any) -> list[torch.Tensor]:
        packet = op.plan.packet
        if packet == "mkldnn_rnn_layer_backward":
            lengths[packet].append(change(op.args[-1]).numel())
        made = real(self, op, change)
        if packet == "mkldnn_rnn_layer":
            lengths[packet].append(made[-1].numel())
        return made

    monkeypatch.setattr(Replay, "call", call)
    torch.manual_seed(0)
    model, x = Amplified(), torch.randn(64, 2, 8)
    with precheck.watch(model) as report:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
    assert len(lengths["mkldnn_rnn_layer_backward"]) >= 2, "the disturbed numbers were not followed"
    assert set(lengths["mkldnn_rnn_layer_backward"]) == set(lengths["mkldnn_rnn_layer"])
    assert not any("rnn" in name for name in report.facts.get("opaque", {}))


def test_what_a_kernel_left_unwritten_is_not_compared() -> None:
    """CTC's second result is for its derivative: where a target is shorter than the longest, it holds what was in memory. The drift of the loss was
    told as 1e6 by chance."""
    torch.manual_seed(0)
    logits, targets, lengths = torch.randn(30, 4, 12), torch.arange(28).view(4, 7) % 11 + 1, (torch.full((4,), 30), torch.tensor([7, 3, 5, 6]))

    def losses(given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.nn.functional.ctc_loss(given.float().log_softmax(-1), targets, *lengths, reduction="none")
        return made

    with precheck.watch() as report:
        low = losses(logits.bfloat16())
    row = next(row for row in report.ops if "ctc" in row.op)
    right = losses(logits)
    assert row.drift == pytest.approx(float((low - right).norm() / right.norm()), rel=1e-3)

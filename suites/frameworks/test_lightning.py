"""Lightning's Trainer under every precision that it offers on a CPU, as its users write modules, and with faults that are theirs."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from course import accused, line, loader, network, watched
from torch import nn
from torch.nn.functional import cross_entropy

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install -c constraints.txt -e '.[lightning]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU"),
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
LOW = ["bf16-mixed", "bf16-true", "16-mixed", "16-true"]
"""16-mixed is bf16-mixed on a CPU, where Lightning says that it has no float16 autocast."""


class Rms(nn.Module):
    """A norm by hand; squares of a few hundred are beyond float16."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = (self.gain * x).square()  # squares
        return self.gain * x / (squares.float().mean(-1, keepdim=True) + 1e-3).sqrt().to(x.dtype)


class Averaged(nn.Module):
    """Keeps an average of its rows, a hundredth of each step, in the format that it is told."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(32, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for row in x:
                self.average.mul_(0.999).add_(0.001 * row)  # average
        return x - self.average.to(x.dtype)


class Classifier(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, rate: float = 2e-2, gain: float = 1.0) -> None:
        super().__init__()
        self.net, self.rms, self.rate = network(), Rms(gain), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.rms(x))  # type: ignore[no-any-return]

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = cross_entropy(self(x).float(), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        if self.dtype == torch.float16:  # which holds no squares of small gradients, as AdamW keeps them
            return torch.optim.SGD(self.parameters(), lr=10 * self.rate, momentum=0.9)
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)}


def trained(precision: str, model: Classifier | None = None, **options: Any) -> Classifier:
    model = model or Classifier()
    quiet: dict[str, Any] = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = lightning.Trainer(accelerator="cpu", precision=precision, max_epochs=1, **quiet, **options)
    trainer.fit(model, loader())  # fit
    return model


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 2}], ids=["plain", "clipped", "accumulated"])
@pytest.mark.parametrize("precision", ["32-true", "64-true", *LOW])
def test_a_healthy_training_is_left_in_peace(precision: str, options: dict[str, Any]) -> None:
    report = watched(lambda: trained(precision, **options))
    assert accused(report) == []
    assert (report.facts["shadowed"] > 100) == (precision in LOW)
    assert report.facts["covered"] == 1


def test_updates_that_bfloat16_weights_do_not_see() -> None:
    """AdamW's step at 1e-4 is a fortieth of what a norm's weight of 1 sees."""
    report = watched(lambda: trained("bf16-true", Classifier(rate=1e-4)))
    assert accused(report) == [("lost-update", line(trained, "fit"))], report.summary()
    (error,) = report.errors
    assert error.module == "net.2"
    assert error.via.startswith("lightning/")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_an_average_that_bfloat16_does_not_move(precision: str) -> None:
    """Of rows in float32; 0.999 times a number is that number in bfloat16, which sees 1/512 of it at least."""
    model = Classifier()
    model.rms = Averaged(torch.bfloat16)
    report = watched(lambda: trained(precision, copy.deepcopy(model)))
    assert accused(report)[0] == ("absorption", line(Averaged, "average")), report.summary()
    model.rms = Averaged(torch.float32)
    assert accused(watched(lambda: trained(precision, copy.deepcopy(model)))) == []


def test_squares_that_float16_does_not_hold() -> None:
    report = watched(lambda: trained("16-true", Classifier(gain=200.0)))
    assert accused(report)[0] == ("overflow", line(Rms, "squares")), report.summary()
    assert report.errors[0].module == "rms"

"""torch.set_default_device changes nothing: precheck's own tensors say where they lie.

The default device is "meta" here, whose tensors have no numbers. What precheck makes without a device fails at once, as it does where a GPU is the
default.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of


class Network(nn.Module):
    """Makes no tensor of its own, and loses digits at one line."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out, self.table = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Embedding(5, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.into(x)
        large = (y * 0 + 300).to(y.dtype) + y
        return self.out(self.norm(y) + (large - 300) + self.table(y.argmax(-1) % 5))


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Its state is made from gradients. AdamW counts its steps in a tensor on the default device, and reads it in some versions of torch."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=False)


def measured(model: nn.Module, x: torch.Tensor, folder: Path, precision: str) -> Report:
    return precheck.measure(model, x, precision=precision, loss=loss, optimizer=momentum, steps=2)


def checked(model: nn.Module, x: torch.Tensor, folder: Path, precision: str) -> Report:
    refresh(folder / "golden.safetensors", job_of(model, x, loss=loss))
    return precheck.check(model, x, golden=folder / "golden.safetensors", precision=precision, loss=loss)


def watched(model: nn.Module, x: torch.Tensor, folder: Path, precision: str) -> Report:
    optimizer = momentum(model.parameters())
    with precheck.watch() as report:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(model(x))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    return report


def compared(model: nn.Module, x: torch.Tensor, folder: Path, precision: str) -> Report:
    return precheck.compare(model, lambda x: model(x) * 1.01, x, precision=precision)


VERBS: list[tuple[Callable[..., Report], str]] = [(measured, each) for each in ("bf16-mixed", "16-mixed", "bf16-true", "bf16-master")]
VERBS += [(checked, "bf16-mixed"), (watched, "bf16-mixed"), (compared, "bf16-true")]


@pytest.mark.parametrize(("verb", "precision"), VERBS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_the_report_is_the_same_under_another_default_device(verb: Callable[..., Report], precision: str, tmp_path: Path) -> None:
    def told() -> list[tuple[str, str, str]]:
        report = verb(model, x, tmp_path, precision)
        assert "diagnosis" not in report.facts, report.facts["diagnosis"]
        assert not report.facts.get("opaque"), report.facts["opaque"]
        return [(each.rule, each.severity, each.source) for each in report.findings]

    torch.manual_seed(0)
    model, x = Network(), torch.randn(8, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected = told()
    model.load_state_dict(state)
    with torch.device("meta"):
        assert told() == expected
    assert expected or verb is watched or precision == "16-mixed", "something is found, so that its line was looked for"

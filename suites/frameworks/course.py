"""A small classifier with its data, and what is asked of a training that was watched: which lines are accused, and whether a bit changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import precheck
from precheck.findings import Report

ROWS, WIDTH, CLASSES = 64, 32, 4
Training = Callable[[], nn.Module]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of standard normal numbers, and the class of each: where the largest of its first four is."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    return x, x[:, :CLASSES].argmax(-1)


def loader(size: int = 16) -> torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=size)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))


def watched(training: Training) -> Report:
    """The report on a training, which must leave the weights that it leaves unwatched, bit for bit."""
    plain = [weight.detach().clone() for weight in training().parameters()]
    with precheck.watch() as report:
        model = training()
    for one, other in zip(plain, model.parameters(), strict=True):
        assert torch.equal(one.nan_to_num(123.0), other.detach().nan_to_num(123.0))
    return report


def accused(report: Report) -> list[tuple[str, str]]:
    """Rule, and file and line, of every finding that is more than a note."""
    return [(each.rule, each.source.rpartition("/")[2]) for each in report.findings if each.severity != "note"]


def line(code: Any, mark: str) -> str:
    """ "test_keras.py:12": the one line of a function or class that ends in `# mark`."""
    lines, first = inspect.getsourcelines(code)
    (place,) = [number for number, text in enumerate(lines, first) if text.rstrip().endswith(f"# {mark}")]
    return f"{Path(inspect.getfile(code)).name}:{place}"

"""Tables that a model makes in its forward pass, in float32: their numbers are rounded there, and in an exact run they are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import precheck

SIZE = 48
X = torch.randn(7, SIZE, generator=torch.Generator().manual_seed(0))


class Waves(nn.Module):
    """A product with a table of cosines, of angles up to 150, which float32 rounds by 8e-6. `kind`: how the table is made. `late`: by how much its
    angles are off."""

    def __init__(self, kind: str = "float64", late: float = 0.0) -> None:
        super().__init__()
        self.kind, self.late, self.inside = kind, late, nn.Linear(SIZE, SIZE)

    def angles(self, places: torch.Tensor) -> torch.Tensor:
        return math.pi * (2 * places[:, None] + 1) * (places + self.late) / (2 * SIZE)

    def table(self) -> torch.Tensor:
        whole = torch.arange(SIZE)
        if self.kind == "cast":
            return torch.cos(self.angles(whole.float()))
        if self.kind == "named":
            return torch.cos(self.angles(torch.linspace(0, SIZE - 1, SIZE, dtype=torch.float32)))
        if self.kind == "promoted":
            return torch.cos(self.angles(whole))
        if self.kind == "turned":
            return torch.polar(torch.ones(SIZE, SIZE), self.angles(whole)).real
        if self.kind == "complex":
            return torch.exp((1j * self.angles(whole)).to(torch.complex64)).real
        return torch.cos(self.angles(whole.double()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inside(x)
        return made @ self.table().to(made.dtype)


@pytest.mark.parametrize("kind", ["cast", "named", "promoted", "turned", "complex"])
@pytest.mark.parametrize("of_model", [False, True], ids=["of other", "of model"])
def test_a_table_in_float32(kind: str, of_model: bool) -> None:
    torch.manual_seed(0)
    tables, exact, off = Waves(kind), Waves(), Waves(kind, 1e-4)
    for each in (exact, off):
        each.load_state_dict(tables.state_dict())
    sides = (tables, exact) if of_model else (exact, tables)
    loss = {"loss": lambda out: out.square().mean()}
    assert precheck.compare(*sides, X, **loss).verdict == "rounding"  # type: ignore[arg-type]
    report = precheck.compare(exact, off, X, **loss)  # type: ignore[arg-type]
    assert report.verdict == "different"
    assert report.errors[0].module == ""
    assert "test_tables.py" in report.errors[0].source
    assert torch.get_default_dtype() is torch.float32

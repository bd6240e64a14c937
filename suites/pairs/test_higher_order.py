"""Operators of higher order in one of two: flexible attention is followed op by op, torch.cond runs as a whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import precheck

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Causal attention, with torch's kernel or, with `late`, as flexible attention whose mask shows so many tokens too many."""

    def __init__(self, late: int | None = None) -> None:
        super().__init__()
        self.late, self.inside = late, nn.Linear(16, 48)
        self.requires_grad_(False)  # flexible attention has no backward pass on a CPU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2).contiguous() for part in self.inside(x).chunk(3, -1))
        if self.late is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def score(value: torch.Tensor, row: torch.Tensor, head: torch.Tensor, place: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            return torch.where(place + self.late >= seen, value, -torch.inf)

        made = flex_attention(q, k, v, score_mod=score)
        assert isinstance(made, torch.Tensor)
        return made


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_flexible_attention_beside_torchs_own(precision: str) -> None:
    torch.manual_seed(0)
    model = Attention()
    others = {late: Attention(late) for late in (0, 1)}
    for other in others.values():
        other.load_state_dict(model.state_dict())
    assert precheck.compare(model, others[0], X, precision=precision).verdict == "rounding"
    report = precheck.compare(model, others[1], X, precision=precision)
    assert report.verdict == "different"
    assert "test_higher_order.py" in report.errors[0].source


class Choosing(nn.Module):
    """A branch, by torch.cond or by Python. `factor`: of the first branch."""

    def __init__(self, kind: str, factor: float = 2.0) -> None:
        super().__init__()
        self.kind, self.factor, self.inside = kind, factor, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        if self.kind == "cond":
            return torch.cond(x.sum() > -1e9, lambda x: x * self.factor, lambda x: x - 1, (x,))
        return x * self.factor if x.sum() > -1e9 else x - 1


def test_a_branch_by_cond_beside_one_by_python() -> None:
    torch.manual_seed(0)
    model, others = Choosing("python"), [Choosing("cond"), Choosing("cond", 2.1)]
    for other in others:
        other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert precheck.compare(model, others[0], X).verdict in ("bitwise", "rounding")
        assert precheck.compare(model, others[1], X).verdict == "different"

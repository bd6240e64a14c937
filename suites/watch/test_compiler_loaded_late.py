"""Code that loads torch's compiler within a watched block, or within a measured model: it runs eagerly, so that its ops are seen.

Nothing heavy is imported before: a first watch and a first measurement need neither the compiler nor FSDP, which takes half a second with sympy.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import sys, warnings
import torch
import precheck

with precheck.watch():
    precheck.measure(torch.nn.Linear(2, 2), torch.ones(1, 2))
assert not {"sympy", "torch.distributed.fsdp"} & set(sys.modules)

from torch.nn.attention.flex_attention import flex_attention

warnings.simplefilter("ignore")
assert "torch._dynamo" not in sys.modules
compile = torch.compile
x = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
"""
WATCHED = """
def errors(dtype):
    def kept(score, batch, head, place, seen):
        far = torch.arange(300).to(dtype)[place - seen + 290].float()  # bfloat16 loses every second number above 256
        return score - 0.1 * far

    with precheck.watch() as report:
        flex_attention(x, x, x, score_mod=kept).sum()
    return report.errors
"""
MEASURED = """
class Attention(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.inside = dtype, torch.nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        x = self.inside(x)
        far = torch.arange(300).to(self.dtype).float().sin().sum()
        return flex_attention(x, x, x, score_mod=lambda score, *places: score + far)

def errors(dtype):
    return precheck.measure(Attention(dtype), x.float(), precision="bf16-mixed").errors
"""
END = """
print([each.rule for each in errors(torch.bfloat16)], [each.rule for each in errors(torch.float32)])
assert "torch._dynamo" in sys.modules
assert compile is torch.compile
"""


@pytest.mark.parametrize("text", [WATCHED, MEASURED], ids=["watched", "measured"])
def test_its_ops_are_seen(text: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + text + END], capture_output=True, text=True, check=False)
    assert done.stdout == "['integer-rounding'] []\n", done.stdout + done.stderr

"""The second batch of quantised layers, frozen before precheck was run on them."""

from __future__ import annotations

import re

import pytest
import torch
from float8_by_hand import normal
from layers_by_hand import model
from second_layers import FAULTS, KINDS, Mixed
from torch import nn

import precheck

MISSED = {
    "order ignored": "the scales of groups are those of other columns, without a pattern in rows, columns or groups of neighbours",
}
SAID = {
    "sign extension": "its scales are wrong", "group size": "its scales are wrong: .* groups of 64 columns",
    "bias in eight bits": "the bias that it adds is off by 100%", "outliers twice": "the kernel, or the scales of its inputs",
}  # fmt: skip

def quantised(fault: str, made: str) -> precheck.Report:
    """Of a model whose first layer has that fault, or is of the same kind without one."""
    kind, whole = KINDS[fault], model()
    outliers = torch.where(torch.arange(128) % 61 == 5, 20.0, 1.0) if kind is Mixed else 1.0
    return precheck.quantised(model(), nn.Sequential(kind(whole[0], made), whole[1], kind(whole[2])), normal(64, 128, seed=3) * outliers)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_layers_fault_is_found_and_its_twin_is_not_accused(fault: str) -> None:
    assert not quantised(fault, "").findings
    errors = quantised(fault, fault).errors
    if fault in MISSED:
        assert not errors
        return
    assert {error.module for error in errors} == {"0"}
    assert any(re.search(SAID[fault], error.message) for error in errors)

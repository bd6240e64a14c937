"""Healthy models under every precision, from several seeds: no errors. PRECHECK_SEEDS=20 runs the long form."""

from __future__ import annotations

import os
from typing import Any

import pytest
from registry import NEEDS, case

import precheck

SEEDS = int(os.environ.get("PRECHECK_SEEDS", "2"))
TRAINED = ("bf16-mixed", "16-mixed", "bf16-master")  # under true bfloat16 AdamW's updates are lost, which is no false alarm
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "bf16-master", "16-mixed", "tf32", "fp8-e4m3-mixed")


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [name for name in NEEDS if name != "sentence_encoder"])
def test_a_healthy_model_has_no_errors(name: str, precision: str, seed: int) -> None:
    it = case(name, seed)
    steps: dict[str, Any] = {"optimizer": it.optimizer, "steps": 3} if precision in TRAINED else {}
    report = precheck.measure(it.model, it.inputs, precision=precision, loss=it.loss, seed=seed, **steps)
    assert report.errors == [], report.summary()

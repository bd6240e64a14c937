"""Real models against their goldens, as a user of precheck would write it. Run with --precision=bf16, or any other."""

from __future__ import annotations

import pytest
from registry import NEEDS, case

from precheck.plugin.checks import CheckPrecision

MODELS = list(NEEDS)


@pytest.mark.precision("32-true", "bf16-mixed", "bf16-true", "16-mixed")
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients(check_precision: CheckPrecision, name: str) -> None:
    it = case(name)
    check_precision(it.model, it.inputs, loss=it.loss)


@pytest.mark.precision("32-true", "bf16-mixed", "16-mixed", "bf16-master")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sentence_encoder"])
def test_three_steps(check_precision: CheckPrecision, name: str) -> None:
    it = case(name)
    check_precision(it.model, it.inputs, loss=it.loss, optimizer=it.optimizer, steps=3)

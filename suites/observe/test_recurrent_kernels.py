"""A processor without a low-precision LSTM in oneDNN: torch raises there under autocast, and a measurement takes torch's own kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import precheck
from precheck.observe.run import trains_recurrent

OLDER = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
"""As on a processor without AVX-512."""


def test_an_lstm_is_measured_on_an_older_processor() -> None:
    program = """
        import torch, precheck
        torch.manual_seed(0)
        model = torch.nn.LSTM(16, 8, 2)
        for precision in ("bf16-mixed", "16-mixed"):
            report = precheck.measure(model, torch.randn(5, 3, 16), precision=precision, loss=lambda out: out[0].float().square().mean())
            assert not report.errors, (precision, report.summary())
            assert any(row.kind == "parameter-gradient" for row in report.boundaries)
            assert torch.backends.mkldnn.enabled
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=OLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_asking_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever the user has set as default; and neither random numbers nor hooks hear of it."""
    trains_recurrent.cache_clear()
    known = trains_recurrent(torch.bfloat16)
    trains_recurrent.cache_clear()
    called = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    before, dtype = torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert trains_recurrent(torch.bfloat16) is known
    finally:
        torch.set_default_dtype(dtype)
        hook.remove()
    assert torch.equal(torch.get_rng_state(), before)
    assert not called


def test_onednn_is_left_alone_where_nothing_is_recurrent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precheck.observe.run.trains_recurrent", lambda dtype: pytest.fail("asked"))
    model = torch.nn.Linear(4, 4)
    report = precheck.measure(model, torch.randn(2, 4), precision="bf16-mixed", loss=lambda out: out.float().square().mean())
    assert not report.errors


@pytest.mark.parametrize(("calls", "rules"), [(1, []), (2, ["accumulated-drift"])])
def test_only_gradients_of_several_calls_are_added_up_low(calls: int, rules: list[str]) -> None:
    """A GPU runs a call of torch's own recurrent layer in one kernel, which adds up its steps in float32. On a CPU autograd adds them in bfloat16.
    The gradients of several calls are added in bfloat16 on both."""
    torch.manual_seed(0)
    layer, state, outputs = torch.nn.RNN(4, 16, batch_first=True), None, []
    with precheck.watch(layer) as report, torch.autocast("cpu", torch.bfloat16):
        for part in torch.ones(2, 320, 4).chunk(calls, dim=1):
            output, state = layer(part, state)
            outputs.append(output.float())
        torch.cat(outputs, 1).sum().backward()
    assert [error.rule for error in report.errors] == rules, report.summary()

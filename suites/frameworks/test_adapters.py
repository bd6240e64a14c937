"""Models of frameworks under measure() as they come: healthy ones pass in every precision, a fault is named, and every one comes back as it was."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from course import CLASSES, WIDTH, data, line, network
from torch import nn
from torch.nn.functional import cross_entropy

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of

EVERY = pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"])


class Hot(nn.Module):
    """Squares of some hundreds, which float16 does not hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 400 * x
        return (x * x) * 1e-5  # squares


@dataclasses.dataclass
class Case:
    """A model as a framework gives it, and measure()'s arguments."""

    model: nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None
    names: set[str]  # of tensors that a report shows


def squares(out: Any) -> torch.Tensor:
    return (out.float() - 1).square().mean()


def lightning(*, hot: bool = False, forward: bool = False) -> Case:
    pytest.importorskip("lightning", reason="needs lightning: pip install -c constraints.txt -e '.[lightning]'")
    from lightning import LightningModule

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(network(), Hot() if hot else nn.Identity())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, index: int) -> dict[str, torch.Tensor]:
            x, y = batch
            loss = cross_entropy(self(x).float(), y)
            self.log("loss", loss)  # which warns that there is no Trainer, unless precheck takes it
            return {"loss": loss}

    x, y = data()
    names = {"net.0.0", "net.0.3", "net.0.0.weight", "loss"}
    return Case(Classifier(), x, squares, names) if forward else Case(Classifier(), (x, y), None, names)


def accelerated(*, hot: bool = False) -> Case:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install -c constraints.txt -e '.[accelerate]'")
    accelerate.state.AcceleratorState._reset_state(True)
    prepared = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(nn.Sequential(network(), Hot() if hot else nn.Identity()))
    return Case(prepared, data()[0], squares, {"0.0", "0.3", "0.0.weight", "loss"})


def keras_model(*, hot: bool = False) -> Case:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs keras: pip install -c constraints.txt -e '.[keras]'")
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(64, activation="gelu"), keras.layers.LayerNormalization(name="norm"), keras.layers.Dropout(0.1)]
    last = [keras.layers.Lambda(lambda x: (400 * x) * (400 * x) * 1e-5, name="hot")] if hot else []  # keras squares
    out = [keras.layers.Dense(CLASSES), *last, keras.layers.Activation("linear", dtype="float32")]
    model = keras.Sequential([keras.Input((WIDTH,)), *hidden, *out])
    return Case(model, data()[0], squares, {"dense", "norm", "dense_1", "dense.kernel", "norm.gamma", "loss"})


CASES: dict[str, Callable[..., Case]] = {
    "lightning": lightning,
    "lightning-forward": lambda **options: lightning(forward=True, **options),
    "accelerate": accelerated,
    "keras": keras_model,
}
LINES: dict[str, Any] = {"lightning": Hot, "lightning-forward": Hot, "accelerate": Hot}


def held(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(module.__dict__, dict(module.__dict__)) for module in model.modules()]


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@EVERY
def test_a_healthy_model_passes_and_comes_back_as_it_was(name: str, precision: str) -> None:
    case = CASES[name]()
    before, attributes = [(each, each.detach().clone()) for each in case.model.parameters()], held(case.model)
    report = precheck.measure(
        case.model, case.inputs, precision=precision, loss=case.loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.5), steps=2
    )
    assert report.errors == []
    assert case.names <= {row.tensor for row in report.boundaries}
    stored = {row.dtype for row in report.boundaries if row.kind == "output"}
    assert precheck.PRECISIONS[precision].compute.dtype_name in stored
    assert all(now is was and torch.equal(now, values) for now, (was, values) in zip(case.model.parameters(), before, strict=True))
    assert all(now.keys() == was.keys() and all(now[key] is was[key] for key in was) for now, was in attributes)


@pytest.mark.parametrize("precision", ["16-true", "16-mixed"])
def test_an_overflow_is_named_with_the_users_line(name: str, precision: str) -> None:
    case = CASES[name](hot=True)
    report = precheck.measure(case.model, case.inputs, precision=precision, loss=case.loss)
    first = report.errors[0]
    assert first.rule == "overflow", report.summary()
    if name in LINES:
        assert first.source.rpartition("/")[2] == line(LINES[name], "squares")
    else:
        assert first.module == "hot"
        assert Path(first.source.rpartition(":")[0]).name == Path(__file__).name


def test_a_lightning_modules_own_lines_say_how_it_was_called() -> None:
    case = lightning()
    with pytest.raises(ValueError, match="too many values") as raised:
        precheck.measure(case.model, case.inputs[0])
    if sys.version_info >= (3, 11):  # the first with notes
        assert "pass loss=lambda out: ... for its forward" in raised.value.__notes__[-1]


def test_a_module_that_steps_by_itself_is_refused() -> None:
    case = lightning()
    case.model.automatic_optimization = False  # type: ignore[assignment]
    with pytest.raises(precheck.InputError, match=r"steps its optimizers by itself.*put precheck.watch\(\) around trainer.fit"):
        precheck.measure(case.model, case.inputs)


def test_a_training_step_that_returns_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = lightning()
    monkeypatch.setattr(type(case.model), "training_step", lambda self, batch: None)
    with pytest.raises(precheck.InputError, match="training_step returned NoneType; it must return a loss"):
        precheck.measure(case.model, case.inputs)


def test_a_keras_model_that_is_not_built_is_refused() -> None:
    keras_model()
    import keras

    with pytest.raises(precheck.InputError, match=r"is not built: .* call it once, or give it a keras.Input"):
        precheck.measure(keras.Sequential([keras.layers.Dense(4)]), data()[0])


@pytest.mark.parametrize("name", ["lightning", "accelerate", "keras"])
def test_watch_takes_the_model_as_it_comes(name: str) -> None:
    case = CASES[name]()
    module = {"lightning": "net.0.0", "accelerate": "0.0", "keras": "dense"}[name]
    with precheck.watch(case.model, precision="bf16-mixed") as report:
        case.model(data()[0])
    assert module in {row.module for row in report.ops}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_golden_holds_for_a_model_that_is_made_anew(name: str, precision: str, tmp_path: Path) -> None:
    case, golden = CASES[name](), tmp_path / "golden.safetensors"
    refresh(golden, job_of(case.model, case.inputs, loss=case.loss))
    again = CASES[name]()
    report = precheck.check(again.model, again.inputs, golden=golden, precision=precision, loss=again.loss)
    assert report.findings == []


def test_no_framework_is_imported_for_a_model_of_none() -> None:
    code = (
        "import sys, torch, precheck\n"
        "assert not precheck.measure(torch.nn.Linear(4, 4), torch.ones(2, 4)).errors\n"
        "with precheck.watch(): torch.nn.Linear(4, 4).bfloat16()(torch.ones(2, 4).bfloat16())\n"
        "loaded = {'keras', 'lightning', 'pytorch_lightning', 'accelerate', 'transformers', 'peft', 'torchao'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

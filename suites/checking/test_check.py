"""`check`: one file serves every precision; a stale golden is told apart from drift, and a golden never lets a bug pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "bf16-master", "16-mixed", "16-true", "tf32", "fp8-e4m3-mixed")


class Block(nn.Module):
    """A residual block whose attention can be planted with a fault."""

    def __init__(self, *, positions: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.positions = positions
        self.qkv = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        angle = (torch.arange(x.shape[1]).to(self.positions) * 1.1).to(torch.float32)
        turn = torch.cat([angle.cos()[:, None].expand(-1, 16), angle.sin()[:, None].expand(-1, 16)], -1).to(q.dtype)
        scores = (q * turn) @ (k * turn).transpose(-1, -2)
        return x + self.out(scores.softmax(-1).to(v.dtype) @ v)


def model(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), Block(**options), nn.Linear(32, 4))


def inputs() -> torch.Tensor:
    """Of more places than bfloat16 can count, which is 256."""
    return torch.randn(2, 320, 8, generator=torch.Generator().manual_seed(1))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("recorded") / "block.safetensors"
    assert refresh(path, job_of(model(), inputs(), loss=loss, optimizer=sgd, steps=2)).status == "written"
    return path.read_bytes()


@pytest.fixture
def golden(recorded: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "golden" / "block.safetensors"
    path.parent.mkdir()
    path.write_bytes(recorded)
    return path


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_golden_serves_every_precision(golden: Path, precision: str) -> None:
    lossy = precision in ("bf16-true", "16-true")  # SGD at this rate loses updates in true low precision: forward and gradients only
    options: dict[str, Any] = {} if lossy else {"optimizer": sgd, "steps": 2}
    report = precheck.check(model(), inputs(), golden=golden, precision=precision, loss=loss, **options)
    assert report.errors == []
    assert report.precision == precision
    assert report.facts["golden"] == str(golden)
    assert report.boundaries or precision == "64-true"


def test_a_forward_alone_may_be_checked_against_a_golden_that_holds_more(golden: Path) -> None:
    assert precheck.check(model(), inputs(), golden=golden, precision="bf16-mixed").errors == []
    assert precheck.check(model(), inputs(), golden=golden, precision="32-true").errors == []


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_fault_that_both_runs_share_does_not_pass(golden: Path, precision: str) -> None:
    faulty = model(positions=torch.bfloat16)  # positions times frequencies in bfloat16, in the float32 run as well
    report = precheck.check(faulty, inputs(), golden=golden, precision=precision, loss=loss)
    assert [finding.rule for finding in report.errors] == ["accumulated-drift"]
    assert report.errors[0].module == "1"  # the block's own code, which hands it to 1.out
    report.errors[0].message.index(f"of its norm under {precision}, where rounding explains")


@pytest.mark.parametrize(("faulty", "modes"), [(False, [0]), (True, [0, 1])], ids=["healthy", "faulty"])
def test_a_healthy_run_is_looked_at_once_and_plainly(golden: Path, faulty: bool, modes: list[int]) -> None:
    """No mode is asked about its ops. Where something may be amiss it is run again and its decisions are written down, then measured."""
    checked, seen = model(positions=torch.bfloat16 if faulty else torch.float32), []
    checked.register_forward_pre_hook(lambda module, args: seen.append(len(_get_current_dispatch_mode_stack())))
    report = precheck.check(checked, inputs(), golden=golden, precision="bf16-mixed", loss=loss, depth="boundaries")
    assert bool(report.errors) is faulty
    assert seen[: len(modes)] == modes
    assert (len(seen) > 2) is faulty


STALE: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "inputs": (lambda: {"inputs": inputs() + 1e-3}, r"input differs from the recorded values, by 0\.\d+% of its norm$"),
    "inputs that a changed model moved": (
        lambda: {"model": reweighted(), "inputs": inputs() + 1e-3}, r"input differs .* of its norm; the weights differ too: a model that draws more",
    ),
    "shape": (lambda: {"inputs": inputs()[:1]}, r"input has shape \(1, 320, 8\), and \(2, 320, 8\) was recorded"),
    "names": (lambda: {"inputs": {"input": inputs()}}, r"input\[input\] was not among the inputs"),
    "weights": (lambda: {"model": reweighted()}, r"in float32 the output of module 0 moved by .* the weights are not those recorded"),
    "code": (lambda: {"model": recoded()}, r"in float32 the output of 1\.norm moved by .* so the code or a library changed"),
    "another model": (lambda: {"model": nn.Linear(8, 4)}, r"it belongs to another model: .* not in it"),
    "rate": (lambda: {"optimizer": lambda p: torch.optim.SGD(p, lr=0.11)}, r"recorded with SGD .*lr=0\.1 .* steps with SGD .*lr=0\.11"),
    "steps": (lambda: {"steps": 3}, r"it holds 2 steps, and this check runs 3"),
    "seed": (lambda: {"seed": 1}, r"recorded with seed=0, and this check has seed=1"),
}


class Particular(nn.Module):
    """Does not run under some precisions, as a model whose ops have no kernel for them."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused, self.up = refused, nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how = "bf16-mixed" if torch.is_autocast_enabled("cpu") else "bf16-true" if x.dtype is torch.bfloat16 else ""
        if how in self.refused:
            raise RuntimeError(f"not implemented under {how}")
        return self.up(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("refused", [("bf16-true",), ("bf16-mixed",), ("bf16-mixed", "bf16-true")], ids=" ".join)
def test_a_golden_without_floors_is_not_stale_for_it(tmp_path: Path, refused: tuple[str, ...]) -> None:
    """Its float32 values still match, and a change of the model is still noticed."""
    torch.manual_seed(0)
    particular, path = Particular(*refused), tmp_path / "particular.safetensors"
    assert refresh(path, job_of(particular, inputs())).status == "written"
    assert precheck.check(particular, inputs(), golden=path, precision="32-true").errors == []
    with torch.no_grad():
        particular.up.weight[0, 0] += 0.01
    report = precheck.check(particular, inputs(), golden=path, precision="32-true")
    assert [finding.rule for finding in report.errors] == ["golden-stale"]
    report.errors[0].message.index("the weights are not those recorded")


def reweighted(by: float = 1e-4) -> nn.Module:
    changed = model()
    with torch.no_grad():
        changed[0].weight.add_(by)
    return changed


def recoded() -> nn.Module:
    changed = model()
    changed[1].norm.eps = 1e-2
    return changed


@pytest.mark.parametrize("what", STALE)
def test_what_makes_a_golden_stale_is_named(golden: Path, what: str) -> None:
    change, message = STALE[what]
    arguments = {"model": model(), "inputs": inputs(), "loss": loss, "optimizer": sgd, "steps": 2} | change()
    report = precheck.check(arguments.pop("model"), arguments.pop("inputs"), golden=golden, precision="32-true", **arguments)
    assert [finding.rule for finding in report.errors] == ["golden-stale"]
    report.errors[0].message.index("the golden is out of date: ")
    assert re.search(message, report.errors[0].message), report.errors[0].message


@pytest.mark.parametrize("what", ["inputs", "weights"])
def test_a_golden_that_another_torch_recorded_says_so_when_it_is_stale(golden: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = torch.__version__.partition("+")[0]

    def message() -> str:
        arguments = {"model": model(), "inputs": inputs(), "loss": loss, "optimizer": sgd, "steps": 2} | STALE[what][0]()
        report = precheck.check(arguments.pop("model"), arguments.pop("inputs"), golden=golden, precision="32-true", **arguments)
        return report.errors[0].message

    assert "recorded under torch" not in message()
    monkeypatch.setattr(torch, "__version__", "9.9.0+cpu")
    assert message().endswith(f"(it was recorded under torch {recorded}, and this is torch 9.9.0)")


@pytest.mark.parametrize("what", ["inputs", "weights", "code", "another model"])
def test_a_stale_golden_is_noticed_under_a_low_precision_too(golden: Path, what: str) -> None:
    change = STALE[what][0] if what != "weights" else lambda: {"model": reweighted(0.05)}  # 1e-4 is within bfloat16's rounding
    arguments = {"model": model(), "inputs": inputs()} | change()
    report = precheck.check(arguments["model"], arguments["inputs"], golden=golden, precision="bf16-mixed", loss=loss)
    assert [finding.rule for finding in report.errors] == ["golden-stale"]


@pytest.mark.parametrize("spoil", ["zeroed", "shuffled", "scaled", "noisy"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_spoilt_outputs_are_caught(golden: Path, spoil: str, precision: str) -> None:
    spoilt = model()
    how: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "zeroed": torch.zeros_like,
        "shuffled": lambda out: out.flip(1),
        "scaled": lambda out: out * 1.1,
        "noisy": lambda out: out + 0.1 * out.std() * torch.randn(out.shape, generator=torch.Generator().manual_seed(0)),
    }
    spoilt[0].register_forward_hook(lambda module, args, out: how[spoil](out))
    assert precheck.check(spoilt, inputs(), golden=golden, precision=precision, loss=loss).errors


def test_a_missing_golden_is_an_error_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(precheck.GoldenMissing, match=r"nothing\.safetensors"):
        precheck.check(model(), inputs(), golden=tmp_path / "nothing.safetensors")
    assert list(tmp_path.iterdir()) == []


class Routed(nn.Module):
    """Two experts that disagree, and a router whose ties bfloat16 breaks its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        choice = self.gate(x).argmax(-1, keepdim=True)
        return torch.where(choice == 0, self.experts[0](x), self.experts[1](x))


def test_flipped_routing_is_a_note_not_an_error(tmp_path: Path) -> None:
    torch.manual_seed(0)
    routed, path = Routed(), tmp_path / "routed.safetensors"
    x = torch.randn(4000, 8, generator=torch.Generator().manual_seed(1))
    refresh(path, job_of(routed, x))
    report = precheck.check(routed, x, golden=path, precision="bf16-true")
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("golden-mismatch", "note")], report.summary()
    said = r"differs from its golden by .* times .* under bf16-true .* takes this run's decisions, of which \d+ differ from float32's own"
    assert re.search(said, report.findings[0].message)


def test_what_passes_a_relu_is_a_decision_too(tmp_path: Path) -> None:
    """The README's model. Single numbers pass its ReLU in bfloat16 alone."""
    torch.manual_seed(0)
    model, path = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True), tmp_path / "layer.safetensors"
    given = {"inputs": torch.randn(8, 16, 64), "loss": lambda out: out.exp().mean()}
    refresh(path, job_of(model, **given))
    report = precheck.check(model, golden=path, precision="bf16-mixed", **given)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("golden-mismatch", "note")], report.summary()
    assert report.findings[0].message.endswith("takes this run's decisions, such as which numbers pass a ReLU, and its rounded buffers")

"""`precheck.record`: what a run gave, in a file that `compare` takes for the other of two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder import decoder, language_loss, tokens

import precheck

HERE = Path(__file__).parent


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_elsewhere_is_compared_by_its_file(tmp_path: Path, precision: str) -> None:
    given = tokens()
    file = precheck.record(tmp_path / "new" / "run.safetensors", decoder(attention="einsum"), given, loss=language_loss(given), precision=precision)
    report = precheck.compare(decoder(), str(file), given, loss=language_loss(given), precision=precision)
    assert report.verdict == "rounding", report.summary()
    assert precision in report.facts["recording"]
    assert len(report.boundaries) == 30
    same = precheck.record(tmp_path / "same.safetensors", decoder(), given, loss=language_loss(given), precision=precision)
    assert precheck.compare(decoder(), same, given, loss=language_loss(given), precision=precision).verdict == "bitwise"
    broken = precheck.record(tmp_path / "off.safetensors", decoder(broken={"swapped": True}), given, loss=language_loss(given), precision=precision)
    off = precheck.compare(decoder(), broken, given, loss=language_loss(given), precision=precision)
    assert off.verdict == "different"
    assert off.errors[0].message.startswith("output: other computes something else: it differs from model's exact result by ")
    assert "it differs from model's exact result by " in off.errors[0].message


def test_large_tensors_are_sketches(tmp_path: Path) -> None:
    given = tokens()
    for ways, verdict in (({"attention": "einsum"}, "rounding"), ({"broken": {"swapped": True}}, "different")):
        file = precheck.record(tmp_path / "run.safetensors", decoder(**ways), given, loss=language_loss(given), whole=0)
        assert file.stat().st_size < 90_000  # 30 tensors, and what passes between modules
        assert precheck.compare(decoder(), file, given, loss=language_loss(given)).verdict == verdict
    same = precheck.record(tmp_path / "run.safetensors", decoder(), given, whole=0)
    assert precheck.compare(decoder(), same, given).verdict == "bitwise"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    ("broken", "module"),
    [({"swapped": True}, "layers.1.feeding"), ({"attention": "written", "scale": 1.0}, "layers.1.attention")],
)
def test_a_recording_tells_the_first_module_that_differs(tmp_path: Path, precision: str, broken: dict[str, Any], module: str) -> None:
    """By sketches of what its modules were given and returned, though the file holds none of these tensors."""
    given = tokens()
    file = precheck.record(tmp_path / "run.safetensors", decoder(broken=broken), given, loss=language_loss(given), precision=precision)
    found = precheck.compare(decoder(), file, given, loss=language_loss(given), precision=precision).errors[0]
    assert found.module == module, found.message
    assert found.message.endswith(f"; they first differ in {module}")


def test_a_recording_of_a_model_whose_code_calls_its_parts_wrongly_names_no_part(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self, late: bool) -> None:
            super().__init__()
            self.late, self.first, self.last = late, torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            return self.last(x.roll(1, 0) if self.late else x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, other, x = Net(False), Net(True), torch.randn(5, 8)
    other.load_state_dict(model.state_dict())
    found = precheck.compare(model, precheck.record(tmp_path / "run.safetensors", other, x), x).errors[0]
    assert (found.module, found.message.endswith("; they first differ in the model's own code")) == ("", True)


def test_results_of_modules_of_another_engine_are_recorded_by_name(tmp_path: Path) -> None:
    """They are not judged themselves. Names are those of `match`, and what a layer makes up for is passed over."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 8)
    first, second = model[0](x).detach(), model[:2](x).detach() * 1.01
    given = {"output": model[2](second).detach(), "module:dense": first, "module:act": second}
    file = precheck.record(tmp_path / "engine.safetensors", given)
    found = precheck.compare(model, file, x, match={"dense": "0", "act": "1"}).errors[0]
    assert (found.module, found.message.endswith("; they first differ in act")) == ("act", True)
    right = precheck.record(tmp_path / "engine.safetensors", {"output": model(x).detach(), "module:dense": first + 1})
    assert precheck.compare(model, right, x, match={"dense": "0"}).verdict == "bitwise"


def test_tensors_of_another_engine_are_recorded_by_name(tmp_path: Path) -> None:
    net, x = torch.nn.Linear(8, 3), torch.randn(5, 8)
    y = (x.double() @ net.weight.detach().double().t() + net.bias.detach().double()).float()
    given = {"output": y.numpy(), "gradient:kernel": torch.ones(5, 3).t() @ x, "loss": y.sum()}
    file = precheck.record(tmp_path / "engine.safetensors", given)
    report = precheck.compare(net, file, x, loss=lambda out: out.sum(), match={"kernel": "weight"})
    assert not report.errors, report.summary()
    assert {row.kind for row in report.boundaries} == {"output", "loss", "parameter-gradient"}
    wrong = precheck.record(tmp_path / "engine.safetensors", {"output": y * 1.001, "gradient:none": y})
    report = precheck.compare(net, wrong, x)
    assert report.verdict == "different"
    assert report.facts["not_compared"] == ["parameter-gradient none, which only the recording has"]


def test_another_process_gives_the_same_bits(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\nimport precheck\nfrom decoder import *\n"
        f"precheck.record({str(tmp_path / 'run.safetensors')!r}, decoder(), tokens(), loss=language_loss(tokens()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    report = precheck.compare(decoder(), tmp_path / "run.safetensors", tokens(), loss=language_loss(tokens()))
    assert report.verdict == "bitwise"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run.json", torch.nn.Linear(2, 2), torch.ones(1, 2)), "a recording ends in .safetensors"),
        (("run.safetensors", {"logits": torch.ones(2)}), "'logits' is no name of a recorded tensor; there are output"),
        (("run.safetensors", {"output": object()}), "output is an object, which is no tensor"),
        (("run.safetensors", {}), "nothing to record"),
        (("run.safetensors", {"output": torch.ones(2)}, torch.ones(2)), "leave inputs and loss out"),
        (("run.safetensors", 3, torch.ones(2)), "model is an int"),
    ],
)
def test_what_cannot_be_recorded(tmp_path: Path, arguments: tuple[Any, ...], said: str) -> None:
    name, *rest = arguments
    with pytest.raises(precheck.InputError, match=re.escape(said)):
        precheck.record(tmp_path / name, *rest)
    assert not list(tmp_path.iterdir())


def test_the_file_comes_first(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    with pytest.raises(precheck.InputError, match="path is a Linear; pass the file first"):
        precheck.record(net, torch.ones(1, 2), tmp_path / "run.safetensors")  # type: ignore[arg-type]


def test_what_is_no_recording(tmp_path: Path) -> None:
    net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(precheck.InputError, match="is not there; write it with"):
        precheck.compare(net, tmp_path / "none.safetensors", x)
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(precheck.InputError, match=r"is no recording of precheck\.record"):
        precheck.compare(net, tmp_path / "text.safetensors", x)


CODE = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
x = torch.linspace(-1, 1, 40).view(5, 8)


def batch():
    return x


def loss(out):
    return out.square().mean()
"""


def test_the_command_writes_what_the_verb_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from precheck.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "recorded_code.py").write_text(CODE)
    assert main(["record", "a.safetensors", "recorded_code.py:net", "--inputs", "recorded_code.py:batch", "--loss", "recorded_code:loss"]) == 0
    assert "precheck.compare(model, 'a.safetensors', inputs)" in capsys.readouterr().out
    import recorded_code as code

    report = precheck.compare(code.net, "a.safetensors", code.x, loss=code.loss)
    assert report.verdict == "bitwise"
    assert {row.kind for row in report.boundaries} == {"output", "loss", "parameter-gradient"}
    for arguments, said in (
        (["a.safetensors", "recorded_code:nets", "--inputs", "recorded_code:x"], "recorded_code has no 'nets'; it has"),
        (["a.safetensors", "recorded_code:net", "--inputs", "recorded_code:x()"], "is a Tensor, which cannot be called; leave () out"),
        (["a.safetensors", "recorded_code:batch", "--inputs", "recorded_code:x"], "without arguments; write 'recorded_code:batch()' for what it"),
        (["a.bin", "recorded_code:net", "--inputs", "recorded_code:x"], "a recording ends in .safetensors"),
        (["a.safetensors", "recorded_code:net", "--inputs", "recorded_code:x", "--precision", "bf17"], "bf17"),
    ):
        assert main(["record", *arguments]) == 2
        assert said in capsys.readouterr().err
    sys.modules.pop("recorded_code")


def test_zeros_are_told_from_a_recording(tmp_path: Path) -> None:
    """What is zero has no noise, and a recording of anything else is no rounding of it. What is zero on paper alone agrees."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    x = torch.randn(12, 8)
    precheck.record(tmp_path / "right.safetensors", model, x, loss=lambda out: out.square().mean())
    assert precheck.compare(model, tmp_path / "right.safetensors", x, loss=lambda out: out.square().mean()).verdict == "bitwise"

    class Zero(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 0

    report = precheck.compare(Zero(), tmp_path / "right.safetensors", x)
    assert report.verdict == "different", report.summary()

    class Summed(torch.nn.Module):
        """The same layers, with a norm by its formulas: the gradient of the first bias is zero on paper, and other noise here."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = model[0](x)
            centred = hidden - hidden.mean(0)
            hidden = centred * (centred.square().mean(0) + 1e-5).rsqrt() * model[1].weight + model[1].bias
            return model[2](hidden)

    precheck.record(tmp_path / "other.safetensors", Summed(), x, loss=lambda out: out.square().mean())
    report = precheck.compare(model, tmp_path / "other.safetensors", x, loss=lambda out: out.square().mean(), match={"layers": ""})
    assert report.verdict == "rounding", report.summary()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_ragged_results_of_modules_are_left_out(tmp_path: Path) -> None:
    class Ragged(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = super().forward(x)
            return torch.nested.as_nested_tensor([made[0], made[1, :2]])

    torch.manual_seed(0)
    model, x = Ragged(4, 3), torch.randn(2, 5, 4)
    assert precheck.compare(model, precheck.record(tmp_path / "run.safetensors", model, x), x).verdict == "bitwise"

"""A counterexample as text, and saved as a test that fails for as long as the model breaks."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hazards import BareSoftmax, NarrowNorm

import precheck
from precheck import Counterexample, InputError
from precheck.goldens.file import read
from precheck.input_search.counterexample import _source
from precheck.strategies import tensors

MODELS = '''
import torch

def bare(x):
    powers = x.exp()
    return powers / powers.sum(-1, keepdim=True)

def make():
    from torch.nn import Module
    class Bare(Module):
        def forward(self, x):
            return bare(x)
    return Bare()

def mended():
    return torch.nn.Softmax(-1)

def drawn():
    return torch.nn.Linear(4, 4)

def loss(out):
    return out.float().square().mean()

number = 3
'''


Function = Callable[[torch.Tensor], torch.Tensor]


def found(model: torch.nn.Module | Function, loss: Function | None = None) -> Counterexample:
    counterexample = precheck.search(model, tensors((2, 4), magnitude=(2**-4, 2**9)), precision="16-true", loss=loss, most=60)
    assert counterexample is not None
    return counterexample


@functools.cache
def found_in_softmax() -> Counterexample:
    return found(BareSoftmax())


def _source_of(inputs: dict[str, torch.Tensor], named: dict[str, str]) -> str:
    return _source(dataclasses.replace(found_in_softmax(), inputs=inputs), named, "test_it")


@pytest.fixture
def models(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of that name to import models from, here and in pytest run inside."""
    name = f"models_of_{pytester.path.name}"
    pytester.makepyfile(**{name: MODELS})
    monkeypatch.syspath_prepend(pytester.path)
    return name


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same for tests that only look at what is refused."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "models_that_are_shared.py").write_text(MODELS, encoding="utf8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "models_that_are_shared"


@pytest.fixture(scope="module")
def broken(shared: str) -> Counterexample:
    return found(__import__(shared).make())


def test_the_text_says_what_broke_where_and_by_which_elements() -> None:
    text = str(found(NarrowNorm(4)))
    lines = text.splitlines()
    assert lines[0].startswith("16-true breaks: accumulated-drift: the model's output: off by")
    assert "by overflow: aten.mul.Tensor at" in lines[1]
    assert "hazards.py:" in lines[1]
    assert "1 element matters:" in lines[2]
    assert lines[-1] == "inputs[0, 0] = 256.0"


def test_a_long_input_is_cut_in_the_text_and_whole_in_the_code() -> None:
    counterexample = dataclasses.replace(found_in_softmax(), inputs=torch.randn(40, 40))
    assert "more lines: .code()" in str(counterexample)
    assert len(str(counterexample).splitlines()) < 30 < len(counterexample.code().splitlines())


def test_a_saved_case_fails_until_the_model_is_mended(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, models: str) -> None:
    make = getattr(__import__(models), "make")  # noqa: B009
    counterexample = found(make())
    golden = counterexample.save(pytester.path / "test_softmax_breaks.py", model=f"{models}:make")
    assert golden == pytester.path / "test_softmax_breaks.safetensors"
    assert read(golden).provenance["loss"] is False
    text = (pytester.path / "test_softmax_breaks.py").read_text(encoding="utf8")
    assert "inputs = torch.zeros(2, 4)" in text
    assert 'precision="16-true"' in text
    assert max(map(len, text.splitlines())) <= 140
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*PrecisionFailure: overflow: the model's output: * elements are NaN in float16 under 16-true*"])

    mended = MODELS.replace("x.exp()", "(x - x.amax(-1, keepdim=True)).exp()")
    (pytester.path / f"{models}.py").write_text(mended, encoding="utf8")
    monkeypatch.delitem(sys.modules, models)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)


def test_functions_that_can_be_imported_need_no_name(pytester: pytest.Pytester, models: str) -> None:
    module = __import__(models)
    counterexample = found(module.bare, loss=module.loss)
    counterexample.save(pytester.path / "test_breaks.py")
    text = (pytester.path / "test_breaks.py").read_text(encoding="utf8")
    assert f"import {models}" in text
    assert f"check({models}.bare, inputs" in text
    assert f"loss={models}.loss" in text
    pytester.runpytest_inprocess("test_breaks.py").assert_outcomes(failed=1)


def test_no_variable_of_the_test_hides_a_module_that_it_needs() -> None:
    name = "models"
    text = _source_of({name: torch.eye(2), "golden": torch.ones(1), "x": torch.ones(1)}, {"model": f"{name}:make()"})
    body = text[text.index("def test_") :]
    assert f"    {name} =" not in body
    assert f"precheck.check({name}.make(), inputs" in body
    assert body.count("    golden =") == 1


def test_nothing_is_written_over(tmp_path: Path, models: str) -> None:
    counterexample = found(__import__(models).bare)
    for name in ("test_it.py", "test_it.safetensors"):
        (tmp_path / name).write_text("mine", encoding="utf8")
        with pytest.raises(InputError, match=rf"{name} is there already, and is not written over"):
            counterexample.save(tmp_path / "test_it.py")
        assert [each.name for each in tmp_path.iterdir() if "test_it" in each.name] == [name]
        assert (tmp_path / name).read_text(encoding="utf8") == "mine"
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("test_it.txt", {}, r"pass the test file to write, as in test_overflow.py"),
        ("test-it.py", {}, r"pass the test file to write"),
        ("test_it.py", {}, r"a Bare has no name to import; pass model=\"package.module:function\""),
        ("test_it.py", {"model": "make"}, r"model='make' names no function of a module; pass it as in model=\"package.module:function\""),
        ("test_it.py", {"model": "{}:nothing"}, r"nothing' cannot be imported: .*has no attribute 'nothing'"),
        ("test_it.py", {"model": "no_such_module:make"}, r"cannot be imported: No module named 'no_such_module'"),
        ("test_it.py", {"model": "{}:number"}, r"number' is an int; pass a function"),
        ("test_it.py", {"model": "{}:mended"}, r"this input does not break \(overflow\) what .*:mended makes"),
        ("nowhere/test_it.py", {"model": "{}:make"}, r"there is no folder .*nowhere"),
    ],
)
def test_what_makes_no_test_is_refused_and_leaves_no_file(
    path: str, arguments: dict[str, str], message: str, tmp_path: Path, shared: str, broken: Counterexample
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=message):
        broken.save(tmp_path / path, **{name: word.format(shared) for name, word in arguments.items()})
    assert sorted(tmp_path.rglob("*")) == before


def test_float32_itself_is_found_out_by_float64_and_has_no_golden(tmp_path: Path) -> None:
    counterexample = precheck.search(BareSoftmax(), tensors((1, 4), magnitude=(1.0, 2**8)), precision="32-true", most=60)
    assert counterexample is not None
    assert counterexample.finding.rule == "nan"  # exp(89) is beyond float32
    with pytest.raises(InputError, match=r"under 32-true a golden says nothing, being float32 itself; put .code\(\) into a test"):
        counterexample.save(tmp_path / "test_it.py", model="a:b")


def test_a_loss_without_a_name_is_asked_for(tmp_path: Path, models: str) -> None:
    module = __import__(models)
    counterexample = found(module.bare, loss=lambda out: out.float().mean())
    with pytest.raises(InputError, match=r'the loss has no name to import; pass loss="package.module:function"'):
        counterexample.save(tmp_path / "test_it.py")
    counterexample.save(tmp_path / "test_it.py", loss=f"{models}:loss")
    assert f"loss={models}.loss" in (tmp_path / "test_it.py").read_text(encoding="utf8")

"""Every block of code and every command of the pages is run by a test: here, or by the tests that a page names as its own."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from carried import INSTALLS, carried_out
from named import ROOT
from walkthrough import Block, blocks

from precheck import comparing_kernels
from precheck.kernels import clock

pytestmark = pytest.mark.usefixtures("forked_python")
PAIR = """
import inspect

import torch
import transformers
import precheck

class Decoder(transformers.GPT2LMHeadModel):
    def decode(self, piece, state):
        name = "cache" if "cache" in inspect.signature(self.forward).parameters else "past_key_values"
        out = self(input_ids=piece, use_cache=True, **{name: state})
        return out.logits, getattr(out, name)

def made():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=64, n_embd=8, n_layer=1, n_head=2, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0)
    return Decoder(config).eval()

original = made()
port = policy = model = decoder = made()
tokens = torch.arange(12).reshape(2, 6)
"""
"""A model that decodes, which docs/pairs.md takes for granted."""
QUANTISED = """
import copy

import torch

import precheck


class Int8(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.codes, self.bias = (layer.weight.detach() / self.scale).round().to(torch.int8), layer.bias.detach()

    def forward(self, x):
        return torch.nn.functional.linear(x, self.codes * self.scale, self.bias)


torch.manual_seed(0)
model, inputs = torch.nn.Sequential(torch.nn.Linear(32, 32)), torch.randn(8, 32)
quantised_model = copy.deepcopy(model)
quantised_model[0] = Int8(model[0])


def loss(out):
    return out.square().mean()
"""
"""A model and its quantised copy, which docs/formats.md takes for granted. By hand: blocks run in this process, and torchao can be imported once."""
SOFTMAX = """
import torch


def my_softmax(input, dim):
    powers = (input - input.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)
"""
"""A kernel of one's own, which docs/kernels.md takes for granted."""
BEFORE = {"docs/pairs.md": PAIR, "docs/formats.md": QUANTISED, "docs/kernels.md": SOFTMAX}
PROJECTS = {"docs/report.md": "first_test"}
"""The example that a page is carried out in."""
HERE = (
    "README.md", "docs/architecture.md", "docs/checking.md", "docs/watch.md", "docs/benchmark.md", "docs/pairs.md", "docs/zero-code.md",
    "docs/known-failures.md", "docs/report.md", "docs/formats.md", "docs/kernels.md", "docs/install.md",
)  # fmt: skip
ELSEWHERE = {
    "docs/tutorial.md": "suites/docs/test_tutorial.py", "docs/field-report.md": "suites/field/test_field.py",
    "docs/search.md": "suites/search/test_docs.py", "docs/recipes/loops.md": "suites/docs/test_loops.py",
    "docs/action.md": "suites/docs/test_action.py", "docs/recipes/pre-commit.md": "suites/docs/test_project_files.py",
    "docs/portability.md": "suites/bench/portability/test_portability.py", "CONTRIBUTING.md": "suites/docs/test_project_files.py",
    **dict.fromkeys((f"docs/recipes/{name}.md" for name in ("github", "gitlab", "nightly", "tox")), "suites/docs/test_ci_recipes.py"),
    **{f"docs/recipes/{name}.md": "suites/frameworks/test_pages.py" for name in ("accelerate", "huggingface", "keras", "lightning", "peft")},
}  # fmt: skip
"""Pages whose blocks other tests run, and which."""
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def runs(block: Block) -> bool:
    """Whether it is code or has commands. Without a kind a block shows text."""
    return block.kind not in ("", "text")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_with_code_is_carried_out_somewhere(name: str) -> None:
    code = [block.line for block in blocks((ROOT / name).read_text(encoding="utf8")) if runs(block)]
    if code and "rules/" not in name:  # suites/report/test_rules.py runs their examples
        assert name in HERE or name in ELSEWHERE, f"{name} has code at lines {code}, and no test is named for it in {Path(__file__).name}"


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_the_tests_named_for_a_page_know_it(name: str, test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf8")
    assert (ROOT / name).is_file()
    assert Path(name).stem in text, f"{test} does not name {name}"


@pytest.mark.parametrize("name", PAGES)
def test_commands_stand_in_blocks_that_are_run(name: str) -> None:
    """A block without a kind is not carried out, so it holds no command; the README's two that install are test_install.py's."""
    plain = [block for block in blocks((ROOT / name).read_text(encoding="utf8")) if block.kind == ""]
    typed = [line for block in plain for line in block.text.splitlines() if re.match(r"(\$ )?(pytest|python3?|pip|git) ", line)]
    assert not [line for line in typed if not (name == "README.md" and line.startswith(INSTALLS))]


def indented(page: str) -> list[str]:
    """Blocks that Markdown takes for code because of their indent alone."""
    plain = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?:(?<=\n\n)|\A) {4}\S.*(?:\n+ {4,}\S.*)*", plain)


@pytest.mark.parametrize("name", [name for name in PAGES if name != "docs/reference/fixtures.md"])
def test_no_code_is_hidden_from_the_tests_by_an_indent(name: str) -> None:
    """Without a fence nothing says what a block is, and nothing runs it. The fixtures' page is made of docstrings; the test below runs its blocks."""
    assert not indented((ROOT / name).read_text(encoding="utf8"))


GIVEN = {
    "test_gan": ("batches = [torch.ones(2)]\nlayer = torch.nn.Linear(2, 2)\n"
                 "def train_discriminator(real): layer(real).sum().backward()\ndef train_generator(): train_discriminator(torch.ones(2))\n"),
    "scaler": "class Generator(torch.nn.Linear):\n    def __init__(self): super().__init__(4, 4)\n",
    "test_port": ("class Named(torch.nn.Module):\n"
                  "    def __init__(self, name):\n        super().__init__()\n        torch.manual_seed(0)\n"
                  "        self.name = name\n        setattr(self, name, torch.nn.Embedding(8, 4))\n"
                  "    def forward(self, x): return types.SimpleNamespace(logits=getattr(self, self.name)(x))\n"
                  "original, port, tokens = Named('layers'), Named('h'), torch.arange(8)\n"),
    "test_decoding": PAIR,
    "test_softmax": SOFTMAX,
}  # fmt: skip
"""What the examples of the fixtures take for granted, by a word of each."""


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel, where a page says no number: what pages show is found in these, and the usual budget is twenty seconds."""
    monkeypatch.setattr(comparing_kernels, "budgeted", lambda seconds, trials: clock.Budget(math.inf, trials or 60))


@pytest.fixture(scope="module")
def transformers_imported(everything_imported: None) -> None:
    """With what it imports late. Some of that can be imported once in a process, so it comes before pytester notes what is imported."""
    if find_spec("transformers") is not None:
        exec(PAIR, {})


@pytest.mark.usefixtures("transformers_imported", "few_trials")
def test_the_examples_of_the_fixtures_run(pytester: pytest.Pytester) -> None:
    if find_spec("transformers") is None:
        pytest.skip("the decoder is one of transformers")
    found = indented((ROOT / "docs" / "reference" / "fixtures.md").read_text(encoding="utf8"))
    assert len(found) == len(GIVEN)
    for block, (word, given) in zip(found, GIVEN.items(), strict=True):
        assert word in block
        code = textwrap.dedent(block)
        if "def test_" not in code:
            code = f"def test_block(watch_precision):\n{textwrap.indent(code, '    ')}"
        (pytester.path / f"test_{word}_example.py").write_text(f"import types\n\nimport torch\n\n{given}\n{code}\n", encoding="utf8")
    unwatched = "-Wignore:this test asks for watch_precision"  # the block that shows the scaler alone
    pytester.runpytest_inprocess("-p", "no:cacheprovider", unwatched, "--precision=bf16").assert_outcomes(passed=len(GIVEN))


@pytest.mark.usefixtures("transformers_imported", "few_trials")
@pytest.mark.parametrize("name", HERE)
def test_a_page_does_what_it_says(name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    if "transformers" in BEFORE.get(name, ""):
        pytest.importorskip("transformers")
    if name in PROJECTS:
        pytest.importorskip("jinja2", reason="the HTML report needs jinja2")
        shutil.copytree(ROOT / "examples" / PROJECTS[name], pytester.path, dirs_exist_ok=True)
    pytester.run("git", "init", "-q")
    carried_out(ROOT / name, pytester, monkeypatch, BEFORE.get(name, ""))


def test_a_failure_that_is_shown_is_the_tutorial_s() -> None:
    """Line by line; the tutorial's own test holds it against what is printed."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf8").splitlines()
    for name in ("README.md", "docs/failures.md"):
        shown = next(block for block in blocks((ROOT / name).read_text(encoding="utf8")) if block.text.startswith("accumulated-drift"))
        lost = [line for line in shown.text.splitlines() if not any(_alike(line, other) for other in tutorial)]
        assert not lost, f"{name} shows what docs/tutorial.md does not: {lost}"


def _alike(line: str, other: str) -> bool:
    return line.replace("… more tensors too", "…") == other.replace("… more tensors too", "…")

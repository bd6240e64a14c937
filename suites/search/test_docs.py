"""docs/search.md: what it shows runs, and says what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hazards import NarrowNorm

PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
ENCODER = '''
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 8)

    def forward(self, ids, mask):
        return self.head(self.table(ids) * mask.unsqueeze(-1)).mean(1)
'''


def block(word: str) -> str:
    """The only block of the page that contains that."""
    found = [text for _, text in BLOCKS if word in text]
    assert len(found) == 1, found
    return found[0]


def test_a_strategy_goes_with_given_and_the_precision_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(block("@given("))
    result = pytester.runpytest_inprocess("--precision=32-true,bf16", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_a_strategy_goes_with_check_precision(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ENCODER + block("check_precision(Encoder(), batch)"))
    pytester.runpytest_inprocess("--golden-refresh=missing").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("--precision=32-true,bf16").assert_outcomes(passed=2)  # the same batch again


def test_the_function_scoped_fixture_under_given_is_refused_by_hypothesis(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from hypothesis import given
        from precheck.strategies import tensors

        @given(tensors((2, 2)))
        def test_it(check_precision, x):
            pass
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FailedHealthCheck*check_precision*"])


def test_the_search_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"model": NarrowNorm()}
    exec(block("print(found)"), names)
    shown, printed = block("16-true breaks: accumulated-drift").strip(), capsys.readouterr().out.strip()
    # numbers, and where the model lies, are of one machine; what is found, the mechanism and the input are not
    plain = [re.sub(r"r = [\d.e+]+|[\d.]+%|at \S+:\d+|after \d+ inputs?", "…", text) for text in (shown, printed)]
    assert plain[0].splitlines() == plain[1].splitlines()
    assert torch.equal(names["found"].inputs.nonzero(), torch.tensor([[0, 0, 0]]))
    package = tmp_path / "mypackage"
    for folder in (package, tmp_path / "tests"):
        folder.mkdir()
    (package / "norm.py").write_text("from hazards import NarrowNorm as make\n", encoding="utf8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(block("found.save("), names)
    assert "256.0" in (tmp_path / "tests" / "test_long_rows.py").read_text(encoding="utf8")
    assert (tmp_path / "tests" / "test_long_rows.safetensors").is_file()


def test_the_page_names_every_layout_and_argument() -> None:
    import inspect

    from precheck import strategies

    for name in ("tensors", "tokens", "padded", "masks"):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}("))
        assert all(argument in row for argument in inspect.signature(getattr(strategies, name)).parameters)
    assert all(f"`{layout}`" in PAGE for layout in strategies.LAYOUTS)

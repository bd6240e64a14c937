"""The pages of docs/recipes on frameworks: the blocks of each run, in order, as one module, and its tests pass."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import precheck
from precheck.precisions import resolve

NEEDS = {
    "lightning": ["lightning"], "accelerate": ["accelerate"], "huggingface": ["transformers", "accelerate"], "keras": ["keras"],
    "peft": ["peft", "transformers"],
}  # fmt: skip
PAGES = [Path(precheck.__file__).parents[1] / "docs" / "recipes" / f"{name}.md" for name in NEEDS]
QUIET = [
    "ignore:.*does not have many workers", r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated",
    "ignore:.*is not being logged", "ignore:The number of training batches",
]  # fmt: skip
"""What Lightning says of a small training."""


def blocks(page: Path) -> str:
    """A page's code, at the lines where the page has it."""
    text = page.read_text(encoding="utf8")
    code = [""] * len(text.splitlines())
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        first = text.count("\n", 0, block.start(1))
        lines = block[1].splitlines()
        code[first : first + len(lines)] = lines
    return "\n".join(code)


def recipes(page: Path) -> dict[str, list[str]]:
    """Its tests, each with the precisions that it says to run it under."""
    found = re.findall(r"^def (test_\w+)\([^)]*\):(?:.*--precision=(\S+))?", blocks(page), re.MULTILINE)
    return {name: named.split(",") if named else [""] for name, named in found}


@pytest.fixture(scope="module")
def modules() -> dict[str, dict[str, Any]]:
    return {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_a_training_and_a_model(page: Path) -> None:
    assert len(recipes(page)) >= 2


@pytest.mark.filterwarnings(*QUIET)
@pytest.mark.parametrize(
    ("page", "name", "precision"),
    [(page, name, precision) for page in PAGES for name, precisions in recipes(page).items() for precision in precisions],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_recipe_is_true(page: Path, name: str, precision: str, modules: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: Any) -> None:
    for needed in NEEDS[page.stem]:
        pytest.importorskip(needed, reason=f"needs {needed}: pip install -c constraints.txt -e '.[frameworks]'")
    monkeypatch.chdir(tmp_path)
    if page.stem not in modules:
        modules[page.stem] = {"__name__": page.stem}
        exec(compile(blocks(page), page.name, "exec"), modules[page.stem])
    test = modules[page.stem][name]
    given: dict[str, Any] = {"tmp_path": tmp_path} | ({"precision": resolve(precision)} if precision else {})
    test(**{argument: given[argument] for argument in inspect.signature(test).parameters})

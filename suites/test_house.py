"""The house itself: imports run one way, files stay small, and starting pytest with the plugin costs no import of torch."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import precheck
from precheck.precisions import ALIASES

PACKAGE = Path(precheck.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "example.py")  # which rules' pages show, as a user writes them
FLOORS = [
    {"formats", "ops", "torch_internals", "files", "words", "arguments", "interrupts", "interpreter"},
    {"precisions", "findings", "recipes", "torch_support"},
    {"observe"},
    {"analysis"},
    {"rules"},
    {"judge"},
    {"goldens", "pairs"},
    {"comparing", "comparing_kernels", "kernels", "varying", "recording", "quantisation", "surveying", "layer_selection", "measurement", "checking"}
    | {"benchmarking", "remedies", "watching", "monitoring", "shared_runs", "selftests", "input_search", "searching", "strategies"},
    {"report", "commands", "watched_script"},
    {"plugin"},
]
UPWARD = {
    ("findings", "report"),  # Report.summary() asks for its words when it is called
    ("findings", "rules"),  # the catalogue is what the rules' folders say, read when it is asked for
}
LONGEST_FILE = 300  # lines


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _floor(name: str) -> int | None:
    return next((height for height, names in enumerate(FLOORS) if name in names), None)


@functools.cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf8"))))


def _imported(path: Path) -> set[str]:
    """The parts of precheck that a file imports, wherever in it."""
    found = set()
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "precheck":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("precheck.")}
    return found


def _above(path: Path) -> set[str]:
    """What a file imports that stands above it."""
    own = _name(path)
    height = _floor(own)
    if height is None:
        return set() if own in {"__init__", "__main__"} else {f"{own}, which stands on no floor: give it one in FLOORS"}
    return {name for name in _imported(path) if (_floor(name) or 0) > height} - {up for low, up in UPWARD if low == own}


def test_imports_run_one_way() -> None:
    assert not {path.relative_to(PACKAGE).as_posix(): above for path in SOURCES if (above := _above(path))}


def test_only_the_plugin_knows_pytest() -> None:
    others = [path for path in SOURCES if _name(path) != "plugin"]
    modules = {(path.name, alias.name) for path in others for node in _nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    assert not [each for each in modules if each[1] in {"pytest", "_pytest", "xdist"}]


def test_files_stay_small() -> None:
    lines = {path.relative_to(PACKAGE).as_posix(): len(path.read_text(encoding="utf8").splitlines()) for path in SOURCES}
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE}


def _private_names_of_torch(nodes: Iterable[ast.AST]) -> set[str]:
    """What a file imports from torch, or reads off its modules, by a name that begins with an underscore."""
    nodes = list(nodes)
    imported = {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch"
        for alias in node.names
    }
    read = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    attributes = "_cdata|_schema|_overloadname|_op_dk|_sequence_nr|_growth_interval|_version|_orig_cls_mro_index"
    private = re.compile(rf"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*|.*\b({attributes})")
    return {name for name in imported | read if private.fullmatch(name)}


def test_private_names_of_torch_are_reached_through_one_file() -> None:
    others = [path for path in SOURCES if path.name != "torch_internals.py"]
    found = {path.relative_to(PACKAGE).as_posix(): names for path in others if (names := _private_names_of_torch(_nodes(path)))}
    assert not found, f"{found}: give them a name in precheck/torch_internals.py, which says what happens where torch has them no more"


def test_a_private_name_of_torch_would_be_found() -> None:
    code = "import torch\nfrom torch.utils import _pytree\ntorch._C._x()\nt.untyped_storage()._cdata\ntorch.float32\nself._y"
    assert _private_names_of_torch(ast.walk(ast.parse(code))) == {"torch.utils._pytree", "torch._C", "torch._C._x", "t.untyped_storage()._cdata"}


def test_a_torch_without_a_name_that_is_needed_is_refused_in_one_sentence() -> None:
    code = (
        "import torch; del torch._C._DisableTorchDispatch\n"
        "try: import precheck.watching\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert f"torch {torch.__version__}" in said
    assert "tested with torch 2.9 to 2.15" in said


def test_public_names_load_and_are_documented() -> None:
    for name in precheck.__all__:
        value = getattr(precheck, name)
        assert name == "__version__" or not callable(value) or value.__doc__, f"precheck.{name} has no docstring"


def test_the_verbs_are_functions_whatever_was_imported_first() -> None:
    code = "import precheck.measurement, precheck.checking; import precheck; assert callable(precheck.measure) and callable(precheck.check)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_watching_and_measuring_do_not_load_torchs_compiler() -> None:
    """Which takes three times as long to import as all that a watch needs."""
    code = (
        "import sys, torch, precheck\n"
        "with precheck.watch(): torch.nn.Linear(2, 2).bfloat16()(torch.ones(2, 2).bfloat16()).sum().backward()\n"
        "precheck.measure(torch.nn.Linear(2, 2), torch.ones(2, 2), loss=torch.sum)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_precheck_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, precheck; assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_pages_name_every_precision_and_alias() -> None:
    page = (PACKAGE.parent / "docs" / "reference" / "precisions.md").read_text(encoding="utf8")
    for name in [*precheck.PRECISIONS, *(alias for alias in ALIASES if not alias.startswith("fp16-"))]:
        assert f"`{name}`" in page


def test_an_unknown_public_name_is_an_attribute_error_that_lists_those_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'measur'.*measure"):
        getattr(precheck, "measur")  # noqa: B009


def test_modules_of_the_suites_have_names_of_their_own() -> None:
    """pytest imports those that are in no package by their file's name alone, so the second of two is never seen."""
    alone = [path for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py" and not (path.parent / "__init__.py").exists()]
    by_path = {"__main__.py", "network.py", "bugs.py"}  # the last two of suites/planted/NETWORK/, which its loader imports by their paths
    twice = [name for name, count in Counter(path.name for path in alone).items() if count > 1 and name not in by_path]
    packages = {path.parent.name for path in Path(__file__).parent.rglob("__init__.py")}  # one called like a module may be found in its place
    assert len(alone) > 100
    assert not twice
    assert not packages & {path.stem for path in alone if path.name not in by_path}


@pytest.mark.parametrize("folder", ["analysis", "observe/shadow", "pairs", "kernels", "."])
def test_the_tour_says_what_each_module_is_for(folder: str) -> None:
    start, end = ("The modules of `precheck/`", "\n\nImports") if folder == "." else (f"## Where in `{folder}`", "\n## ")
    tour = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf8").partition(start)[2].partition(end)[0]
    parts = [path for path in (PACKAGE / folder).rglob("*.py") if path.name != "__init__.py"]
    files = {path.stem for path in parts if folder != "." or path.parent == PACKAGE}
    folders = {path.parent.relative_to(PACKAGE / folder).as_posix() for path in parts if folder != "."} - {"."}
    assert set(re.findall(r"`([\w/]+)`", tour)) - {"analysis", "observe/shadow", "Operation", "Finding", "Report"} == files | folders

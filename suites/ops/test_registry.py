"""The registry as a table: its names are torch's, its rows agree with themselves, and each fact is held against torch on some call."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch_calls import Calls

from precheck import ops

ELSEWHERE = {
    "set", "resize", "resize_as", "is_same_size", "sym_size", "sym_stride", "record_stream", "_has_same_storage_numel", "_version", "_reshape_alias",
    "cudnn_batch_norm", "miopen_batch_norm", "_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward",
    "mkldnn_convolution", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
    "_amp_update_scale", "_amp_foreach_non_finite_check_and_unscale",
}  # fmt: skip
"""Ops that run on a GPU or in float32 alone, are a scaler's, ask about a form, or are derivatives of a kernel that hands its bytes on."""


NEWER = {"_c10d_functional::reduce_scatter_tensor_out", "_c10d_functional::_wrap_tensor_autograd"}
"""Ops that torch 2.9, the oldest that is supported, does not have yet."""


@pytest.mark.parametrize("name", ops.REGISTRY)
def test_every_name_is_an_op_of_torch(name: str) -> None:
    import torch.distributed
    import torch.distributed._functional_collectives

    row = ops.REGISTRY[name]
    if row.across and not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    if name in NEWER and torch.__version__.startswith("2.9."):
        pytest.skip("torch 2.9 does not have it yet")
    namespace, bare = getattr(torch.ops, row.library), name.rpartition("::")[2]
    assert any(hasattr(namespace, packet) for packet in (bare, f"{bare}_")), f"torch {torch.__version__} has neither {name} nor {name}_"


def test_the_registry_needs_no_torch() -> None:
    code = "import sys, precheck.ops; assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_are_base_names() -> None:
    wrong = [name for name in ops.REGISTRY if ops.base_name(name) != name]
    assert not wrong, f"{wrong} would never be looked up"


def test_no_name_has_two_rows() -> None:
    from precheck.ops import registry

    names = [row.name for row in registry._ROWS]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


def test_a_name_in_place_or_of_lists_is_the_same_op() -> None:
    assert [ops.base_name(packet) for packet in ("mul", "mul_", "_foreach_mul_", "__and__", "_softmax")] == ["mul", "mul", "mul", "__and", "_softmax"]


@pytest.mark.parametrize("law", sorted({row.law for row in ops.REGISTRY.values()} - {""}))
def test_laws_can_be_read(law: str) -> None:
    assert ops.terms(law, "ab")


def test_the_terms_of_a_law() -> None:
    assert ops.terms("a + b/c") == [{"a": 1}, {"b": 1, "c": -1}]
    assert ops.terms("a^-0.5") == [{"a": -0.5}]
    assert ops.terms("a*b + c") == [{"a": 1, "b": 1}, {"c": 1}]
    assert ops.terms("a + ...", "abc") == [{"a": 1}, {"b": 1}, {"c": 1}]
    assert ops.terms("") == []
    with pytest.raises(ValueError, match=re.escape("'a-b' is no term of a law, in 'a-b'")):
        ops.terms("a-b")


def test_nearly_every_row_is_held_against_calls(calls: Calls) -> None:
    unseen = {name for name, row in ops.REGISTRY.items() if row.library == "aten" and not calls.get(name)}
    assert unseen <= ELSEWHERE, f"no call of {sorted(unseen - ELSEWHERE)} is known; give one in conftest.py"


TABLES = {
    "precheck/torch_support/autocast.py": "CUDA's policy, which op runs in which dtype",
    "precheck/observe/shadow/replaying/attention.py": "definitions of kernels",
}
"""Files outside the registry that may list ops, and what of these they say."""


def listed(tree: ast.AST) -> list[list[str]]:
    """Sets, tuples and lists of three or more strings, and keys of dictionaries, all of which are ops that the registry knows."""
    found = []
    for node in ast.walk(tree):
        parts = node.elts if isinstance(node, (ast.Set, ast.Tuple, ast.List)) else node.keys if isinstance(node, ast.Dict) else []
        names = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if len(names) >= 3 and all(ops.base_name(name) in ops.REGISTRY for name in names):
            found.append(names)
    return found


def test_no_other_file_keeps_a_table_of_ops() -> None:
    package = Path(ops.__file__).parent.parent
    for path in package.rglob("*.py"):
        place = path.relative_to(package.parent).as_posix()
        if not place.startswith("precheck/ops/") and place not in TABLES:
            found = listed(ast.parse(path.read_text(encoding="utf8")))
            assert not found, f"{place} lists {found[0]}: say in precheck/ops what is true of these, and ask for it by name"


def test_a_table_of_ops_would_be_found() -> None:
    assert listed(ast.parse('SUMS = {"add", "sub", "rsub"}')) == [["add", "sub", "rsub"]]
    assert not listed(ast.parse('PHASES = ("forward", "data", "add")'))


def test_queries_are_of_ops_that_are_known() -> None:
    other = {"REGISTRY", "VECTORS", "ADDING_INSIDE", "ELIMINATING", "REPORTING", "REFUSING"}  # two have parts of names, two torch's own names
    other |= {"UNEVEN"}  # has a derivative that no row describes
    for query in (name for name in ops.__all__ if name.isupper() and name not in other):
        members = getattr(ops, query)
        assert members, f"{query} is empty"
        assert set(members) <= set(ops.REGISTRY), f"{query} has {set(members) - set(ops.REGISTRY)}, which no row describes"


def test_no_set_of_ops_is_defined_twice() -> None:
    tree = ast.parse(Path(str(ops.__file__)).read_text(encoding="utf8"))
    names = [target.id for line in tree.body if isinstance(line, ast.Assign) for target in line.targets if isinstance(target, ast.Name)]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}

"""A session of ONNX Runtime as one of two."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

import precheck

runtime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


def session(first: nn.Linear, last: nn.Linear, act: str) -> Any:
    """A graph of two linear layers, with an activation between."""
    held = {f"{place}{kind}": numpy.asarray(getattr(layer, kind).detach())
            for place, layer in enumerate((first, last)) for kind in ("weight", "bias")}  # fmt: skip
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "0weight", "0bias"], ["hidden"], transB=1),
        onnx.helper.make_node(act, ["hidden"], ["opened"]),
        onnx.helper.make_node("Gemm", ["opened", "1weight", "1bias"], ["y"], transB=1),
    ]
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes, "net", [onnx.helper.make_tensor_value_info("x", floats, [5, 8])], [onnx.helper.make_tensor_value_info("y", floats, [5, 4])],
        [onnx.numpy_helper.from_array(value, name) for name, value in held.items()],
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_graph_is_judged_with_float32_for_the_exact_side() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)), torch.randn(5, 8)
    report = precheck.compare(model, session(model[0], model[2], "Tanh"), x)
    assert report.verdict in ("bitwise", "rounding"), report.summary()
    off = precheck.compare(model, session(model[0], model[2], "Sigmoid"), x)
    assert off.verdict == "different", off.summary()
    assert off.facts["exact"].startswith("float32: float64 is refused (TypeError: an ONNX graph computes in its own formats)")


def test_a_graph_in_float32_is_not_asked_for_float64() -> None:
    """Its rounding would pass for another function."""
    model, tokens = nn.Sequential(nn.Embedding(9, 4), nn.Tanh()), torch.arange(5)
    graph = looked_up(model[0].weight.detach())
    for pair in ((model, graph), (graph, model)):
        with pytest.raises(precheck.InputError, match="an ONNX graph computes in its own formats, here float32 or lower; pass precision='32-true'"):
            precheck.compare(*pair, tokens, precision="64-true")


def test_a_graph_says_what_it_takes() -> None:
    made = session(nn.Linear(8, 32), nn.Linear(32, 4), "Tanh")
    with pytest.raises(TypeError, match="the ONNX graph takes x; it was given wrong"):
        precheck.compare(lambda **given: given["wrong"], made, {"wrong": torch.randn(5, 8)})


def looked_up(table: torch.Tensor) -> Any:
    """A graph whose inputs are whole numbers: it looks up rows of a table and takes their tanh."""
    nodes = [onnx.helper.make_node("Gather", ["table", "tokens"], ["rows"]), onnx.helper.make_node("Tanh", ["rows"], ["y"])]
    graph = onnx.helper.make_graph(
        nodes, "net", [onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, [5])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [5, 4])], [onnx.numpy_helper.from_array(table.numpy(), "table")],
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_graph_of_whole_numbers_is_not_taken_for_an_exact_run() -> None:
    """No input says that it is asked for float64, and it would give the results of float32."""
    torch.manual_seed(0)
    model, tokens = nn.Sequential(nn.Embedding(9, 4), nn.Tanh()), torch.arange(5)
    table = model[0].weight.detach()
    report = precheck.compare(model, looked_up(table), tokens)
    assert report.verdict in ("bitwise", "rounding"), report.summary()
    off = precheck.compare(model, looked_up(table * 1.01), tokens)
    assert off.verdict == "different", off.summary()
    assert off.facts["exact"] == "float32: float64 is refused (TypeError: an ONNX graph computes in its own formats)"

"""What frameworks say their precision is, said by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precheck.precisions import PrecisionError, resolve


def word(name: str) -> str:
    return resolve(name).name


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU", r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated")
@pytest.mark.parametrize(
    ("said", "name"),
    [("32-true", "32-true"), (32, "32-true"), ("64-true", "64-true"), ("bf16-mixed", "bf16-mixed"), ("bf16-true", "bf16-true"),
     ("16-true", "16-true"), ("16-mixed", "bf16-mixed")],
)  # fmt: skip
def test_lightnings_trainer(said: Any, name: str) -> None:
    """What it settles on: on a CPU 16-mixed becomes bf16-mixed."""
    lightning = pytest.importorskip("lightning", reason="needs lightning: pip install -c constraints.txt -e '.[lightning]'")
    trainer = lightning.Trainer(accelerator="cpu", precision=said, logger=False, enable_checkpointing=False)
    assert resolve(trainer).name == name


@pytest.mark.parametrize(("said", "name"), [("no", "32-true"), ("bf16", "bf16-mixed"), ("fp16", "16-mixed")])
def test_accelerates_words_and_accelerator(said: str, name: str) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install -c constraints.txt -e '.[accelerate]'")
    accelerate.state.AcceleratorState._reset_state(True)
    assert resolve(accelerate.Accelerator(mixed_precision=said, cpu=True)).name == word(said) == name


@pytest.mark.parametrize(("said", "name"), [({}, "32-true"), ({"bf16": True}, "bf16-mixed"), ({"fp16": True}, "16-mixed")])
def test_transformers_arguments(said: dict[str, bool], name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -c constraints.txt -e '.[huggingface]'")
    pytest.importorskip("accelerate", reason="TrainingArguments need accelerate: pip install -c constraints.txt -e '.[huggingface]'")
    assert resolve(transformers.TrainingArguments(str(tmp_path), use_cpu=True, **said)).name == name


@pytest.mark.parametrize(
    ("said", "name"), [("float32", "32-true"), ("float64", "64-true"), ("mixed_bfloat16", "bf16-mixed"), ("mixed_float16", "16-mixed")]
)
def test_keras_policies(said: str, name: str) -> None:
    keras = pytest.importorskip("keras", reason="needs keras: pip install -c constraints.txt -e '.[keras]'")
    assert resolve(keras.dtype_policies.DTypePolicy(said)).name == word(said) == name


@pytest.mark.parametrize("said", ["bfloat16", "float16"])
def test_keras_policies_that_mean_two_things_here(said: str) -> None:
    keras = pytest.importorskip("keras", reason="needs keras: pip install -c constraints.txt -e '.[keras]'")
    with pytest.raises(PrecisionError, match="means two things"):
        resolve(keras.dtype_policies.DTypePolicy(said))

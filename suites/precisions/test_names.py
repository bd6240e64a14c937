"""The vocabulary: every name and alias means one precision, and what means two or none is refused with what to type instead."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

import precheck
from precheck.precisions import ALIASES, AMBIGUOUS, DIALECTS, PRECISIONS, Precision, PrecisionError, resolve, resolve_all
from precheck.recipes import RECIPES

# name: compute dtype, stored dtype, autocasts, has a loss scale, steps on float32 copies; from Lightning's table and design section 2
MEANINGS = {
    "32-true": (torch.float32, torch.float32, False, False, False),
    "64-true": (torch.float64, torch.float64, False, False, False),
    "bf16-mixed": (torch.bfloat16, torch.float32, True, False, False),
    "bf16-true": (torch.bfloat16, torch.bfloat16, False, False, False),
    "bf16-master": (torch.bfloat16, torch.bfloat16, False, False, True),
    "16-mixed": (torch.float16, torch.float32, True, True, False),
    "16-true": (torch.float16, torch.float16, False, False, False),
    "tf32": (torch.float32, torch.float32, False, False, False),
    "fp8-e4m3-mixed": (torch.bfloat16, torch.float32, True, False, False),
    **dict.fromkeys(RECIPES, (torch.bfloat16, torch.float32, True, False, False)),
}


def test_the_table_of_meanings_is_complete() -> None:
    assert set(MEANINGS) == set(PRECISIONS)


@pytest.mark.parametrize("name", MEANINGS)
def test_a_name_means_what_lightning_means_by_it(name: str) -> None:
    precision = resolve(name)
    assert precision.name == str(precision) == name
    meaning = (precision.compute_dtype, precision.param_dtype, precision.autocasts, precision.scaler, precision.master)
    assert meaning == MEANINGS[name]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("bf16", "bf16-mixed"), ("fp16", "16-mixed"), ("16", "16-mixed"), ("fp16-mixed", "16-mixed"), ("fp16-true", "16-true"),
        ("fp32", "32-true"), ("32", "32-true"), ("no", "32-true"), ("fp64", "64-true"), ("64", "64-true"), ("fp8", "fp8-e4m3-mixed"),
        ("fp8-delayed", "DelayedScaling"), ("fp8-current", "Float8CurrentScaling"), ("fp8-block", "Float8BlockScaling"),
        ("mxfp8", "MXFP8BlockScaling"), ("nvfp4", "NVFP4BlockScaling"), ("int8-weight-only", "Int8WeightOnlyConfig"),
        ("int4-weight-only", "Int4WeightOnlyConfig"), ("int8-dynamic", "Int8DynamicActivationInt8WeightConfig"),
        ("8da4w", "Int8DynamicActivationIntxWeightConfig"),
    ],
)  # fmt: skip
def test_an_alias_means_its_name(alias: str, name: str) -> None:
    assert resolve(alias).name == name


WORDS = {
    "mixed_bfloat16": "bf16-mixed", "mixed_float16": "16-mixed", "float32": "32-true", "float64": "64-true", "torch.float32": "32-true",
    "bf16=True": "bf16-mixed", "fp16=True": "16-mixed", "tf32=True": "tf32", "bf16_full_eval": "bf16-true", "fp16_full_eval": "16-true",
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_frameworks_word_means_what_it_does_there(word: str) -> None:
    assert resolve(word).name == WORDS[word]


def test_no_alias_is_untested_or_hides_a_name() -> None:
    assert len(ALIASES) == 20
    assert set(DIALECTS) == set(WORDS) - {"torch.float32"}
    assert not (set(ALIASES) | set(DIALECTS)) & (set(PRECISIONS) | set(AMBIGUOUS))
    assert not set(ALIASES) & set(DIALECTS)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (MixedPrecisionPolicy(), "32-true"),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), "bf16-master"),
        (MixedPrecisionPolicy(param_dtype=torch.float32), "32-true"),
    ],
)
def test_fsdp_policies_mean_weights_gathered_low_and_stepped_on_in_full(policy: MixedPrecisionPolicy, name: str) -> None:
    assert resolve(policy).name == name


@pytest.mark.parametrize("odd", [MixedPrecisionPolicy(param_dtype=torch.float16), 3.5, None, object()])
def test_an_object_that_stands_for_none_is_refused(odd: object) -> None:
    with pytest.raises(PrecisionError, match=r"unknown precision .*; known are 32-true, .*; pytest --help lists all$"):
        resolve(odd)


MISSPELT = [("bf17", "bf16"), ("bf16-mixde", "bf16-mixed"), ("16-ture", "16-true"), ("FP8", "fp8"), ("BF16-mixed", "bf16-mixed")]


@pytest.mark.parametrize(("typed", "meant"), MISSPELT)
def test_a_misspelt_name_is_told_what_is_meant(typed: str, meant: str) -> None:
    with pytest.raises(PrecisionError, match=rf"unknown precision '{typed}'; do you mean {meant}\? pytest --help lists all$"):
        resolve(typed)


def test_a_misspelt_public_name_is_told_what_is_meant() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'watchh'; do you mean watch\?$"):
        precheck.watchh  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'; it has benchmark, "):
        precheck.zzz  # noqa: B018


@pytest.mark.parametrize("name", ["transformer-engine", "transformer-engine-float16"])
def test_layers_of_another_library_are_refused_with_what_is_nearest(name: str) -> None:
    with pytest.raises(PrecisionError, match=f"unknown precision '{name}'; its fp8 is of layers of its own, and nearest to it is DelayedScaling"):
        resolve(name)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "half", "torch.bfloat16", " float16 "])
def test_a_bare_dtype_means_two_things_and_is_refused_with_both(name: str) -> None:
    stem = "bf16" if "b" in name else "16"
    with pytest.raises(PrecisionError, match=f"{name} means two things") as caught:
        resolve(name)
    assert f"--precision={stem}-mixed" in str(caught.value)
    assert f"--precision={stem}-true" in str(caught.value)


@pytest.mark.parametrize("name", ["bf17", "", "BF16-MIXED ,", "float8", "16-mixed-true"])
def test_an_unknown_name_is_refused_with_where_all_are_listed(name: str) -> None:
    with pytest.raises(PrecisionError, match="unknown precision") as caught:
        resolve(name)
    assert repr(name) in str(caught.value)
    assert str(caught.value).endswith("pytest --help lists all")


def test_a_precision_resolves_to_itself() -> None:
    own = Precision("mine", PRECISIONS["bf16-true"].compute, PRECISIONS["bf16-true"].param)
    assert resolve(own) is own


def test_the_policy_asked_for_is_kept() -> None:
    assert resolve("bf16").policy == "cuda"
    assert resolve("bf16", policy="native").policy == "native"
    assert {precision.policy for precision in resolve_all("bf16,fp16", policy="native")} == {"native"}


def test_a_list_keeps_its_order_and_names_each_once() -> None:
    assert [precision.name for precision in resolve_all("fp16, bf16,16-mixed,")] == ["16-mixed", "bf16-mixed"]


@pytest.mark.parametrize("names", ["", " , "])
def test_an_empty_list_is_refused(names: str) -> None:
    with pytest.raises(PrecisionError, match="no precision named"):
        resolve_all(names)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("32-true", 24), ("64-true", 53), ("bf16-mixed", 8), ("bf16-true", 8), ("bf16-master", 8), ("16-mixed", 11), ("16-true", 11),
     ("tf32", 11), ("fp8-e4m3-mixed", 4), ("Float8BlockScaling", 4), ("DelayedScaling", 3), ("mxfp6-e2m3", 4), ("nvfp4", 2)],
)  # fmt: skip
def test_the_roundoff_is_that_of_the_coarsest_format_on_the_way(name: str, bits: int) -> None:
    precision = resolve(name)
    assert precision.roundoff == math.ldexp(1.0, -bits)
    assert precision.is_low == (bits < 24)


@pytest.mark.parametrize("name", MEANINGS)
def test_only_float16_mixed_scales_its_loss(name: str) -> None:
    scaler = resolve(name).make_scaler()
    assert scaler.is_enabled() == (name == "16-mixed")
    if scaler.is_enabled():  # torch's own defaults: 2^16, doubled after 2000 good steps, halved after a bad one
        assert (scaler.get_scale(), scaler.get_growth_interval()) == (65536.0, 2000)
        assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)
    else:
        loss = torch.ones((), requires_grad=True)
        assert scaler.scale(loss) is loss

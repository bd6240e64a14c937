"""The self-test of comparisons: a comparison that can fail catches what is planted, and of one that cannot it says which fault, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.selftests.checks import Outcome
from precheck.selftests.pairs import FAULTS, invariance_selftested, parity_selftested


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def data() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


class Written(nn.Module):
    """The same function by its formulas."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.first, self.norm, self.last = source[0], source[1], source[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        centred = hidden - hidden.mean(-1, keepdim=True)
        hidden = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.norm.weight + self.norm.bias
        return self.last(hidden.to(self.last.weight.dtype))


def asked(found: list[Outcome]) -> dict[str, str]:
    assert tuple(each.fault for each in found) == FAULTS
    return {each.fault: each.status for each in found}


ALL_CAUGHT = dict.fromkeys(FAULTS, "caught")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_a_port_that_is_right_would_have_failed_with_each_fault(precision: str) -> None:
    model = layers()
    other = Written(model)
    assert not precheck.compare(model, other, data(), precision=precision, loss=loss).errors
    before = torch.get_rng_state()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    found = parity_selftested(model, other, data(), precision=precision, loss=loss)
    assert asked(found) == ALL_CAUGHT
    scaled = found[2]
    assert scaled.size is not None
    assert scaled.size < (0.2 if precision != "32-true" else 1e-3), "the size that is noticed is the check's own, not a factor of two"
    assert scaled.text.startswith("what other returns is scaled, which changes it by ")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not other._forward_hooks
    assert not model._forward_hooks


def test_equal_bits_and_one_object_are_asked_too() -> None:
    model = layers()
    assert asked(parity_selftested(model, model, data())) == ALL_CAUGHT


def test_functions_compiled_parts_and_recordings_are_asked(tmp_path: Path) -> None:
    model = layers()
    assert asked(parity_selftested(model, lambda x: model(x.clone()), data())) == ALL_CAUGHT
    precheck.record(tmp_path / "it.safetensors", model, data())
    found = parity_selftested(model, str(tmp_path / "it.safetensors"), data())
    assert asked(found) == ALL_CAUGHT
    assert found[0].text.startswith("what model returns is zero")


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(16.0).expand_as(self.layer(x)) + 0 * self.layer(x)


def test_an_output_that_ignores_its_input_cannot_show_a_stale_one() -> None:
    found = parity_selftested(Constant(), Constant(), data())
    assert asked(found) == {"zeroed": "caught", "shuffled": "same", "scaled": "caught", "stale": "unnoticed"}
    assert found[3].text == "what other returns is the result for another input (each tensor back to front), which changes it by 0%"
    assert "look whether the model reads it at all" in found[3].advice
    assert "the rows of what other returns are equal" in found[1].text


def test_a_head_that_starts_at_zero_shows_nothing() -> None:
    def model() -> nn.Module:
        made = layers()
        nn.init.zeros_(made[2].weight)  # type: ignore[index]
        nn.init.zeros_(made[2].bias)  # type: ignore[index]
        return made

    found = asked(parity_selftested(model(), model(), data()))
    assert found == {"zeroed": "unnoticed", "shuffled": "same", "scaled": "unnoticed", "stale": "unnoticed"}


def test_what_is_allowed_is_no_catch() -> None:
    model = layers()
    found = parity_selftested(model, Written(model), data(), allow={"different": "a reason"})
    assert {each.status for each in found} == {"allowed"}
    assert {each.rule for each in found} == {"different"}


def test_whole_numbers_alone_are_not_scaled() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layers()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).argmax(-1)

    found = asked(parity_selftested(Chosen(), Chosen(), data()))
    assert found == {"zeroed": "caught", "shuffled": "caught", "scaled": "inapplicable", "stale": "caught"}


def test_each_way_of_a_model_is_asked() -> None:
    ways = ("repeat", "order", "batch", "microbatches", "ranks", "threads")
    assert asked(invariance_selftested(layers(), data(), ways, loss=loss)) == ALL_CAUGHT
    alone = asked(invariance_selftested(layers(), data(), ("microbatches",), loss=loss))
    assert alone == {**ALL_CAUGHT, "shuffled": "inapplicable"}, "a mean over rows is the same in any order"
    found = invariance_selftested(layers(), data(), ("batch",), precision="bf16-mixed")
    assert asked(found) == ALL_CAUGHT
    assert "(batch of 1)" in found[0].text


def test_one_way_that_cannot_fail_is_told() -> None:
    same = torch.ones(4, 8)
    found = invariance_selftested(layers(), same, ("order", "batch"))
    assert asked(found)["shuffled"] == "same"
    assert asked(found)["stale"] == "caught"  # what is all alike is halved

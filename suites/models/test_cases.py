"""The cases themselves: a seed decides them, and building one leaves torch's random numbers to whoever draws next."""

from __future__ import annotations

import pytest
import torch
from case import Case
from registry import NEEDS, case

from precheck.observe.containers import tensors


def contents(it: Case) -> list[torch.Tensor]:
    return [*it.model.state_dict().values(), *(tensor for _, tensor in tensors(it.inputs))]


def same(one: Case, other: Case) -> bool:
    return all(torch.equal(a, b) for a, b in zip(contents(one), contents(other), strict=True))


@pytest.mark.parametrize("name", list(NEEDS))
def test_a_seed_decides_a_case(name: str) -> None:
    before = torch.get_rng_state()
    first = case(name, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert same(first, case(name, 0))
    assert not same(first, case(name, 1))


@pytest.mark.parametrize("name", [name for name in NEEDS if name not in ("gpt2_lora", "sentence_encoder")])
def test_every_parameter_learns(name: str) -> None:
    """Or a model would be checked in part only. A router's gate learns through the weight it gives, whatever it chooses."""
    it = case(name)
    it.loss(it.model(**it.inputs) if isinstance(it.inputs, dict) else it.model(it.inputs)).backward()
    assert [name for name, parameter in it.model.named_parameters() if parameter.grad is None or not parameter.grad.any()] == []


def test_only_adapters_learn_in_lora() -> None:
    it = case("gpt2_lora")
    it.loss(it.model(**it.inputs)).backward()
    learnt = {name for name, parameter in it.model.named_parameters() if parameter.grad is not None and bool(parameter.grad.any())}
    assert learnt == {name for name, _ in it.model.named_parameters() if "lora_" in name}

"""Shapes of bugs that the zoo has no entry of, beside their healthy neighbours: samplers, averages by foreach ops, ids, casts that come too soon."""

from __future__ import annotations

import torch
from torch import nn

import precheck
from precheck.findings import Report


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    layers = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
    with torch.no_grad():
        for place, weight in enumerate(layers.parameters()):
            weight.copy_(seeded(*weight.shape, seed=place) / 6)
    return layers.bfloat16()


def sampled(state: torch.dtype, *nets: nn.Module, turns: int) -> Report:
    latents = seeded(8, 32, seed=9).to(state)
    with precheck.watch() as report, torch.no_grad():
        for turn in range(turns):
            velocity = nets[turn % len(nets)](latents.bfloat16())
            latents = latents + velocity.to(state) / 30
        report.facts["result"] = latents.float().norm().item()
    return report


def test_a_sampler_that_calls_one_network_is_told_of() -> None:
    report = sampled(torch.bfloat16, network(), turns=60)
    assert [finding.rule for finding in report.errors] == ["accumulated-drift"]


def test_a_sampler_whose_latents_are_float32_and_a_stream_through_many_layers_are_not() -> None:
    assert not sampled(torch.float32, network(), turns=60).errors
    assert not sampled(torch.bfloat16, *(network() for _ in range(60)), turns=60).errors


def averaged(dtype: torch.dtype) -> Report:
    kept = [torch.ones(32, dtype=dtype), torch.full((16,), 2.0, dtype=dtype)]
    with precheck.watch() as report:
        for turn in range(40):
            new = [(1.5 + 0.1 * seeded(32, seed=turn)).to(dtype), (1 + 0.1 * seeded(16, seed=turn)).to(dtype)]
            torch._foreach_lerp_(kept, new, 0.001)
    return report


def test_averages_that_foreach_ops_keep_are_asked_whether_they_stand_still() -> None:
    assert [finding.rule for finding in averaged(torch.bfloat16).errors] == ["absorption"]
    assert not averaged(torch.float32).errors


def hashed(ids: torch.Tensor) -> Report:
    with precheck.watch(precision="32-true") as report:
        rows = seeded(1003, 8)[(ids.float() % 1003).long()]
        report.facts["result"] = rows.norm().item()
    return report


def test_ids_that_float32_cannot_hold_are_told_of_where_they_are_felt() -> None:
    assert [finding.rule for finding in hashed(123_456_789 + 7919 * torch.arange(64)).errors] == ["integer-rounding"]
    assert not hashed(7919 * torch.arange(64)).errors


def offsets(*, soon: bool) -> Report:
    origin = torch.tensor([1000.0, 20.0, 3.0])
    with precheck.watch() as report:
        places = (origin + seeded(64, 3)).half() if soon else seeded(64, 3).half()
        kept = places.float() - origin if soon else places.float()
        report.facts["result"] = kept.sin().sum().item()
    return report


def test_a_cast_before_an_offset_is_taken_off_is_named() -> None:
    assert [finding.rule for finding in offsets(soon=True).errors] == ["amplified-rounding"]
    assert not offsets(soon=False).errors


def test_a_number_less_its_own_rounding_and_beside_the_same_from_elsewhere() -> None:
    x, weight = seeded(64, 64), seeded(64, 64, seed=1)
    with precheck.watch() as report:
        high = x.bfloat16()
        low = (x - high.float()).bfloat16()
        product = (x @ weight).bfloat16()
        apart = product.float() - (x.double() @ weight.double()).float()
        kept = (high.float() + low.float()) @ weight, apart.abs().max().item()
    assert not report.errors, report.summary()
    assert kept[1] < 1


def advantages(rewards: torch.Tensor, *, guarded: bool) -> Report:
    with precheck.watch(precision="32-true") as report:
        centred = rewards - rewards.mean(-1, keepdim=True)
        spread = centred.square().mean(-1, keepdim=True).sqrt()
        divided = centred / (spread + 1e-8)
        kept = torch.where(spread > 1e-4, divided, torch.zeros(())) if guarded else divided
        report.facts["result"] = kept.norm().item()
    return report


def test_garbage_that_a_choice_leaves_out_is_healed() -> None:
    rewards = torch.stack([torch.full((7,), 0.1), torch.linspace(0.1, 0.9, 7)])
    assert [finding.rule for finding in advantages(rewards, guarded=False).errors] == ["amplified-rounding"]
    assert not advantages(rewards, guarded=True).errors


def prices(*, cast: bool) -> Report:
    """The loss of forecasts about 1000, off by one, as they are and less their mean."""
    with precheck.watch() as report:
        level = 1000.0 if cast else 0.0
        forecast, target = (level + seeded(64)).bfloat16(), (level + seeded(64, seed=1)).bfloat16()
        report.facts["result"] = nn.functional.mse_loss(forecast, target).item()
    return report


def learnt() -> Report:
    """A network in bfloat16 that gives what it is to give, to a rounding."""
    layer = nn.Linear(16, 16)
    target = layer(seeded(8, 16)).detach()
    layer.bfloat16()
    with precheck.watch() as report:
        report.facts["result"] = nn.functional.mse_loss(layer(seeded(8, 16).bfloat16()), target.bfloat16()).item()
    return report


def test_a_loss_of_what_was_cast_just_before_is_a_difference_as_any() -> None:
    (found,) = prices(cast=True).errors
    assert found.rule == "amplified-rounding"
    assert "grows at aten.mse_loss.default" in found.message
    assert found.advice.startswith("leave out this cast")
    assert not prices(cast=False).errors
    assert not learnt().errors


def turned(dtype: torch.dtype) -> Report:
    """A phasor whose two parts are told apart in each turn, and joined again."""
    with precheck.watch() as report:
        phasor = torch.tensor([1.0, 0.0]).to(dtype)
        for _ in range(400):
            x, y = phasor
            phasor = torch.stack([x - 0.0018 * y, y + 0.0018 * x])
        report.facts["result"] = phasor.float().norm().item()
    return report


def test_a_state_that_is_joined_of_its_parts_in_each_turn_is_followed() -> None:
    assert {finding.rule for finding in turned(torch.bfloat16).errors} <= {"accumulated-drift", "absorption"}
    assert turned(torch.bfloat16).errors
    assert not turned(torch.float32).errors


def beams(dtype: torch.dtype, *, spread: float) -> Report:
    """The best 8 of 64 hypotheses by log probabilities of some 120, in one row."""
    with precheck.watch() as report:
        scores = (spread * seeded(64) - 120).to(dtype)
        scores = scores - torch.linspace(0, spread, 64).to(dtype)
        report.facts["result"] = scores.topk(8).indices.float().sum().item()
    return report


def test_one_row_whose_scores_are_all_equal_chooses_by_nothing() -> None:
    assert [finding.rule for finding in beams(torch.bfloat16, spread=0.1).errors] == ["decision-flip"]
    assert not beams(torch.bfloat16, spread=10.0).errors
    assert not beams(torch.float32, spread=0.1).errors


def kept_low(numbers: torch.Tensor) -> Report:
    with precheck.watch() as report:
        kept = [numbers.half()]
    assert len(kept) == 1  # it is alive when the block ends
    return report


def test_one_number_among_others_that_the_cast_rounds_is_no_mask() -> None:
    data, bias = 30 * seeded(6, 1), seeded(6, 6)
    data[2] = -90_000.0
    (finding,) = kept_low(data).errors
    assert (finding.rule, finding.op) == ("overflow", "aten._to_copy.default")
    assert "90000 in the reference is beyond the largest float16" in finding.message
    assert not kept_low(bias.masked_fill(torch.ones(6, 6).triu(1).bool(), -1e9)).errors
    assert not kept_low(torch.tensor([0.0, 0, 0, -1e9])).errors

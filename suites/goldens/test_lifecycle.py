"""How goldens are recorded and renewed: what `missing`, `changed` and `all` touch, what is said about it, what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from precheck.goldens.file import Golden, GoldenError, read
from precheck.goldens.lifecycle import digest, outdated, record, refresh
from precheck.goldens.show import difference
from precheck.measurement import job_of
from precheck.observe.job import Job


class TwoHeads(nn.Module):
    """A body and two heads, with a dict for a result."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.heads = nn.ModuleDict({"a": nn.Linear(32, 4), "b": nn.Linear(32, 4)})

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        hidden = self.body(x).relu()
        return {name: head(hidden) * scale for name, head in self.heads.items()}


def job(*, seed: int = 0, scale: float = 1.0, steps: int = 2) -> Job:
    torch.manual_seed(seed)
    model = TwoHeads()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    return job_of(
        model, {"x": x, "scale": scale}, loss=lambda out: (out["a"] * out["b"]).mean(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), steps=steps
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "er" / "two_heads.safetensors"


def test_a_single_element_with_a_stride_is_digested() -> None:
    """It counts as contiguous, and cannot be seen as bytes."""
    strided = torch.ones(1, 2)[:, ::2]
    assert strided.stride(-1) != 1
    assert digest({"x": strided}) == digest({"x": torch.ones(1, 1)})


def test_a_golden_holds_inputs_outputs_gradients_loss_and_updates_with_their_floors(path: Path) -> None:
    refresh(path, job())
    golden = read(path)
    kinds = {each.record.kind for each in golden.records}
    assert kinds == {"input", "output", "gradient", "parameter-gradient", "loss", "update"}
    names = {each.record.key for each in golden.records}
    assert {"output:heads.a@1", "gradient:body@1", "parameter-gradient:heads.b.bias@1", "loss:loss@2", "update:body.weight@2"} <= names
    for each in golden.records:
        if each.record.kind != "input":
            assert set(each.floors) == {"mixed", "true"}
            assert all(math.isfinite(floor) and floor >= 0 for floor in each.floors.values()), each.record.key
    assert all(math.isclose(each.floors["true"], 0.42 * each.record.norm, rel_tol=1) for each in golden.records if each.record.kind == "output")


def test_provenance_says_where_and_with_what(path: Path) -> None:
    refresh(path, job())
    provenance = read(path).provenance
    assert provenance["torch"] == torch.__version__
    assert provenance["device"] == "cpu"
    assert provenance["cpu"] == torch.backends.cpu.get_cpu_capability()
    assert provenance["tf32"] is False
    assert (provenance["seed"], provenance["steps"], provenance["loss"]) == (0, 2, True)
    assert str(provenance["optimizer"]).startswith("SGD ")
    assert "lr=0.1" in str(provenance["optimizer"])


def test_missing_records_what_is_not_there_and_leaves_the_rest(path: Path) -> None:
    assert refresh(path, job(), "missing").status == "written"
    before = path.read_bytes()
    assert refresh(path, job(seed=1), "missing").status == "kept"
    assert path.read_bytes() == before


def test_changed_rewrites_only_what_moved_and_says_how_far_worst_first(path: Path) -> None:
    refresh(path, job())
    before = path.read_bytes()
    assert refresh(path, job(), "changed").status == "unchanged"
    assert path.read_bytes() == before
    done = refresh(path, job(scale=1.5), "changed")
    assert done.status == "changed"
    assert any("loss" in line for line in done.lines), done.lines
    assert path.read_bytes() != before


def test_all_rewrites_bytes_that_differ_even_where_no_value_moved(path: Path) -> None:
    refresh(path, job())
    nudged = job()
    with torch.no_grad():
        nudged.model.body.weight[0, 0] += 1e-9 + nudged.model.body.weight[0, 0].abs() * 2**-23
    before = path.read_bytes()
    assert refresh(path, nudged, "changed").status == "unchanged"
    assert refresh(path, nudged, "all").status == "changed"
    assert path.read_bytes() != before


class Attention(nn.Module):
    """A key's bias adds the same to all scores of a row, so that its gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ x


def test_what_is_zero_in_theory_is_another_number_on_each_machine_and_has_not_changed(path: Path) -> None:
    def attention(*, roundings: float) -> Job:
        torch.manual_seed(0)
        model, x = Attention(), torch.randn(8, 32, 16)
        with torch.no_grad():
            for weight in model.parameters():
                weight *= 1 + roundings * 2**-24 * torch.randn(weight.shape)
        return job_of(model, x, loss=lambda out: (out * x.flip(0)).mean(), optimizer=lambda p: torch.optim.Adam(p, lr=0.1))

    refresh(path, attention(roundings=0))
    before = path.read_bytes()
    other = record(attention(roundings=1))
    assert any("key.bias" in change.what and change.distance > 0.1 for change in difference(read(path), other))
    assert refresh(path, attention(roundings=1), "changed").status == "unchanged"
    assert path.read_bytes() == before
    assert refresh(path, attention(roundings=1000), "changed").status == "changed"


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"steps": 3}, {"optimizer": "SGD lr=0.2"}, {"loss": False}], ids=lambda change: next(iter(change))
)
def test_a_test_that_asks_for_something_else_has_outdated_its_golden(change: dict[str, Any]) -> None:
    before = record(job())
    assert not outdated(before, Golden(before.records, {**before.provenance, "torch": "2.9"}))
    assert outdated(before, Golden(before.records, {**before.provenance, **change}))


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"sampled": True}, {"name": "new"}, {"shape": (3, 3)}, {"nan": 1}, {"sketch": numpy.ones(127)}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_tensor_that_is_another_outdates_a_golden(change: dict[str, Any], kind: str) -> None:
    before = record(job())
    records = list(before.records)
    place = next(number for number, each in enumerate(records) if each.record.kind == kind)
    records[place] = dataclasses.replace(records[place], record=dataclasses.replace(records[place].record, **change))
    assert outdated(before, Golden(records, before.provenance))
    assert outdated(before, Golden([each for each in before.records if each is not before.records[place]], before.provenance))


def test_a_golden_that_cannot_be_read_is_replaced_on_request_only(path: Path) -> None:
    refresh(path, job())
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert refresh(path, job(), "missing").status == "kept"
    assert path.stat().st_size == 100
    done = refresh(path, job(), "changed")
    assert done.status == "changed"
    assert str(path) in done.lines[0]
    assert path.read_bytes() == whole


def test_recording_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for path in paths:
        refresh(path, job())
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_nan_is_refused_and_the_old_golden_kept(path: Path) -> None:
    refresh(path, job())
    before = path.read_bytes()
    with pytest.raises(GoldenError, match="NaN"):
        refresh(path, job(scale=math.nan), "all")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_model_that_one_placement_cannot_run_has_no_floor_there() -> None:
    class Float32Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(self.weight + torch.eye(4).to(self.weight.dtype)) @ x  # no such kernel in bfloat16

    golden = record(job_of(Float32Only(), torch.eye(4)))
    floors = [each.floors for each in golden.records if each.record.kind == "output"]
    assert floors
    assert all(math.isnan(floor["true"]) for floor in floors)


def test_recording_leaves_the_model_and_the_random_state_alone() -> None:
    asked = job()
    before = {name: value.clone() for name, value in asked.model.state_dict().items()}
    state = torch.get_rng_state()
    record(asked)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in asked.model.state_dict().items())
    assert all(parameter.grad is None for parameter in asked.model.parameters())


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.tensor([1.0, 2.0000002]), "b": torch.tensor([True])},
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([False])},
        {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([True])},
        {"A": torch.tensor([1.0, 2.0]), "b": torch.tensor([True])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64), "b": torch.tensor([True])},
    ],
)
def test_a_digest_tells_names_dtypes_shapes_and_values_apart(changed: dict[str, Any]) -> None:
    base = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True])}
    assert digest(base) == digest({name: value.clone() for name, value in base.items()})
    assert digest(base) != digest(changed)

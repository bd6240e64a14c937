"""Rows of a batch in one row without padding: what `vary` gives the model then, what it compares, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from chat import Chat, tokens
from test_vary import mean
from torch import nn

import precheck

RIGHT = (torch.arange(8) < torch.tensor([8, 5, 3])[:, None]).long()
"""A mask with padding to the right."""
GIVEN = {"input_ids": tokens(), "attention_mask": RIGHT}


class Placed(Chat):
    """A table of places, by position ids or by the place in the row."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.table = nn.Embedding(40, 50)

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, position_ids: Any = None, **more: Any) -> Any:  # type: ignore[override]
        position_ids = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        out = super().forward(input_ids, attention_mask, position_ids, **more)
        out.logits = out.logits + self.table(torch.arange(input_ids.shape[1])[None] if self.fault == "table" else position_ids)
        return out


@pytest.mark.parametrize("mask", [RIGHT, RIGHT.flip(1), torch.ones_like(RIGHT)], ids=["right", "left", "none"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_rows_are_packed_without_their_padding(mask: torch.Tensor, precision: str) -> None:
    report = precheck.vary(Placed(), {"input_ids": tokens(), "attention_mask": mask}, ("packing", "repeat"), precision=precision, loss=mean)
    assert set(report.facts["variations"].values()) <= {"bitwise", "rounding"}, report.summary()
    assert report.facts["tokens"]["3 rows packed into one"]["tokens"] == int(mask[:, 1:].sum())


@pytest.mark.parametrize("mask", [RIGHT, RIGHT.flip(1)], ids=["right", "left"])
@pytest.mark.parametrize(("fault", "where"), [("packed", "layers.0"), ("table", "table")])
def test_rows_that_mix_are_found_behind_padding(mask: torch.Tensor, fault: str, where: str) -> None:
    """`packed` sees the rows before, `table` counts places over all rows."""
    report = precheck.vary(Placed(fault), {"input_ids": tokens(), "attention_mask": mask}, ("packing",), loss=mean)
    assert report.verdict == "different"
    assert report.errors[0].message.startswith("3 rows packed into one: ")
    assert report.errors[0].module == where


class Deaf(nn.Module):
    """Takes any arguments, and reads the tokens alone: each row is mixed with what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, input_ids: torch.Tensor, **more: Any) -> torch.Tensor:
        return self.head(self.words(input_ids).cumsum(1))


def test_positions_that_a_model_does_not_read_are_said() -> None:
    deaf = precheck.vary(Deaf(), {"input_ids": tokens()}, ("packing",))
    assert "takes position_ids and does not read them" in deaf.errors[0].message
    assert "does not read them" not in precheck.vary(Placed("table"), {"input_ids": tokens()}, ("packing",), loss=mean).errors[0].message


class Losing(Chat):
    """Returns a loss of next tokens too."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **more: Any) -> Any:  # type: ignore[override]
        out = super().forward(input_ids, **more)
        if labels is None:
            return out
        return {"loss": F.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()), "logits": out.logits}


def test_labels_leave_out_the_first_token_of_each_row() -> None:
    for mask in (RIGHT, RIGHT.flip(1)):
        given = {"input_ids": tokens(), "attention_mask": mask, "labels": tokens().masked_fill(mask == 0, -100)}
        assert not precheck.vary(Losing(), given, ("packing",), loss=lambda out: out["loss"]).errors
    with pytest.raises(precheck.InputError, match="labels count tokens that attention_mask hides"):
        precheck.vary(Losing(), {**GIVEN, "labels": tokens()}, ("packing",), loss=lambda out: out["loss"])


def test_positions_of_the_users_own_are_packed_too() -> None:
    later = torch.arange(8).expand(3, -1) * 2
    assert not precheck.vary(Placed(), {"input_ids": tokens(), "position_ids": later}, ("packing",)).errors
    onward = torch.arange(24).view(3, 8)
    with pytest.raises(precheck.InputError, match="nothing tells the two apart"):
        precheck.vary(Placed(), {"input_ids": tokens(), "position_ids": onward}, ("packing",))


class Plain(nn.Module):
    """A decoder that takes segments, and no position ids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.qkv, self.head = nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 50)

    def forward(self, given: torch.Tensor, segments: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(self.words(given)).chunk(3, -1)
        seen = torch.ones(given.shape[1], given.shape[1], dtype=torch.bool).tril()
        if segments is not None:
            seen = seen & (segments[:, :, None] == segments[:, None])
        return self.head((q @ k.mT / 3).masked_fill(~seen, -1e4).softmax(-1) @ v)  # type: ignore[no-any-return]


def test_a_step_of_ones_own_packs_where_there_are_no_position_ids() -> None:
    def packed(model: Any, row: torch.Tensor, positions: torch.Tensor) -> tuple[Any, None]:
        assert row.shape == positions.shape == (1, 24)
        return model(row, (positions == 0).cumsum(1)), None

    def mixed(model: Any, row: torch.Tensor, positions: torch.Tensor) -> tuple[Any, None]:
        return model(row), None

    assert not precheck.vary(Plain(), tokens(), ("packing",), step=packed).errors
    assert precheck.vary(Plain(), tokens(), ("packing",), step=mixed).verdict == "different"
    with pytest.raises(precheck.InputError, match=r"takes position_ids, as those of transformers do; for any other pass step="):
        precheck.vary(Plain(), tokens(), ("packing",))


def test_a_mask_of_pairs_cannot_be_packed() -> None:
    with pytest.raises(precheck.InputError, match=r"packing needs an attention_mask of shape \(batch, length\)"):
        precheck.vary(Chat(), {"input_ids": tokens(), "attention_mask": torch.ones(3, 1, 8, 8)}, ("packing",))

"""Inputs derived from models: each runs, is the same every time, and a model that says nothing gets none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from precheck.observe.containers import call, tensors
from precheck.observe.models.examples import LENGTH, ROWS, example


class Says(nn.Module):
    """A model that offers an input, in whichever way."""

    def __init__(self, **offers: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        for name, value in offers.items():
            setattr(self, name, value)

    def forward(self, *given: Any, **named: Any) -> Any:
        return given, named


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 3),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3)), nn.ReLU()),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
    "norm": lambda: nn.Sequential(nn.LayerNorm((5, 6)), nn.Linear(6, 3)),
    "conv1d": lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU()),
    "picture": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 26 * 26, 10)),
    "volume": lambda: nn.Sequential(nn.Conv3d(1, 1, 3), nn.Flatten(), nn.Linear(6**3, 2)),
    "embedding": lambda: nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 2)),
    "lstm": lambda: nn.Sequential(nn.LSTM(6, 4, batch_first=True)),
    "gru": lambda: nn.GRU(6, 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_first_layers_sizes_say_what_it_takes(name: str) -> None:
    model = LAYERS[name]()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    before = torch.get_rng_state()
    found = example(model)
    assert torch.equal(torch.get_rng_state(), before), "the session's random numbers are left alone"
    assert torch.equal(found, example(model))
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    call(model, found)


def test_a_picture_has_the_side_that_the_layers_behind_take() -> None:
    assert tuple(example(LAYERS["picture"]()).shape) == (ROWS, 1, 28, 28)
    assert tuple(example(LAYERS["lstm"]()).shape) == (ROWS, LENGTH, 6)
    assert tuple(example(LAYERS["gru"]()).shape) == (LENGTH, ROWS, 6)


@pytest.mark.parametrize("model", [Says(), nn.Sequential(), nn.Sequential(nn.Flatten()), nn.Sequential(Says()), nn.Sequential(nn.LazyLinear(3))])
def test_a_model_that_says_nothing_gets_none(model: nn.Module) -> None:
    assert example(model) is None


@pytest.mark.parametrize("given", [torch.ones(2, 3), (torch.ones(2, 3), torch.zeros(1)), {"x": torch.ones(2, 3)}])
def test_an_example_input_array_is_taken_as_it_is(given: Any) -> None:
    found = example(Says(example_input_array=given))
    assert type(found) is type(given)
    pairs = zip(tensors(found), tensors(given), strict=True)
    assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)


def test_dummy_inputs_are_taken_where_there_is_nothing_else_and_where_they_can_be_had() -> None:
    class Raises(Says):
        @property
        def dummy_inputs(self) -> Any:
            raise NotImplementedError

    assert torch.equal(example(Says(dummy_inputs=torch.ones(1, 3))), torch.ones(1, 3))
    assert example(Raises()) is None


def test_inputs_lie_where_the_weights_lie() -> None:
    assert example(nn.Linear(8, 3).to("meta")).device.type == "meta"


def _gpt2(t: Any) -> Any:
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))


def _bert(t: Any) -> Any:
    return t.BertModel(t.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))


def _t5(t: Any) -> Any:
    return t.T5ForConditionalGeneration(t.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0))


def _vit(t: Any) -> Any:
    return t.ViTModel(t.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4))


def _wav2vec2(t: Any) -> Any:
    return t.Wav2Vec2Model(t.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 2),
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, num_feat_extract_layers=2,
    ))  # fmt: skip


@pytest.mark.parametrize("make", [_gpt2, _bert, _t5, _vit, _wav2vec2], ids=lambda make: make.__name__.strip("_"))
def test_pretrained_models_run_on_what_is_derived(make: Callable[[Any], Any]) -> None:
    model = make(pytest.importorskip("transformers")).eval()
    with torch.no_grad():
        out = call(model, example(model))
    assert torch.isfinite(next(iter(tensors(out)))[1]).all()


def test_padding_is_not_among_the_ids() -> None:
    transformers = pytest.importorskip("transformers")
    model = _bert(transformers)
    assert not (example(model)["input_ids"] == model.config.pad_token_id).any()

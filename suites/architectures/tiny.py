"""Every architecture of the installed transformers that a few small numbers make a model of, with random weights.

A configuration is made with its own defaults, but for the sizes below, which replace whatever it has under these names. What cannot be
built so, or does not run in float32, is left out, and `built` says why.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

FAMILIES = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
"""Names of transformers' tables of models, by what goes into these."""
BODIES = {
    "body": "MODEL_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "speech": "MODEL_FOR_CTC_MAPPING_NAMES",
    "video": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "segments": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "depth": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "patches": "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES",
    "detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "series": "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "series-class": "MODEL_FOR_TIME_SERIES_REGRESSION_MAPPING_NAMES",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "text-class": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "spans": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "tokens": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
}
"""Tables whose models get whichever inputs they run with (`_tries`). The loss compares their first result with random numbers."""
VOCABULARY, LENGTH, BATCH, PIXELS = 128, 24, 2, 32
WIDTH, HEADS, LAYERS = 32, 4, 2
SIZES: dict[str, Any] = {
    "num_mel_bins": 16, "feature_size": 16, "input_feat_per_channel": 16, "feature_projection_input_dim": 16,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "d_embed", "rnn_hidden_size", "lru_width"), WIDTH),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"),
        LAYERS,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "attention_heads"), HEADS
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "ffn_hidden_size",
         "shared_expert_intermediate_size", "hidden_dim", "intermediate_size_mlp", "moe_shared_expert_intermediate_size"),
        2 * WIDTH,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "attention_head_dim"), WIDTH // HEADS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions", "max_target_positions", "max_seq_len"), 2 * LENGTH),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "n_group", "topk_group"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), WIDTH // 2),
    "vocab_size": VOCABULARY, "image_size": PIXELS, "patch_size": 8, "sliding_window": LENGTH // 2, "attention_window": 8, "num_labels": 5,
    "state_size": 8, "mamba_d_state": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "drop_path_rate": 0.0,
}  # fmt: skip
MOST = 5_000_000
"""Parameters up to which a model is small."""
DROPOUTS = ("dropout", "pdrop", "drop_rate", "drop_prob")
"""Parts of the names of probabilities; all are set to 0."""


def lengthen(length: int) -> None:
    """Makes the inputs of text that long: a table of positions is then as large as users have it. For models that are built later."""
    global LENGTH
    for name, size in SIZES.items():
        if (size == 2 * LENGTH and "max_" in name) or name in ("n_positions", "n_ctx"):
            SIZES[name] = 2 * length
    LENGTH = length


@dataclasses.dataclass(slots=True)
class Built:
    """A model and what it is called with; `why` not, where it is None."""

    name: str
    model: torch.nn.Module | None
    inputs: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    why: str = ""


def names(family: str) -> list[str]:
    """The types of configurations that transformers lists in that family, sorted."""
    return sorted(_table(family))


def built(family: str, kind: str, seed: int = 0) -> Built:
    """The architecture of that type. A model that is built has run once. `seed`: of weights and inputs."""
    import transformers

    classes = _table(family)[kind]
    name = classes if isinstance(classes, str) else classes[0]
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = small(transformers.AutoConfig.for_model(kind))
            if family == "seq2seq" and getattr(config, "decoder_start_token_id", None) is None:
                config.decoder_start_token_id = 0
            with torch.device("meta"):
                many = sum(parameter.numel() for parameter in getattr(transformers, name)(config).parameters())
            if many > MOST:
                return Built(name, None, why=f"{many} parameters")
            model = getattr(transformers, name)(config).float().train()
            if family in BODIES:
                return _that_runs(name, model)
            inputs = _inputs(family, model.config)
            with torch.no_grad():
                loss = model(**inputs).loss
    except Exception as error:  # whatever transformers or the architecture raises: it is none that small numbers make a model of
        return Built(name, None, why=f"{type(error).__name__}: {error}".splitlines()[0][:120])
    if loss is None or not bool(loss.isfinite()):
        return Built(name, None, why="no finite loss in float32")
    return Built(name, model, inputs)


def small(config: Any) -> Any:
    """The same configuration with small sizes, those of its parts too."""
    known = config.to_dict()
    changed = {name: size for name, size in SIZES.items() if isinstance(known.get(name), int) and not isinstance(known[name], bool)}
    changed |= {name: 0.0 for name, value in known.items() if isinstance(value, float) and any(part in name for part in DROPOUTS)}
    changed |= {name: min(value, VOCABULARY - 1) for name, value in known.items() if name.endswith("_token_id") and isinstance(value, int)}
    if "layer_types" in known and isinstance(known["layer_types"], list):
        changed["layer_types"] = known["layer_types"][: changed.get("num_hidden_layers", len(known["layer_types"]))]
    made = type(config)(**changed)
    for name in getattr(config, "sub_configs", {}):
        part = getattr(made, name, None)
        if part is not None:
            setattr(made, name, small(part))
    return made


def losses(output: Any) -> torch.Tensor:
    """The loss that a model of transformers gives with `labels` among its inputs. Else how far its first result is from random numbers."""
    loss: torch.Tensor | None = getattr(output, "loss", None)
    if loss is not None:
        return loss
    first = next(each for each in _tensors(output) if each.is_floating_point() and each.requires_grad)
    wanted = torch.randn(first.shape, generator=torch.Generator().manual_seed(5))
    return torch.nn.functional.mse_loss(first.float(), wanted)


def everything(*, bodies: bool = False) -> Iterator[tuple[str, str]]:
    """All families and types, each architecture's model once. `bodies`: of `BODIES`, without the others."""
    seen = {str(_table(family)[kind]) for family in FAMILIES for kind in names(family)} if bodies else set()
    for family in BODIES if bodies else FAMILIES:
        for kind in names(family):
            model = str(_table(family)[kind])
            if model not in seen:
                seen.add(model)
                yield family, kind


def _table(family: str) -> dict[str, Any]:
    table = getattr(importlib.import_module("transformers.models.auto.modeling_auto"), (FAMILIES | BODIES)[family])
    return dict(table)


def _inputs(family: str, config: Any) -> dict[str, torch.Tensor]:
    if family == "image":
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.randn(BATCH, channels, PIXELS, PIXELS), "labels": torch.randint(config.num_labels, (BATCH,))}
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    ids = torch.randint(4, min(VOCABULARY, text.vocab_size), (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def _that_runs(name: str, model: torch.nn.Module) -> Built:
    """The model with the first inputs of `_tries` from which it makes a finite loss and gradients."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    why = "no finite loss in float32"
    for inputs in _tries(model.config):
        try:
            loss = losses(model(**inputs))
            loss.backward()
        except Exception as error:  # these inputs are for other models
            why = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        model.zero_grad(set_to_none=True)
        if bool(loss.isfinite()):
            return Built(name, model, inputs)
    return Built(name, None, why=why)


def _tries(config: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Texts, pictures, waves, spectra, videos and series."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    ids = torch.randint(4, min(VOCABULARY, getattr(text, "vocab_size", VOCABULARY) or VOCABULARY), (BATCH, LENGTH))
    channels, bands = getattr(config, "num_channels", 3), getattr(config, "num_mel_bins", 16) or 16
    pictures = torch.randn(BATCH, channels if isinstance(channels, int) else 3, PIXELS, PIXELS)
    spectra = torch.randn(BATCH, bands, 4 * LENGTH)
    yield {"input_ids": ids}
    yield {"input_ids": ids, "decoder_input_ids": ids}
    yield {"pixel_values": pictures}
    yield {"pixel_values": torch.randn(1, 3, 2 * PIXELS, 2 * PIXELS)}
    yield {"input_values": torch.randn(BATCH, 6400)}
    yield {"input_features": spectra.transpose(1, 2).contiguous()}
    yield {"input_features": spectra}
    yield {"input_features": spectra, "decoder_input_ids": ids[:, :8]}
    yield {"input_ids": ids, "pixel_values": pictures}
    yield {"pixel_values": torch.randn(1, 4, 3, PIXELS, PIXELS)}
    yield {"past_values": torch.randn(BATCH, getattr(config, "context_length", 32), getattr(config, "num_input_channels", 1))}
    yield {"inputs_embeds": torch.randn(BATCH, LENGTH, WIDTH)}


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (dict, list, tuple)):
        for each in output.values() if isinstance(output, dict) else output:
            yield from _tensors(each)

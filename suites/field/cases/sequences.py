"""Language models, recurrent layers and attention in other forms."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


def _tokens(length: int = 32) -> torch.Tensor:
    return torch.randint(0, 64, (2, length))


@case("minGRU-pytorch")
def min_gru() -> Made:
    from minGRU_pytorch import minGRU

    return Made(minGRU(dim=32, expansion_factor=1.5), (torch.randn(2, 32, 32),), square)


@case("titans-pytorch")
def titans_memory() -> Made:
    from titans_pytorch import NeuralMemory

    return Made(NeuralMemory(dim=32, chunk_size=8), (torch.randn(2, 32, 32),), lambda out: square(out[0]))


@case("mambapy")
def mamba() -> Made:
    from mambapy.mamba import Mamba, MambaConfig

    return Made(Mamba(MambaConfig(d_model=32, n_layers=2)), (torch.randn(2, 32, 32),), square)


@case("gateloop-transformer")
def gateloop() -> Made:
    from gateloop_transformer import Transformer

    model = Transformer(num_tokens=64, dim=32, depth=2, use_gate_looped_attn=True)
    return Made(Calls(lambda net, x: net(x, return_loss=True), model), (_tokens(),), lambda loss: loss)


@case("hyper-connections")
def hyper_connections() -> Made:
    from hyper_connections import get_init_and_expand_reduce_stream_functions

    init, expand, reduce = get_init_and_expand_reduce_stream_functions(4)
    wrapped = init(dim=32, branch=torch.nn.Linear(32, 32))
    return Made(Calls(lambda layer, x: reduce(layer(expand(x))), wrapped), (torch.randn(2, 16, 32),), square)


@case("routing-transformer")
def routing_transformer() -> Made:
    from routing_transformer import RoutingTransformerLM

    model = RoutingTransformerLM(num_tokens=64, dim=32, heads=2, depth=2, max_seq_len=64, window_size=16, causal=True)
    return Made(model, (_tokens(64),), lambda out: square(out[0]) + out[1])


@case("sinkhorn-transformer")
def sinkhorn_transformer() -> Made:
    from sinkhorn_transformer import SinkhornTransformerLM

    return Made(SinkhornTransformerLM(num_tokens=64, dim=32, heads=2, depth=2, bucket_size=8, max_seq_len=32, causal=False), (_tokens(),), square)


@case("linear-attention-transformer")
def linear_attention() -> Made:
    from linear_attention_transformer import LinearAttentionTransformerLM

    return Made(LinearAttentionTransformerLM(num_tokens=64, dim=32, heads=2, depth=2, max_seq_len=32, causal=True), (_tokens(),), square)


@case("taylor-series-linear-attention")
def taylor_attention() -> Made:
    from taylor_series_linear_attention import TaylorSeriesLinearAttn

    # causal=True needs pytorch-fast-transformers, a compiled extension
    return Made(TaylorSeriesLinearAttn(dim=32, dim_head=8, heads=2, causal=False), (torch.randn(2, 32, 32),), square)


@case("recurrent-memory-transformer-pytorch")
def recurrent_memory() -> Made:
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

    model = RecurrentMemoryTransformer(num_tokens=64, num_memory_tokens=4, dim=32, depth=2, causal=True, dim_head=16, heads=2, seq_len=32)
    return Made(model, (_tokens(),), lambda out: square(out[0]))


@case("block-recurrent-transformer-pytorch")
def block_recurrent() -> Made:
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer

    model = BlockRecurrentTransformer(
        num_tokens=64, dim=32, depth=2, dim_head=16, heads=2, max_seq_len=32, block_width=16, num_state_vectors=8, recurrent_layers=(2,)
    )
    return Made(model, (_tokens(),), lambda out: square(out[0]))


@case("g-mlp-pytorch")
def gated_mlp() -> Made:
    from g_mlp_pytorch import gMLP

    return Made(gMLP(num_tokens=64, dim=32, depth=2, seq_len=32, causal=True), (_tokens(),), square)


@case("colt5-attention")
def conditional_routing() -> Made:
    from colt5_attention import ConditionalRoutedFeedForward

    return Made(ConditionalRoutedFeedForward(32, num_heavy_tokens=8, light_ff_mult=0.5, heavy_ff_mult=4), (torch.randn(2, 32, 32),), square)


@case("lambda-networks")
def lambda_layer() -> Made:
    from lambda_networks import LambdaLayer

    return Made(LambdaLayer(dim=16, dim_out=16, r=5, dim_k=8, heads=2, dim_u=2), (torch.randn(2, 16, 8, 8),), square)


@case("axial-attention")
def axial_attention() -> Made:
    from axial_attention import AxialAttention

    return Made(AxialAttention(dim=16, dim_index=1, heads=2, num_dimensions=2), (torch.randn(2, 16, 8, 8),), square)


@case("bottleneck-transformer-pytorch")
def bottleneck_transformer() -> Made:
    from bottleneck_transformer_pytorch import BottleStack

    model = BottleStack(dim=16, fmap_size=8, dim_out=32, proj_factor=4, heads=2, dim_head=8, downsample=True, rel_pos_emb=True)
    return Made(model, (torch.randn(2, 16, 8, 8),), square)


@case("peft")
def peft_lora() -> Made:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64)
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=True))
    return Made(Calls(lambda net, x: net(input_ids=x, labels=x).loss, model), (_tokens(),), lambda loss: loss)


@case("sentence-transformers")
def sentence_losses() -> Made:
    from sentence_transformers.util import cos_sim, pairwise_angle_sim

    def ranked(layer: torch.nn.Module, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = layer(one), layer(other)
        apart = torch.nn.functional.cross_entropy(cos_sim(a, b) * 20, torch.arange(len(a)))
        return apart + pairwise_angle_sim(a, b).float().mean()

    seen = torch.randn(16, 24)
    return Made(Calls(ranked, torch.nn.Linear(24, 16)), (seen, seen + 0.3 * torch.randn(16, 24)), lambda loss: loss)


@case("chronos-forecasting")
def chronos_bolt() -> Made:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "vocab_size": 8}
    bolt = {"context_length": 32, "prediction_length": 8, "input_patch_size": 8, "input_patch_stride": 8, "quantiles": [0.1, 0.5, 0.9]}
    config = T5Config(**sizes, chronos_config=bolt | {"use_reg_token": True}, reg_token_id=1, dense_act_fn="relu", decoder_start_token_id=0)
    model = ChronosBoltModelForForecasting(config)
    series, target = torch.randn(2, 32).cumsum(1) + 20, torch.randn(2, 8) + 20
    return Made(Calls(lambda net, x, y: net(context=x, target=y).loss, model), (series, target), lambda loss: loss)


@case("litgpt")
def litgpt_llama() -> Made:
    from litgpt import GPT, Config

    shape = Config(
        block_size=300, n_layer=2, n_embd=64, n_head=4, n_query_groups=2, padded_vocab_size=100, rotary_percentage=1.0, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=128, bias=False,
    )  # fmt: skip
    return Made(GPT(shape), (torch.randint(0, 100, (2, 300)),), square)


@case("litgpt")
def litgpt_mixture() -> Made:
    from litgpt import GPT, Config

    shape = Config(
        block_size=64, n_layer=2, n_embd=64, n_head=4, padded_vocab_size=100, norm_class_name="RMSNorm", mlp_class_name="LLaMAMoE",
        intermediate_size=64, n_expert=4, n_expert_per_token=2, bias=False,
    )  # fmt: skip
    return Made(GPT(shape), (torch.randint(0, 100, (2, 64)),), square)


@case("gluonts")
def gluonts_deep_ar() -> Made:
    from gluonts.torch.model.deepar.module import DeepARModel

    model = DeepARModel(
        freq="D", context_length=20, prediction_length=5, num_feat_dynamic_real=1, num_feat_static_real=1, num_feat_static_cat=1, cardinality=[3],
        hidden_size=16, lags_seq=[1, 2, 7],
    )  # fmt: skip
    series = {
        "feat_static_cat": torch.zeros(4, 1, dtype=torch.long), "feat_static_real": torch.randn(4, 1), "past_time_feat": torch.randn(4, 27, 1),
        "past_target": torch.rand(4, 27) * 50, "past_observed_values": torch.ones(4, 27), "future_time_feat": torch.randn(4, 5, 1),
        "future_target": torch.rand(4, 5) * 50, "future_observed_values": torch.ones(4, 5),
    }  # fmt: skip
    return Made(Calls(lambda net, given: net.loss(**given), model), (series,), lambda out: out.mean())


@case("gluonts")
def gluonts_linear() -> Made:
    from gluonts.torch.model.d_linear.module import DLinearModel

    model = DLinearModel(prediction_length=5, context_length=20, hidden_dimension=16)
    series = torch.rand(4, 20) * 50, torch.ones(4, 20), torch.rand(4, 5) * 50, torch.ones(4, 5)
    return Made(Calls(lambda net, *given: net.loss(*given), model), series, lambda out: out.mean())


def _sales() -> Any:
    """Daily sales of three products, as pytorch-forecasting takes them."""
    import pandas
    from pytorch_forecasting import TimeSeriesDataSet

    days = [(product, day) for product in "abc" for day in range(60)]
    table = pandas.DataFrame({"product": [product for product, _ in days], "day": [day for _, day in days]})
    table["sold"] = (torch.rand(len(days)) * 50).numpy()
    return TimeSeriesDataSet(
        table, time_idx="day", target="sold", group_ids=["product"], max_encoder_length=20, max_prediction_length=5, static_categoricals=["product"],
        time_varying_known_reals=["day"], time_varying_unknown_reals=["sold"],
    )  # fmt: skip


@case("pytorch-forecasting")
def temporal_fusion() -> Made:
    from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer

    sales, loss = _sales(), QuantileLoss()
    seen, target = next(iter(sales.to_dataloader(batch_size=8, train=False)))
    model = TemporalFusionTransformer.from_dataset(sales, hidden_size=16, attention_head_size=2, hidden_continuous_size=8, loss=loss)
    return Made(Calls(lambda net, given: loss.loss(net(given)["prediction"], target[0]), model), (seen,), lambda out: out.float().mean())


@case("pytorch-forecasting")
def hierarchical_interpolation() -> Made:
    from pytorch_forecasting import NHiTS, QuantileLoss

    sales, loss = _sales(), QuantileLoss()
    seen, target = next(iter(sales.to_dataloader(batch_size=8, train=False)))
    model = NHiTS.from_dataset(sales, hidden_size=16, loss=loss)
    return Made(Calls(lambda net, given: loss.loss(net(given)["prediction"], target[0]), model), (seen,), lambda out: out.float().mean())


@case("snntorch")
def spiking_network() -> Made:
    import snntorch

    def spiked(one: torch.nn.Module, two: torch.nn.Module, first: torch.nn.Module, second: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        held, out = first.init_leaky(), second.init_leaky()  # type: ignore[operator]
        kept = []
        for _ in range(12):
            spikes, held = first(one(x), held)
            _, out = second(two(spikes), out)
            kept.append(out)
        return torch.stack(kept)

    parts = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4), snntorch.Leaky(beta=0.95), snntorch.Leaky(beta=0.95)
    return Made(Calls(spiked, *parts), (torch.rand(8, 16),), square)

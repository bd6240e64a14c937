"""Language models, long sequences, genomes, tokens of videos."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


def _words(shape: tuple[int, ...] = (2, 64)) -> torch.Tensor:
    return torch.randint(0, 64, shape)


@case("xlstm")
def matrix_memory() -> Made:
    from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMBlockStack, xLSTMBlockStackConfig

    block = mLSTMBlockConfig(mlstm=mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2))
    return Made(
        xLSTMBlockStack(xLSTMBlockStackConfig(mlstm_block=block, context_length=64, num_blocks=2, embedding_dim=32)),
        (torch.randn(2, 64, 32),),
        square,
    )


@case("xlstm")
def scalar_memory() -> Made:
    from xlstm import FeedForwardConfig, sLSTMBlockConfig, sLSTMLayerConfig, xLSTMBlockStack, xLSTMBlockStackConfig

    layer = sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4)
    block = sLSTMBlockConfig(slstm=layer, feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"))
    settings = xLSTMBlockStackConfig(slstm_block=block, context_length=32, num_blocks=1, embedding_dim=32, slstm_at=[0])
    return Made(xLSTMBlockStack(settings), (torch.randn(2, 32, 32),), square)


@case("torchscale")
def retention_decoder() -> Made:
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    settings = RetNetConfig(
        vocab_size=64, decoder_embed_dim=32, decoder_value_embed_dim=64, decoder_retention_heads=2, decoder_ffn_embed_dim=64, decoder_layers=2
    )
    return Made(RetNetDecoder(settings, embed_tokens=torch.nn.Embedding(64, 32)), (_words(),), lambda out: square(out[0]))


@case("infini-transformer-pytorch")
def compressed_memory() -> Made:
    from infini_transformer_pytorch import InfiniTransformer

    model = InfiniTransformer(num_tokens=64, dim=32, depth=2, dim_head=16, heads=2, use_mem_delta_rule=True)

    def read(net: torch.nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        _, _, memories = net(first, return_new_memories=True)
        return net(second, past_memories=memories, return_new_memories=True)[0]

    return Made(Calls(read, model), (_words(), _words()), square)


@case("feedback-transformer-pytorch")
def feedback_memory() -> Made:
    from feedback_transformer_pytorch import FeedbackTransformer

    return Made(FeedbackTransformer(num_tokens=64, dim=32, depth=2, seq_len=2, mem_len=16, dim_head=16, heads=2), (_words((2, 16)),), square)


@case("yet-another-retnet")
def retention_network() -> Made:
    from yet_another_retnet.retnet import RetNet

    model = RetNet(num_tokens=64, d_model=32, nhead=2, num_layers=2, dim_feedforward=64)
    return Made(model, (_words(), _words()), lambda out: out)


@case("accelerated-scan")
def scanned_gates() -> Made:
    from accelerated_scan.ref import scan

    def scanned(gates: torch.nn.Module, tokens: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return scan(gates(x).sigmoid().transpose(1, 2).contiguous(), tokens(x).transpose(1, 2).contiguous())

    return Made(Calls(scanned, torch.nn.Linear(16, 32), torch.nn.Linear(16, 32)), (torch.randn(2, 64, 16),), square)


@case("PEER-pytorch")
def million_experts() -> Made:
    from PEER_pytorch import PEER

    return Made(PEER(dim=32, heads=2, num_experts=256, num_experts_per_head=4, dim_key=16), (torch.randn(2, 16, 32),), square)


@case("magvit2-pytorch")
def video_tokens() -> Made:
    from magvit2_pytorch import VideoTokenizer

    model = VideoTokenizer(
        image_size=16,
        init_dim=8,
        max_dim=16,
        codebook_size=64,
        layers=("residual", "compress_space", "residual"),
        use_gan=False,
        perceptual_loss_weight=0.0,
    )
    return Made(Calls(lambda net, x: net(x, return_loss=True)[0], model), (torch.rand(1, 3, 3, 16, 16),), lambda out: out)


@case("enformer-pytorch")
def genome_network() -> Made:
    from enformer_pytorch import Enformer

    model = Enformer.from_hparams(
        dim=96, depth=1, heads=2, output_heads={"human": 4}, target_length=-1, num_downsamples=3, dim_divisible_by=12, attn_dim_key=12
    )
    return Made(model, (torch.randint(0, 4, (1, 256)),), lambda out: square(out["human"]))


@case("autoregressive-diffusion-pytorch")
def token_diffusion() -> Made:
    from autoregressive_diffusion_pytorch import AutoregressiveDiffusion

    model = AutoregressiveDiffusion(dim=32, dim_input=8, max_seq_len=16, depth=1, dim_head=16, heads=2, mlp_depth=1, mlp_width=32)
    return Made(model, (torch.rand(2, 16, 8),), lambda out: out)


@case("loralib")
def low_rank() -> Made:
    import loralib

    layers = loralib.Linear(16, 32, r=4), torch.nn.GELU(), loralib.MergedLinear(32, 24, r=4, enable_lora=[True, False, True])
    model = torch.nn.Sequential(*layers)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=0.1)
        weight.requires_grad_("lora" in name)
    return Made(model, (torch.randn(8, 16),), square)


@case("torch-struct")
def chain_marginals() -> Made:
    from torch_struct import LinearChainCRF

    def marginals(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return LinearChainCRF(layer(x).view(2, 31, 5, 5)).partition

    return Made(Calls(marginals, torch.nn.Linear(16, 25)), (torch.randn(2, 31, 16),), lambda out: out.mean())


@case("torch-struct")
def tree_marginals() -> Made:
    from torch_struct import DependencyCRF

    return Made(Calls(lambda layer, x: DependencyCRF(layer(x)).partition, torch.nn.Linear(12, 12)), (torch.randn(2, 12, 12),), lambda out: out.mean())


@case("pytorch-pretrained-bert")
def first_bert() -> Made:
    from pytorch_pretrained_bert import BertConfig, BertForPreTraining

    settings = BertConfig(64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    return Made(BertForPreTraining(settings), (_words(),), lambda out: square(out[0]) + square(out[1]))


@case("kmeans-pytorch")
def soft_clusters() -> Made:
    from kmeans_pytorch import pairwise_cosine, pairwise_distance

    centres = torch.nn.Linear(8, 4)

    def assigned(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        places = layer.weight  # type: ignore[union-attr]
        return (pairwise_distance(x, places) + pairwise_cosine(x, places)).softmax(-1)  # type: ignore[arg-type]

    return Made(Calls(assigned, centres), (torch.randn(64, 8),), square)


@case("MEGABYTE-pytorch")
def megabyte() -> Made:
    from MEGABYTE_pytorch import MEGABYTE

    model = MEGABYTE(num_tokens=64, dim=(64, 32), max_seq_len=(16, 4), depth=(2, 2), dim_head=16, heads=2)
    return Made(Calls(lambda net, x: net(x, return_loss=True), model), (_words(),), lambda loss: loss)



@case("coca-pytorch")
def coca() -> Made:
    from coca_pytorch.coca_pytorch import CoCa

    patches = Calls(lambda layer, x: layer(x).flatten(2).transpose(1, 2), torch.nn.Conv2d(3, 32, 8, stride=8))
    model = CoCa(
        dim=32, img_encoder=patches, image_dim=32, num_tokens=64, unimodal_depth=2, multimodal_depth=2, dim_head=16, heads=2, num_img_queries=16,
    )  # fmt: skip
    return Made(Calls(lambda net, x, y: net(text=x, images=y, return_loss=True), model), (_words((4, 24)), torch.randn(4, 3, 32, 32)), lambda x: x)

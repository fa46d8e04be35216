"""Small modules of public packages for the benchmark `from_torch`, two of each.

Each case builds a module of a tiny configuration and states its inputs. Packages are
imported only when a case of theirs is built.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

load = importlib.import_module

# From torch, a seed, and by how much longer the first axis is, to a tensor.
Draw = Callable[[Any, int, int], Any]


def normal(*shape: int) -> Draw:
    def draw(torch: Any, seed: int, longer: int) -> Any:
        source = torch.Generator().manual_seed(seed)
        return torch.randn((shape[0] + longer, *shape[1:]), generator=source)

    return draw


def uniform(*shape: int) -> Draw:
    def draw(torch: Any, seed: int, longer: int) -> Any:
        source = torch.Generator().manual_seed(seed)
        return torch.rand((shape[0] + longer, *shape[1:]), generator=source)

    return draw


def ids(count: int, *shape: int) -> Draw:
    def draw(torch: Any, seed: int, longer: int) -> Any:
        source = torch.Generator().manual_seed(seed)
        size = (shape[0] + longer, *shape[1:])
        return torch.randint(0, count, size, generator=source)

    return draw


def mask(*shape: int) -> Draw:
    """True for what counts; other seeds than the example's have a row of False."""

    def draw(torch: Any, seed: int, longer: int) -> Any:
        size = (shape[0] + longer, *shape[1:])
        source = torch.Generator().manual_seed(seed)
        drawn = torch.rand(size, generator=source) < 0.7
        drawn[0] = seed == 0
        return drawn

    return draw


# The name of a case, the module, and the inputs of its forward by name.
Case = tuple[str, Callable[[], Any], Mapping[str, Draw]]
PACKAGES: dict[str, tuple[Case, ...]] = {
    "axial_positional_embedding": (
        (
            "axial",
            lambda: load("axial_positional_embedding").AxialPositionalEmbedding(
                dim=16, axial_shape=(4, 4)
            ),
            {"x": normal(2, 16, 16)},
        ),
        (
            "continuous",
            lambda: load(
                "axial_positional_embedding"
            ).ContinuousAxialPositionalEmbedding(dim=16, num_axial_dims=2),
            {"axial_dims": lambda torch, seed, longer: torch.tensor([3, 4])},
        ),
    ),
    "conformer": (
        (
            "conformer",
            lambda: load("conformer").Conformer(
                16, depth=1, dim_head=8, heads=2, conv_kernel_size=5
            ),
            {"x": normal(2, 12, 16)},
        ),
        (
            "block_mask",
            lambda: load("conformer").ConformerBlock(
                dim=16, dim_head=8, heads=2, conv_kernel_size=5
            ),
            {"x": normal(2, 12, 16), "mask": mask(2, 12)},
        ),
    ),
    "denoising_diffusion_pytorch": (
        (
            "unet",
            lambda: load("denoising_diffusion_pytorch").Unet(
                8, dim_mults=(1, 2), attn_dim_head=4, attn_heads=2, flash_attn=False
            ),
            {"x": normal(2, 3, 16, 16), "time": ids(100, 2)},
        ),
        (
            "unet_1d",
            lambda: load("denoising_diffusion_pytorch").Unet1D(
                8, dim_mults=(1, 2), attn_dim_head=4, attn_heads=2
            ),
            {"x": normal(2, 3, 16), "time": ids(100, 2)},
        ),
    ),
    "efficientnet_pytorch": (
        (
            "b0",
            lambda: load("efficientnet_pytorch").EfficientNet.from_name(
                "efficientnet-b0", image_size=64, num_classes=5
            ),
            {"inputs": normal(2, 3, 64, 64)},
        ),
        (
            "b0_narrow",
            lambda: load("efficientnet_pytorch").EfficientNet.from_name(
                "efficientnet-b0", image_size=32, num_classes=5, width_coefficient=0.5
            ),
            {"inputs": normal(2, 3, 32, 32)},
        ),
    ),
    "encodec": (
        (
            "encoder",
            lambda: load("encodec.modules").SEANetEncoder(
                dimension=8, n_filters=4, ratios=[4, 2]
            ),
            {"x": normal(2, 1, 64)},
        ),
        (
            "decoder",
            lambda: load("encodec.modules").SEANetDecoder(
                dimension=8, n_filters=4, ratios=[4, 2], causal=True
            ),
            {"z": normal(2, 8, 9)},
        ),
    ),
    "g_mlp_pytorch": (
        (
            "causal",
            lambda: load("g_mlp_pytorch").gMLP(
                num_tokens=30, dim=16, depth=2, seq_len=12, causal=True,
                circulant_matrix=True, heads=2,
            ),
            {"x": ids(30, 2, 12)},
        ),
        (
            "vision",
            lambda: load("g_mlp_pytorch").gMLPVision(
                image_size=16, patch_size=4, num_classes=5, dim=16, depth=2, attn_dim=8
            ),
            {"x": normal(2, 3, 16, 16)},
        ),
    ),
    "hyper_connections": (
        (
            "stream",
            lambda: load("hyper_connections").HyperConnections(
                2, dim=16, branch=load("torch").nn.Linear(16, 16)
            ),
            {"residuals": normal(4, 6, 16)},
        ),
        (
            "manifold",
            lambda: load(
                "hyper_connections.manifold_constrained_hyper_connections"
            ).ManifoldConstrainedHyperConnections(
                2, dim=16, branch=load("torch").nn.Linear(16, 16)
            ),
            {"residuals": normal(4, 6, 16)},
        ),
    ),
    "kan": (
        (
            "layer",
            lambda: load("kan.KANLayer").KANLayer(in_dim=3, out_dim=4, num=3, k=3),
            {"x": normal(8, 3)},
        ),
        (
            "net",
            lambda: load("kan.MultKAN").MultKAN(
                width=[2, 3, 1], grid=3, k=3, seed=0, auto_save=False, save_act=False,
                symbolic_enabled=False,
            ),
            {"x": normal(8, 2)},
        ),
    ),
    "kornia": (
        (
            "hardnet",
            lambda: load("kornia.feature").HardNet(pretrained=False),
            {"input": uniform(2, 1, 32, 32)},
        ),
        (
            "canny",
            lambda: load("kornia.filters").Canny(),
            {"input": uniform(2, 3, 16, 16)},
        ),
    ),
    "lightly": (
        (
            "dino",
            lambda: load("lightly.models.modules.heads").DINOProjectionHead(
                16, 16, 8, 32
            ),
            {"x": normal(2, 16)},
        ),
        (
            "simclr",
            lambda: load("lightly.models.modules.heads").SimCLRProjectionHead(
                16, 16, 8
            ),
            {"x": normal(2, 16)},
        ),
    ),
    "linear_attention_transformer": (
        (
            "causal",
            lambda: load("linear_attention_transformer").LinearAttentionTransformerLM(
                30, 16, 1, 16, heads=2, dim_head=8, causal=True, blindspot_size=1
            ),
            {"x": ids(30, 2, 16)},
        ),
        (
            "image",
            lambda: load("linear_attention_transformer").ImageLinearAttention(
                8, heads=2, key_dim=4, value_dim=4
            ),
            {"x": normal(2, 8, 6, 6)},
        ),
    ),
    "local_attention": (
        (
            "transformer",
            lambda: load("local_attention").LocalTransformer(
                num_tokens=30, max_seq_len=32, dim=16, depth=1, heads=2, dim_head=8,
                local_attn_window_size=4, use_xpos=True,
            ),
            {"x": ids(30, 2, 16), "mask": mask(2, 16)},
        ),
        (
            "attention",
            lambda: load("local_attention").LocalMHA(
                dim=16, window_size=4, heads=2, dim_head=8, causal=False
            ),
            {"x": normal(2, 12, 16), "mask": mask(2, 12)},
        ),
    ),
    "loralib": (
        (
            "merged_linear",
            lambda: load("loralib").MergedLinear(
                12, 24, r=2, enable_lora=[True, False, True]
            ),
            {"x": normal(2, 5, 12)},
        ),
        (
            "conv",
            lambda: load("loralib").Conv2d(3, 8, 3, r=2),
            {"x": normal(2, 3, 10, 10)},
        ),
    ),
    "mambapy": (
        (
            "mamba",
            lambda: load("mambapy.mamba").Mamba(
                load("mambapy.mamba").MambaConfig(d_model=8, n_layers=1, d_state=4)
            ),
            {"x": normal(2, 9, 8)},
        ),
        (
            "jamba",
            lambda: load("mambapy.jamba").JambaLM(
                load("mambapy.jamba").JambaLMConfig(
                    d_model=16, n_layers=2, mlp_size=16, vocab_size=30, d_state=4,
                    num_attention_heads=2, num_key_value_heads=1, attn_layer_offset=1,
                    attn_layer_period=2, expert_layer_offset=1, expert_layer_period=2,
                    num_experts=2, num_experts_per_tok=1, use_cuda=False,
                )
            ),
            {"tokens": ids(30, 2, 8)},
        ),
    ),
    "mlp_mixer_pytorch": (
        (
            "mixer",
            lambda: load("mlp_mixer_pytorch").MLPMixer(
                image_size=16, channels=3, patch_size=4, dim=16, depth=2, num_classes=5
            ),
            {"input": normal(2, 3, 16, 16)},
        ),
        (
            "permutator",
            lambda: load("mlp_mixer_pytorch").Permutator(
                image_size=16, patch_size=4, dim=16, depth=2, num_classes=5, segments=4
            ),
            {"input": normal(2, 3, 16, 16)},
        ),
    ),
    "neuralop": (
        (
            "fno",
            lambda: load("neuralop.models").FNO(
                n_modes=(4, 4), in_channels=2, out_channels=1, hidden_channels=8,
                n_layers=2,
            ),
            {"x": normal(2, 2, 8, 8)},
        ),
        (
            "uno",
            lambda: load("neuralop.models").UNO(
                in_channels=2, out_channels=1, hidden_channels=8, lifting_channels=8,
                projection_channels=8, n_layers=3, uno_out_channels=[8, 8, 8],
                uno_n_modes=[[4, 4]] * 3,
                uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]], channel_mlp_skip="linear",
            ),
            {"x": normal(2, 2, 8, 8)},
        ),
    ),
    "nflows": (
        (
            "spline",
            lambda: load(
                "nflows.transforms"
            ).PiecewiseRationalQuadraticCouplingTransform(
                mask=[1, 0, 1, 0],
                transform_net_create_fn=lambda i, o: load("nflows.nn.nets").ResidualNet(
                    i, o, hidden_features=8, num_blocks=1
                ),
                num_bins=4, tails="linear", tail_bound=2.0,
            ),
            {"inputs": normal(6, 4)},
        ),
        (
            "autoregressive",
            lambda: load("nflows.transforms").MaskedAffineAutoregressiveTransform(
                features=4, hidden_features=8
            ),
            {"inputs": normal(6, 4)},
        ),
    ),
    "normflows": (
        (
            "coupling",
            lambda: load("normflows").flows.AffineCouplingBlock(
                load("normflows").nets.MLP([2, 8, 4])
            ),
            {"z": normal(6, 4)},
        ),
        (
            "spline",
            lambda: load("normflows").flows.AutoregressiveRationalQuadraticSpline(
                4, 1, 8
            ),
            {"z": normal(6, 4)},
        ),
    ),
    "nystrom_attention": (
        (
            "attention",
            lambda: load("nystrom_attention").NystromAttention(
                dim=16, dim_head=8, heads=2, num_landmarks=4, residual_conv_kernel=5
            ),
            {"x": normal(2, 14, 16), "mask": mask(2, 14)},
        ),
        (
            "former",
            lambda: load("nystrom_attention").Nystromformer(
                dim=16, depth=1, dim_head=8, heads=2, num_landmarks=4,
                attn_values_residual_conv_kernel=5,
            ),
            {"x": normal(2, 16, 16)},
        ),
    ),
    "open_clip": (
        (
            "clip",
            lambda: load("open_clip").CLIP(
                16,
                {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8,
                 "image_size": 16},
                {"context_length": 8, "vocab_size": 30, "width": 16, "heads": 2,
                 "layers": 1},
            ),
            {"image": normal(2, 3, 16, 16), "text": ids(30, 2, 8)},
        ),
        (
            "coca",
            lambda: load("open_clip.coca_model").CoCa(
                16,
                {"context_length": 8, "vocab_size": 30, "width": 16, "heads": 2,
                 "layers": 1, "attn_pooler_heads": 2, "dim_head": 8},
                {"context_length": 8, "vocab_size": 30, "width": 16, "heads": 2,
                 "layers": 1, "embed_cls": True, "output_tokens": True},
                {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8,
                 "image_size": 16, "attentional_pool": True, "attn_pooler_heads": 2,
                 "output_tokens": True},
            ),
            {"image": normal(2, 3, 16, 16), "text": ids(30, 2, 8)},
        ),
    ),
    "perceiver_pytorch": (
        (
            "perceiver",
            lambda: load("perceiver_pytorch").Perceiver(
                num_freq_bands=2, depth=1, max_freq=4.0, num_latents=4, latent_dim=8,
                latent_heads=2, cross_dim_head=4, latent_dim_head=4, num_classes=5,
            ),
            {"data": normal(2, 6, 6, 3)},
        ),
        (
            "lm",
            lambda: load("perceiver_pytorch").PerceiverLM(
                dim=8, num_tokens=30, max_seq_len=12, depth=1, num_latents=4,
                latent_dim=8, latent_heads=2, cross_dim_head=4, latent_dim_head=4,
            ),
            {"x": ids(30, 2, 10), "mask": mask(2, 10)},
        ),
    ),
    "performer_pytorch": (
        (
            "performer",
            lambda: load("performer_pytorch").Performer(
                16, 1, 2, 8, nb_features=8, auto_check_redraw=False
            ),
            {"x": normal(2, 8, 16)},
        ),
        (
            "lm",
            lambda: load("performer_pytorch").PerformerLM(
                num_tokens=30, max_seq_len=16, dim=16, depth=1, heads=2, dim_head=8,
                nb_features=8, auto_check_redraw=False, use_scalenorm=True,
            ),
            {"x": ids(30, 2, 12), "mask": mask(2, 12)},
        ),
    ),
    "pretrainedmodels": (
        (
            "senet",
            lambda: load("pretrainedmodels.models.senet").SENet(
                load("pretrainedmodels.models.senet").SEResNetBottleneck,
                [1, 1, 1, 1], groups=1, reduction=16, dropout_p=None, inplanes=64,
                input_3x3=False, downsample_kernel_size=1, downsample_padding=0,
                num_classes=5,
            ),
            {"x": normal(2, 3, 224, 224)},
        ),
        (
            "dpn",
            lambda: load("pretrainedmodels.models.dpn").DPN(
                small=True, num_init_features=8, k_r=32, groups=8, k_sec=(1, 1, 1, 1),
                inc_sec=(8, 8, 8, 8), num_classes=5,
            ),
            {"input": normal(2, 3, 224, 224)},
        ),
    ),
    "product_key_memory": (
        (
            "pkm",
            lambda: load("product_key_memory").PKM(
                16, heads=2, num_keys=8, topk=4, dim_head=8
            ),
            {"x": normal(2, 6, 16)},
        ),
        (
            "concatenated",
            lambda: load("product_key_memory").PKM(
                16, heads=2, num_keys=8, topk=4, dim_head=8, pre_layernorm=True,
                concat_values_and_combine=True, norm_output=True,
            ),
            {"x": normal(2, 6, 16)},
        ),
    ),
    "pytorch_forecasting": (
        (
            "nhits",
            lambda: load("pytorch_forecasting.models.nhits.sub_modules").NHiTS(
                context_length=12, prediction_length=4, output_size=[1], static_size=0,
                encoder_covariate_size=0, decoder_covariate_size=0,
                static_hidden_size=0, n_blocks=[1, 1], n_layers=[2] * 8,
                hidden_size=[[8, 8], [8, 8]], pooling_sizes=[2, 1],
                downsample_frequencies=[2, 1], pooling_mode="max",
                interpolation_mode="linear", dropout=0.0, activation="ReLU",
                initialization="lecun_normal", batch_normalization=False,
                shared_weights=False, naive_level=True,
            ),
            {"encoder_y": normal(2, 12, 1), "encoder_mask": mask(2, 12),
             "encoder_x_t": normal(2, 12, 0), "decoder_x_t": normal(2, 4, 0),
             "x_s": normal(2, 0)},
        ),
        (
            "attention_mask",
            lambda: load(
                "pytorch_forecasting.models.temporal_fusion_transformer.sub_modules"
            ).InterpretableMultiHeadAttention(n_head=2, d_model=16),
            {"q": normal(2, 6, 16), "k": normal(2, 6, 16), "v": normal(2, 6, 16),
             "mask": mask(2, 6, 6)},
        ),
    ),
    "pytorch_pretrained_vit": (
        (
            "transformer_mask",
            lambda: load("pytorch_pretrained_vit.transformer").Transformer(
                num_layers=2, dim=16, num_heads=2, ff_dim=24, dropout=0.1
            ),
            {"x": normal(2, 6, 16), "mask": mask(2, 6)},
        ),
        (
            "block",
            lambda: load("pytorch_pretrained_vit.transformer").Block(
                dim=16, num_heads=2, ff_dim=24, dropout=0.1
            ),
            {"x": normal(2, 6, 16), "mask": mask(2, 6)},
        ),
    ),
    "pytorch_tcn": (
        (
            "causal",
            lambda: load("pytorch_tcn").TCN(
                4, [8, 8], kernel_size=3, use_skip_connections=True
            ),
            {"x": normal(2, 4, 12)},
        ),
        (
            "gated",
            lambda: load("pytorch_tcn").TCN(
                4, [8, 8], kernel_size=3, causal=False, use_norm="layer_norm",
                use_gate=True, activation="gelu",
            ),
            {"x": normal(2, 4, 12)},
        ),
    ),
    "reformer_pytorch": (
        (
            "hashed",
            lambda: load("reformer_pytorch").Reformer(
                16, 1, heads=2, bucket_size=4, n_hashes=2, ff_chunks=1
            ),
            {"x": normal(2, 16, 16)},
        ),
        (
            "full_attention",
            lambda: load("reformer_pytorch").ReformerLM(
                30, 16, 1, 16, heads=2, dim_head=8, bucket_size=4, ff_chunks=2,
                use_full_attn=True, causal=True, axial_position_emb=True,
                axial_position_shape=(4, 4),
            ),
            {"x": ids(30, 2, 16)},
        ),
    ),
    "resnest": (
        (
            "resnest",
            lambda: load("resnest.torch.resnet").ResNet(
                load("resnest.torch.resnet").Bottleneck, [1, 1, 1, 1], radix=2,
                groups=1, bottleneck_width=16, deep_stem=True, stem_width=8,
                avg_down=True, avd=True, num_classes=5,
            ),
            {"x": normal(2, 3, 64, 64)},
        ),
        (
            "splat",
            lambda: load("resnest.torch.splat").SplAtConv2d(
                8, 8, 3, padding=1, radix=2, groups=2,
                norm_layer=load("torch").nn.BatchNorm2d,
            ),
            {"x": normal(2, 8, 10, 10)},
        ),
    ),
    "rotary_embedding_torch": (
        (
            "rotary",
            lambda: load("rotary_embedding_torch").RotaryEmbedding(dim=8),
            {"t": normal(6)},
        ),
        (
            "pixels",
            lambda: load("rotary_embedding_torch").RotaryEmbedding(
                dim=8, freqs_for="pixel", max_freq=16
            ),
            {"t": normal(6)},
        ),
    ),
    "rtdl_num_embeddings": (
        (
            "periodic",
            lambda: load("rtdl_num_embeddings").PeriodicEmbeddings(
                4, 6, n_frequencies=5, lite=False
            ),
            {"x": normal(3, 4)},
        ),
        (
            "piecewise",
            lambda: load("rtdl_num_embeddings").PiecewiseLinearEmbeddings(
                [load("torch").linspace(-2, 2, n) for n in (4, 5, 6, 3)], 6,
                activation=True, version="B",
            ),
            {"x": normal(3, 4)},
        ),
    ),
    "rtdl_revisiting_models": (
        (
            "resnet",
            lambda: load("rtdl_revisiting_models").ResNet(
                d_in=6, d_out=2, n_blocks=2, d_block=8, d_hidden=None,
                d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0,
            ),
            {"x": normal(3, 6)},
        ),
        (
            "ft_transformer",
            lambda: load("rtdl_revisiting_models").FTTransformer(
                n_cont_features=3, cat_cardinalities=[4, 7], d_out=2, n_blocks=2,
                d_block=16, attention_n_heads=2, attention_dropout=0.1,
                ffn_d_hidden=None, ffn_d_hidden_multiplier=1.5, ffn_dropout=0.1,
                residual_dropout=0.0,
            ),
            {"x_cont": normal(3, 3), "x_cat": ids(4, 3, 2)},
        ),
    ),
    "segmentation_models_pytorch": (
        (
            "unet",
            lambda: load("segmentation_models_pytorch").Unet(
                "resnet18", encoder_weights=None, classes=2, encoder_depth=3,
                decoder_channels=(16, 8, 8),
            ),
            {"x": normal(2, 3, 32, 32)},
        ),
        (
            "fpn",
            lambda: load("segmentation_models_pytorch").FPN(
                "mobilenet_v2", encoder_weights=None, classes=2,
                decoder_pyramid_channels=32, decoder_segmentation_channels=32,
            ),
            {"x": normal(2, 3, 32, 32)},
        ),
    ),
    "siren_pytorch": (
        (
            "net",
            lambda: load("siren_pytorch").SirenNet(2, 8, 3, 2),
            {"x": normal(5, 2)},
        ),
        (
            "wrapper",
            lambda: load("siren_pytorch").SirenWrapper(
                load("siren_pytorch").SirenNet(2, 8, 3, 2), 6, 5, latent_dim=4
            ),
            {"latent": normal(4)},
        ),
    ),
    "snac": (
        (
            "encoder",
            lambda: load("snac.layers").Encoder(
                16, [2, 4], depthwise=True, attn_window_size=4
            ),
            {"x": normal(2, 1, 64)},
        ),
        (
            "codec",
            lambda: load("snac").SNAC(
                encoder_dim=4, encoder_rates=[2, 4], decoder_dim=16,
                decoder_rates=[4, 2], attn_window_size=None, codebook_size=8,
                codebook_dim=4, vq_strides=[2, 1], noise=False,
            ),
            {"audio_data": normal(2, 1, 64)},
        ),
    ),
    "tabm": (
        (
            "tabm",
            lambda: load("tabm").TabM(
                n_num_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=2,
                d_block=8, dropout=0.1, k=3, start_scaling_init="normal",
            ),
            {"x_num": normal(3, 4), "x_cat": ids(3, 3, 2)},
        ),
        (
            "mini_periodic",
            lambda: load("tabm").TabM(
                n_num_features=4, d_out=2, n_blocks=2, d_block=8, dropout=0.1, k=3,
                arch_type="tabm-mini", start_scaling_init="random-signs",
                num_embeddings=load("rtdl_num_embeddings").PeriodicEmbeddings(
                    4, 6, lite=False
                ),
            ),
            {"x_num": normal(3, 4)},
        ),
    ),
    "torchdiffeq": (
        ("rk4", lambda: _solver("rk4"), {"y0": normal(3, 2)}),
        ("dopri5", lambda: _solver("dopri5"), {"y0": normal(3, 2)}),
    ),
    "torchvision": (
        (
            "convnext",
            lambda: load("torchvision.models.convnext").ConvNeXt(
                [
                    load("torchvision.models.convnext").CNBlockConfig(8, 16, 1),
                    load("torchvision.models.convnext").CNBlockConfig(16, None, 1),
                ],
                num_classes=5,
            ),
            {"x": normal(2, 3, 32, 32)},
        ),
        (
            "swin_v2",
            lambda: load("torchvision.models.swin_transformer").SwinTransformer(
                [4, 4], 8, [2, 2], [2, 4], [4, 4], num_classes=5,
                block=load(
                    "torchvision.models.swin_transformer"
                ).SwinTransformerBlockV2,
                downsample_layer=load(
                    "torchvision.models.swin_transformer"
                ).PatchMergingV2,
            ),
            {"x": normal(2, 3, 32, 32)},
        ),
    ),
    "vit_pytorch": (
        (
            "cct",
            lambda: load("vit_pytorch.cct").CCT(
                img_size=16, embedding_dim=16, n_conv_layers=1, kernel_size=3, stride=1,
                padding=1, pooling_kernel_size=3, pooling_stride=2, pooling_padding=1,
                num_layers=1, num_heads=2, mlp_ratio=1.0, num_classes=5,
                positional_embedding="sine",
            ),
            {"x": normal(2, 3, 16, 16)},
        ),
        (
            "max_vit",
            lambda: load("vit_pytorch.max_vit").MaxViT(
                num_classes=5, dim=8, depth=(1, 1), dim_head=4, dim_conv_stem=8,
                window_size=2, mbconv_expansion_rate=2, mbconv_shrinkage_rate=0.25,
            ),
            {"x": normal(2, 3, 32, 32)},
        ),
    ),
    "vocos": (
        (
            "backbone",
            lambda: load("vocos.models").VocosBackbone(
                8, 16, 16, 2, adanorm_num_embeddings=None
            ),
            {"x": normal(2, 8, 12)},
        ),
        (
            "istft",
            lambda: load("vocos.heads").ISTFTHead(16, 16, 4),
            {"x": normal(2, 12, 16)},
        ),
    ),
    "x_transformers": (
        (
            "decoder",
            lambda: load("x_transformers").TransformerWrapper(
                num_tokens=30, max_seq_len=16,
                attn_layers=load("x_transformers").Decoder(
                    dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True,
                    attn_kv_heads=1, use_rmsnorm=True, ff_glu=True,
                ),
            ),
            {"x": ids(30, 2, 12), "mask": mask(2, 12)},
        ),
        (
            "encoder",
            lambda: load("x_transformers").TransformerWrapper(
                num_tokens=30, max_seq_len=16, num_memory_tokens=2,
                attn_layers=load("x_transformers").Encoder(
                    dim=16, depth=1, heads=2, attn_dim_head=8, alibi_pos_bias=True,
                    attn_qk_norm=True, attn_pre_talking_heads=True,
                ),
            ),
            {"x": ids(30, 2, 12), "mask": mask(2, 12)},
        ),
    ),
}  # fmt: skip


def _solver(method: str) -> Any:
    torch, solve = load("torch"), load("torchdiffeq").odeint

    class Solver(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 2)

        def forward(self, y0: Any) -> Any:
            slope = lambda t, y: torch.tanh(self.net(y)) * torch.cos(t)
            return solve(slope, y0, torch.linspace(0.0, 1.0, 4), method=method)

    return Solver()

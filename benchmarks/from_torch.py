"""`from_torch` on modules of public packages, with inputs that were not the example.

The packages are not among ours; put them on the path first, beside a CPU torch. Cases
of a package that is not there are skipped, which their outcome says:

    uv pip install --target FOLDER transformers timm diffusers
    uv pip install --target FOLDER --no-deps einops x-transformers vit-pytorch
    PYTHONPATH=FOLDER python -m benchmarks.from_torch
    PYTHONPATH=FOLDER python -m benchmarks.from_torch modules --cases llama,vocos.istft

Each module has a tiny configuration and random weights. It is converted with one
example and compared with torch on other inputs: other numbers, token ids, lengths and
masks.
"""

import argparse
import importlib
import importlib.machinery
import importlib.metadata
import sys
import time
import unittest.mock
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from benchmarks.from_torch_packages import PACKAGES, Draw
from benchmarks.harness import Figures, Part, is_chosen, run, say

import frugax as ml
from frugax.errors import UnsupportedModuleError

VOCABULARY, TOLERANCE = 99, 1e-5


def tokens(torch: Any, seed: int, batch: int, length: int) -> Any:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=draw)


def padded(
    torch: Any, seed: int, batch: int, length: int, *, left: bool = False
) -> Any:
    """A mask whose rows have different lengths."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(seed and batch):
        count = 1 + (row + seed) % (length - 1)
        mask[row, : count if left else None] = 0
        if not left:
            mask[row] = 1
            mask[row, -count:] = 0
    return mask


def text(*names: str, left: bool = False, fixed: bool = False) -> Callable[..., Any]:
    """Token ids and a mask, of another batch and length for another seed."""

    def make(torch: Any, seed: int) -> dict[str, Any]:
        batch, length = (2, 8) if fixed else (2 + seed, 8 + 3 * seed)
        made = {"input_ids": tokens(torch, seed, batch, length)}
        if "attention_mask" in names:
            made["attention_mask"] = padded(torch, seed, batch, length, left=left)
        if "decoder_input_ids" in names:
            made["decoder_input_ids"] = tokens(torch, seed + 9, batch, length - 2)
        return made

    return make


def image(size: int = 32, channels: int = 3, name: str = "pixel_values") -> Any:
    def make(torch: Any, seed: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(seed)
        shape = (2 + seed, channels, size, size)
        return {name: torch.randn(shape, generator=draw)}

    return make


def sound(name: str, *shape: int) -> Any:
    def make(torch: Any, seed: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(seed)
        return {name: torch.randn((2, *shape), generator=draw)}

    return make


def whisper(torch: Any, seed: int) -> dict[str, Any]:
    made = sound("input_features", 8, 60)(torch, seed)
    return {**made, "decoder_input_ids": tokens(torch, seed, 2, 5)}


def clip(torch: Any, seed: int) -> dict[str, Any]:
    return {
        **text("attention_mask")(torch, seed),
        **image()(torch, seed),
    }


def denoised(torch: Any, seed: int) -> dict[str, Any]:
    return {
        **image(16, 4, "sample")(torch, seed),
        "timestep": torch.tensor([3 + seed] * (2 + seed)),
    }


def conditioned(torch: Any, seed: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn((2 + seed, 5, 16), generator=draw)
    return {**denoised(torch, seed), "encoder_hidden_states": states}


_ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "use_cache": False}
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "image_size": 32, "patch_size": 8,
}  # fmt: skip
_AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (16, 16), "conv_stride": (4, 2),
    "conv_kernel": (8, 3), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 2,
    "vocab_size": VOCABULARY,
}  # fmt: skip
_BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
_STAGES = {
    "num_channels": 3, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
}  # fmt: skip

masked = text("attention_mask")
left_padded = text("attention_mask", left=True)
both = text("attention_mask", "decoder_input_ids")

# The class of `transformers`, its configuration's settings, and its inputs.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "albert": ("AlbertModel", {**_ENCODER, "embedding_size": 16}, masked),
    "bart": ("BartModel", _BART, both),
    "beit": ("BeitModel", _VISION, image()),
    "bert": ("BertModel", _ENCODER, masked),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4,
         "use_cache": False},
        left_padded,
    ),
    "clip": (
        "CLIPModel",
        {"text_config": {**_ENCODER, "eos_token_id": 2, "projection_dim": 16},
         "vision_config": _VISION, "projection_dim": 16},
        clip,
    ),
    "convnext": ("ConvNextModel", _STAGES, image()),
    "deberta": (
        "DebertaModel",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "max_relative_positions": 16},
        masked,
    ),
    "deberta_v2": (
        "DebertaV2Model",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "position_buckets": 8, "share_att_key": True},
        masked,
    ),
    "dinov2": ("Dinov2Model", _VISION, image()),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4,
         "hidden_dim": 48, "max_position_embeddings": 64},
        masked,
    ),
    "electra": ("ElectraModel", {**_ENCODER, "embedding_size": 16}, masked),
    "falcon": ("FalconForCausalLM", _DECODER, left_padded),
    "fnet": ("FNetModel", _ENCODER, text(fixed=True)),
    "gemma": ("GemmaForCausalLM", {**_DECODER, "head_dim": 8}, left_padded),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4,
         "n_positions": 64, "use_cache": False},
        left_padded,
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {**_ENCODER, "use_cache": False}, left_padded),
    "hubert": ("HubertModel", _AUDIO, sound("input_values", 400)),
    "llama": ("LlamaForCausalLM", _DECODER, left_padded),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2,
         "state_size": 4, "use_cache": False},
        text(),
    ),
    "mistral": ("MistralForCausalLM", {**_DECODER, "sliding_window": 4}, left_padded),
    "mixtral": (
        "MixtralForCausalLM",
        {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        left_padded,
    ),
    "mpnet": ("MPNetModel", _ENCODER, masked),
    "opt": (
        "OPTForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 64,
         "word_embed_proj_dim": 32, "use_cache": False},
        left_padded,
    ),
    "phi": ("PhiForCausalLM", {**_DECODER, "num_key_value_heads": 4}, left_padded),
    "qwen2": ("Qwen2ForCausalLM", _DECODER, left_padded),
    "qwen3": ("Qwen3ForCausalLM", {**_DECODER, "head_dim": 8}, left_padded),
    "resnet": (
        "ResNetModel",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        image(),
    ),
    "roberta": ("RobertaModel", {**_ENCODER, "pad_token_id": 1}, masked),
    "segformer": (
        "SegformerModel",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
         "num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 16},
        image(64),
    ),
    "siglip": ("SiglipVisionModel", _VISION, image()),
    "swin": (
        "SwinModel",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 4], "window_size": 4},
        image(),
    ),
    "t5": (
        "T5Model",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48,
         "num_layers": 2, "num_heads": 4, "use_cache": False,
         "decoder_start_token_id": 0},
        both,
    ),
    "vit": ("ViTModel", _VISION, image()),
    "wav2vec2": ("Wav2Vec2Model", _AUDIO, sound("input_values", 400)),
    "whisper": (
        "WhisperModel",
        {**_BART, "num_mel_bins": 8, "max_source_positions": 30,
         "max_target_positions": 16, "pad_token_id": 0, "decoder_start_token_id": 1},
        whisper,
    ),
}  # fmt: skip
TIMM = {
    "timm_convmixer": ("convmixer_768_32", {}, image(32, name="x")),
    "timm_efficientnet": ("efficientnet_b0", {}, image(64, name="x")),
    "timm_mixer": (
        "mixer_s32_224", {"img_size": 64}, image(64, name="x")
    ),
    "timm_mobilenetv3": ("mobilenetv3_small_050", {}, image(64, name="x")),
    "timm_resnet18": ("resnet18", {}, image(64, name="x")),
    "timm_swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 56, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)},
        image(56, name="x"),
    ),
    "timm_vit": (
        "vit_tiny_patch16_224", {"img_size": 64, "depth": 2}, image(64, name="x")
    ),
}  # fmt: skip
_BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
DIFFUSERS = {
    "diffusers_vae": (
        "AutoencoderKL",
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4},
        image(16, name="sample"),
    ),
    "diffusers_unet": (
        "UNet2DModel",
        {**_BLOCKS, "sample_size": 16, "in_channels": 4, "out_channels": 4,
         "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 4},
        denoised,
    ),
    "diffusers_unet_text": (
        "UNet2DConditionModel",
        {**_BLOCKS, "sample_size": 16, "cross_attention_dim": 16,
         "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
         "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
         "attention_head_dim": 4},
        conditioned,
    ),
}  # fmt: skip
OTHERS = {
    f"{package}.{name}": (package, make, draws)
    for package, cases in PACKAGES.items()
    for name, make, draws in cases
}
CASES = [*TRANSFORMERS, *TIMM, *DIFFUSERS, *OTHERS]


def declare_torchvision(torch: Any) -> Any:
    """Let torchvision be imported beside a torch for CPUs only.

    PyPI's wheel is built for CUDA, so its compiled operations are missing, of which
    none is used here.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
    return library


def declare_torchaudio() -> None:
    """Let packages that import torchaudio be imported, without what they use of it.

    PyPI's wheel needs CUDA, and none of the modules here calls it.
    """
    for name in ("", ".functional", ".functional.functional", ".transforms"):
        spec = importlib.machinery.ModuleSpec(f"torchaudio{name}", None)
        stand_in: Any = unittest.mock.MagicMock(__spec__=spec)
        sys.modules.setdefault(spec.name, stand_in)


def draw_all(draws: Mapping[str, Draw]) -> Callable[..., Any]:
    """Inputs by seed; those of the seed 1 are longer."""
    return lambda torch, seed: {
        key: draw(torch, seed, int(seed == 1)) for key, draw in draws.items()
    }


def redraw(torch: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Other numbers, tokens and masks of the same shapes."""
    draw = torch.Generator().manual_seed(5)
    for key, value in made.items():
        shape = value.shape
        if value.is_floating_point():
            made[key] = torch.randn(shape, generator=draw)
        elif "mask" in key:
            made[key] = padded(torch, 1, *shape)
        else:
            made[key] = torch.randint(3, 9, shape, generator=draw)
    return made


def build(name: str) -> tuple[Any, Callable[..., Any], str]:
    """The module of a case, its inputs by seed, and the package with its version."""
    if name in TRANSFORMERS:
        package = importlib.import_module("transformers")
        kind, settings, inputs = TRANSFORMERS[name]
        cls = getattr(package, kind)
        module = cls(cls.config_class(**settings))
    elif name in TIMM:
        package = importlib.import_module("timm")
        kind, settings, inputs = TIMM[name]
        module = package.create_model(kind, pretrained=False, **settings)
    elif name in OTHERS:
        folder, make, draws = OTHERS[name]
        package = importlib.import_module(folder)
        module, inputs = make(), draw_all(draws)
    else:
        package = importlib.import_module("diffusers")
        kind, settings, inputs = DIFFUSERS[name]
        module = getattr(package, kind)(**settings)
    module.eval()  # some modules do not return themselves
    (owner, *_) = importlib.metadata.packages_distributions()[package.__name__]
    return module, inputs, f"{owner} {importlib.metadata.version(owner)}"


def difference(want: np.ndarray, found: np.ndarray) -> float:
    """The largest difference over the largest number; NaN must meet NaN."""
    assert want.shape == found.shape
    if not np.array_equal(np.isnan(want), np.isnan(found)):
        return float("inf")
    gap = np.abs(np.nan_to_num(want).astype("c16") - np.nan_to_num(found)).max()
    return float(gap / max(np.nan_to_num(np.abs(want)).max(), 1e-30))


def measure_module(torch: Any, name: str) -> Figures:
    """Convert a module, and compare it with torch on inputs that it has not seen."""
    torch.manual_seed(0)
    try:
        module, inputs, package = build(name)
    except ImportError as e:
        return {"outcome": f"skipped: {e}"[:300]}
    for weight in module.parameters():
        # Some packages begin with matrices of zeros, whose outputs would say nothing.
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    start = time.process_time()
    try:
        imported = ml.models.from_torch(module, (), inputs(torch, 0))
    except UnsupportedModuleError as e:
        return {"package": package, "outcome": f"refused: {e}"[:300]}
    figures: Figures = {
        "package": package,
        "outcome": "converted",
        "certificate": imported.certificate.max_error,
        "cpu_s": time.process_time() - start,
    }
    free = any(isinstance(n, str) for s in imported.free_shapes.values() for n in s)
    figures["free_lengths"] = free
    compiled = ml.compile(imported.model, ml.JaxBackend())
    for label, seed in (("same_shapes", 0), ("other_shapes", 1)):
        made = inputs(torch, seed)
        if label == "same_shapes":
            made = inputs(torch, 5) if name in OTHERS else redraw(torch, made)
        elif any(
            not isinstance(n, str) and n != m
            for key, shape in imported.free_shapes.items()
            for n, m in zip(shape, made[key].shape, strict=True)
        ):
            figures[label] = "fixed"
            continue
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(module(**made))
        wanted = [t.numpy() for t in leaves if isinstance(t, torch.Tensor)]
        data = {k: v.numpy() for k, v in made.items()}
        data = {k: v.astype("i4") if v.dtype == "i8" else v for k, v in data.items()}
        got = compiled.evaluate(imported.params, data).values()
        worst = max(map(difference, wanted, map(np.asarray, got)))
        figures[label] = worst
        if not worst <= TOLERANCE:
            figures["outcome"] = f"differs on {label}"
    return figures


def modules(given: argparse.Namespace) -> Figures:
    """Which modules convert, and how far each is from torch."""
    import torch

    warnings.simplefilter("ignore")
    library = declare_torchvision(torch)
    declare_torchaudio()
    found: Figures = {}
    for name in CASES:
        if is_chosen(name, given):
            found[name] = measure_module(torch, name)
            say(f"{name}: {found[name]}")
    del library  # its operations live as long as it does
    return found


PARTS = {"modules": Part(measure=modules, minutes=(30, 0))}

if __name__ == "__main__":
    run("from_torch", PARTS)

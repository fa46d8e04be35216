"""Name tensors as llama.cpp does, and state a model's sizes, from its `config.json`.

https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py has the rules.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from frugax.errors import UnsupportedFileError

from ._export_layout import Item, split_gate_up
from ._roles import WEIGHT, ModelConfig
from ._tensor_table import TensorReport

# The architecture of llama.cpp for each model type of transformers.
_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt2": "gpt2",
}
# Names of modules; `#` stands for the number of a layer.
_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "layers.#.input_layernorm": "blk.#.attn_norm",
    "layers.#.post_attention_layernorm": "blk.#.ffn_norm",
    "layers.#.self_attn.q_proj": "blk.#.attn_q",
    "layers.#.self_attn.k_proj": "blk.#.attn_k",
    "layers.#.self_attn.v_proj": "blk.#.attn_v",
    "layers.#.self_attn.o_proj": "blk.#.attn_output",
    "layers.#.self_attn.q_norm": "blk.#.attn_q_norm",
    "layers.#.self_attn.k_norm": "blk.#.attn_k_norm",
    "layers.#.mlp.gate_proj": "blk.#.ffn_gate",
    "layers.#.mlp.up_proj": "blk.#.ffn_up",
    "layers.#.mlp.down_proj": "blk.#.ffn_down",
    "layers.#.mlp.gate": "blk.#.ffn_gate_inp",
    "layers.#.block_sparse_moe.gate": "blk.#.ffn_gate_inp",
    "layers.#.mlp.shared_expert.gate_proj": "blk.#.ffn_gate_shexp",
    "layers.#.mlp.shared_expert.up_proj": "blk.#.ffn_up_shexp",
    "layers.#.mlp.shared_expert.down_proj": "blk.#.ffn_down_shexp",
    "layers.#.mlp.shared_expert_gate": "blk.#.ffn_gate_inp_shexp",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "h.#.ln_1": "blk.#.attn_norm",
    "h.#.ln_2": "blk.#.ffn_norm",
    "h.#.attn.c_attn": "blk.#.attn_qkv",
    "h.#.attn.c_proj": "blk.#.attn_output",
    "h.#.mlp.c_fc": "blk.#.ffn_up",
    "h.#.mlp.c_proj": "blk.#.ffn_down",
}
_EXPERTS = {
    **dict.fromkeys(("gate_proj", "w1"), "ffn_gate_exps"),
    **dict.fromkeys(("up_proj", "w3"), "ffn_up_exps"),
    **dict.fromkeys(("down_proj", "w2"), "ffn_down_exps"),
}
_EXPERT = re.compile(r"(?:model\.)?layers\.(\d+)\.\w+\.experts\.(?:(\d+)\.)?(\w+)")
# Tables that programs compute themselves, and masks.
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
# A value of the metadata: a text, a number, or a list of these.
Value = str | int | float | bool | list[str] | list[int] | list[float]


def find_architecture(config: ModelConfig) -> str:
    """Return the architecture of llama.cpp; empty for one that is not known here."""
    return _ARCHITECTURES.get(config.model_type, "")


def name_for_llama_cpp(
    entries: Sequence[TensorReport], config: ModelConfig, place: str
) -> list[Item]:
    """Return the tensors of a file that llama.cpp loads.

    Raises:
        UnsupportedFileError: a tensor has no place in the architecture.
    """
    items: list[Item] = []
    experts: dict[str, dict[int, TensorReport]] = {}
    for entry in entries:
        if _COMPUTED.search(entry.name):
            continue
        if found := _EXPERT.match(entry.name.removesuffix(WEIGHT)):
            layer, number, name = found.groups()
            if number is None:
                items.extend(_split_fused(entry, layer, name, place))
                continue
            target = f"blk.{layer}.{_expert_name(entry.name, name, place)}.weight"
            experts.setdefault(target, {})[int(number)] = entry
            continue
        name, ending = _rename(entry.name, place)
        items.append(
            Item(
                f"{name}.{ending}",
                (entry.name,),
                entry.shape[::-1] if _is_conv1d(entry, config) else entry.shape,
                make=_transform(entry, config),
            )
        )
    for target, of_layer in experts.items():
        ordered = [of_layer[i] for i in sorted(of_layer)]
        shape = len(ordered), *ordered[0].shape
        items.append(Item(target, tuple(e.name for e in ordered), shape, make=np.stack))
    return items


def _rename(name: str, place: str) -> tuple[str, str]:
    module, _, ending = name.rpartition(".")
    module = re.sub(r"^(model|transformer)\.", "", module)
    number = re.search(r"\d+", module)
    found = _NAMES.get(re.sub(r"\d+", "#", module, count=1))
    if found is None or ending not in ("weight", "bias"):
        _refuse(name, place)
    return found.replace("#", number[0] if number else ""), ending


def _refuse(name: str, place: str) -> NoReturn:
    raise UnsupportedFileError(
        f"{place}: the tensor {name!r} has no place in the architecture that its "
        "config.json names: leave it out, or export without config.json."
    )


def _expert_name(name: str, last: str, place: str) -> str:
    if last not in _EXPERTS:
        _refuse(name, place)
    return _EXPERTS[last]


def _split_fused(entry: TensorReport, layer: str, name: str, place: str) -> list[Item]:
    """Return the stacks of experts that are stored as one tensor."""
    count, rows, columns = entry.shape

    def take(sources: list[np.ndarray], piece: slice) -> np.ndarray:
        return np.ascontiguousarray(sources[0][:, piece])

    return [
        Item(
            f"blk.{layer}.{_expert_name(entry.name, each, place)}.weight",
            (entry.name,),
            (count, len(range(rows)[piece]), columns),
            make=functools.partial(take, piece=piece),
        )
        for each, piece in split_gate_up(name, rows).items()
    ]


def _is_conv1d(entry: TensorReport, config: ModelConfig) -> bool:
    return config.model_type == "gpt2" and bool(_CONV1D.search(entry.name))


def _transform(
    entry: TensorReport, config: ModelConfig
) -> Callable[[list[np.ndarray]], np.ndarray] | None:
    """Return how a tensor is changed; None where it is not."""
    if _is_conv1d(entry, config):
        return lambda sources: np.ascontiguousarray(sources[0].T)
    entries = config.entries
    heads = entries.get("num_attention_heads", 1)
    if find_architecture(config) == "llama" and ".self_attn." in entry.name:
        if ".k_proj." in entry.name:
            heads = entries.get("num_key_value_heads") or heads
        elif ".q_proj." not in entry.name:
            return None
        return lambda sources: _interleave_halves(sources[0], heads)
    return None


def _interleave_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Turn the rows of heads from rotated halves to rotated neighbours."""
    halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def describe_model(config: ModelConfig, place: str) -> dict[str, Value]:
    """Return the metadata that llama.cpp needs to build the model.

    Raises:
        UnsupportedFileError: an entry is missing, or has no counterpart.
    """
    entries, name = config.entries, find_architecture(config)

    def need(*keys: str) -> Any:
        for key in keys:
            if entries.get(key) is not None:
                return entries[key]
        raise UnsupportedFileError(
            f"{place}: its config.json lacks {keys[0]!r}, which llama.cpp needs."
        )

    hidden = need("hidden_size", "n_embd")
    heads = need("num_attention_heads", "n_head")
    found: dict[str, Value] = {
        "general.architecture": name,
        "general.quantization_version": 2,
        f"{name}.block_count": need("num_hidden_layers", "n_layer"),
        f"{name}.context_length": need("max_position_embeddings", "n_positions"),
        f"{name}.embedding_length": hidden,
        f"{name}.attention.head_count": heads,
        f"{name}.vocab_size": need("vocab_size"),
    }
    if name == "gpt2":
        found[f"{name}.feed_forward_length"] = entries.get("n_inner") or 4 * hidden
        found[f"{name}.attention.layer_norm_epsilon"] = float(
            need("layer_norm_epsilon")
        )
        return found
    length = entries.get("head_dim") or hidden // heads
    found |= {
        f"{name}.feed_forward_length": need("intermediate_size"),
        f"{name}.attention.head_count_kv": entries.get("num_key_value_heads") or heads,
        f"{name}.attention.layer_norm_rms_epsilon": float(need("rms_norm_eps")),
        f"{name}.attention.key_length": length,
        f"{name}.attention.value_length": length,
        f"{name}.rope.dimension_count": length,
        f"{name}.rope.freq_base": float(_rope(entries).get("rope_theta", 10_000.0)),
    }
    if config.experts:
        used = need("num_experts_per_tok")
        found |= {f"{name}.expert_count": max(config.experts)}
        found |= {f"{name}.expert_used_count": used}
    for key, ours in (
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ):
        if entries.get(key):
            found[f"{name}.{ours}"] = entries[key]
    return found | _describe_rope(config, name, place)


def _rope(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    # Of transformers 5 and of those before.
    return {**entries, **(entries.get("rope_parameters") or {})}


def _rope_scaling(entries: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return how frequencies are scaled, and the entries about it."""
    scaling = entries.get("rope_scaling") or entries.get("rope_parameters") or {}
    return scaling.get("rope_type") or scaling.get("type", "default"), scaling


def _describe_rope(config: ModelConfig, name: str, place: str) -> dict[str, Value]:
    kind, scaling = _rope_scaling(config.entries)
    match kind:
        case "default" | "llama3":  # llama3 has a tensor of factors
            return {}
        case "linear":
            return {
                f"{name}.rope.scaling.type": "linear",
                f"{name}.rope.scaling.factor": float(scaling["factor"]),
            }
        case "yarn":
            return {
                f"{name}.rope.scaling.type": "yarn",
                f"{name}.rope.scaling.factor": float(scaling["factor"]),
                f"{name}.rope.scaling.original_context_length": scaling[
                    "original_max_position_embeddings"
                ],
            }
    raise UnsupportedFileError(
        f"{place}: its config.json has the rope_type {kind!r}, which is not known here."
    )


def rope_factors(config: ModelConfig) -> np.ndarray | None:
    """Return what Llama 3 divides the frequencies of positions by; None without."""
    entries = config.entries
    kind, scaling = _rope_scaling(entries)
    if kind != "llama3":
        return None
    hidden, heads = entries["hidden_size"], entries["num_attention_heads"]
    length = entries.get("head_dim") or hidden // heads
    base = float(_rope(entries).get("rope_theta", 10_000.0))
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wave = 2 * math.pi * base ** (np.arange(0, length, 2) / length)
    # Long waves are stretched, short ones not, and those between in part.
    smooth = np.clip((context / wave - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)

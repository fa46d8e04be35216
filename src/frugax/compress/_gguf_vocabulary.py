"""Write a tokeniser's vocabulary into GGUF's metadata, from its `tokenizer.json`."""

import json
import re
from pathlib import Path
from typing import Any

from frugax.errors import CorruptFileError

from ._gguf_model import Value
from ._roles import ModelConfig

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 3, 4, 5, 6
# How a text is cut up before pairs are merged, by the name that llama.cpp has for it.
_CUTS = {
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), "qwen2"),
    "llama": "llama-bpe",
    "mistral": "tekken",
    "gpt2": "gpt-2",
}


def describe_vocabulary(folder: Path, config: ModelConfig) -> dict[str, Value]:
    """Return the tokens, merges and special tokens; no vocabulary without the file."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return {"tokenizer.ggml.model": "no_vocab"}
    try:
        found = json.loads(path.read_bytes())
        model: dict[str, Any] = found["model"]
        by_id = {number: token for token, number in model["vocab"].items()}
        added = {token["id"]: token for token in found.get("added_tokens", ())}
        merges = model["merges"]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        if isinstance(e, ValueError):
            raise CorruptFileError(f"{path}: not JSON ({e}): copy it again.") from e
        return {"tokenizer.ggml.model": "no_vocab"}  # no byte pairs, such as Unigram
    count = config.entries.get("vocab_size") or 1 + max([*by_id, *added])
    tokens: list[str] = []
    kinds: list[int] = []
    for number in range(count):
        if number in added:
            tokens.append(added[number]["content"])
            special = added[number].get("special", False)
            kinds.append(_CONTROL if special else _USER_DEFINED)
            continue
        token = by_id.get(number)
        tokens.append(f"[PAD{number}]" if token is None else token)
        is_byte = token is not None and re.fullmatch("<0x[0-9A-F]{2}>", token)
        kinds.append(_UNUSED if token is None else _BYTE if is_byte else _NORMAL)
    described: dict[str, Value] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    if model.get("byte_fallback"):  # sentencepiece: merges follow from the order
        first = kinds.index(_NORMAL)
        described["tokenizer.ggml.model"] = "llama"
        described["tokenizer.ggml.scores"] = [
            float(first - number) if kind == _NORMAL else 0.0
            for number, kind in enumerate(kinds)
        ]
    else:
        described["tokenizer.ggml.model"] = "gpt2"
        described["tokenizer.ggml.pre"] = _CUTS.get(config.model_type, "default")
        described["tokenizer.ggml.merges"] = [
            merge if isinstance(merge, str) else " ".join(merge) for merge in merges
        ]
    for ours, key in (("bos", "bos_token_id"), ("eos", "eos_token_id")):
        number = config.entries.get(key)
        if isinstance(number, list):  # any of them ends a text
            number = number[0]
        if number is not None:
            described[f"tokenizer.ggml.{ours}_token_id"] = int(number)
    return described

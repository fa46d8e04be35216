r"""Calibrated files beside files that are not, and beside GPTQ, HQQ and NF4.

    python -m benchmarks.compress_calibrated
    python -m benchmarks.compress_calibrated --parts stdlib_lm
    python -m benchmarks.compress_calibrated --parts minilm --peers "NF4 g64" \
        --rules default

minilm: all-MiniLM-L6-v2. Calibrated on docstrings of one half of the modules of
Python's standard library, and measured on docstrings of the other half and on 180
sentences that are nothing like docstrings. The error is the mean of 1 - cosine to the
embedding by the float32 weights. Peers quantise all matrices, vectors stay float32, and
all bytes count. GPTQ is written as its paper and its code say, for the linear layers,
from their inputs on the same text; embedding tables, which have no such inputs, are
rounded to the same bits in the same groups.

stdlib_lm: the model of `examples/stdlib_lm.yaml`, trained here for as many steps as it
says, in bits a character on files that it was not trained on.
"""

import argparse
import ast
import math
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.compress_quality import sentences
from benchmarks.compress_rivals import gptq, hqq, nf4, round_groups
from benchmarks.parts import Part, run_parts
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.budget import table

PEERS = ("hqq", "termcolor", "tokenizers", "tqdm", "huggingface-hub")
ROOT = Path(__file__).parents[1]
Weights = dict[str, Any]
LAYERS, HEADS, LENGTH = 6, 12, 32


def docstrings() -> tuple[list[str], list[str]]:
    """Sentences of docstrings, of one half of the standard library and of the other."""
    by_file: list[list[str]] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        texts = [
            ast.get_docstring(node) or ""
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        ]
        parts = [" ".join(p.split()) for text in texts for p in text.split("\n\n")]
        split = [s for p in parts for s in re.split(r"(?<=[.!?])\s+", p)]
        # Sentences of 6 to 30 words that are words for the most part.
        by_file.append(
            [
                s
                for s in split
                if re.fullmatch(r"[A-Z].*\.", s)
                and 6 <= len(s.split()) <= 30
                and sum(c.isalpha() or c == " " for c in s) > 0.9 * len(s)
            ]
        )
    rng = random.Random(0)
    rng.shuffle(by_file)
    halves = by_file[::2], by_file[1::2]
    first, second = ([s for f in half for s in f] for half in halves)
    rng.shuffle(first)
    rng.shuffle(second)
    return first, second


def embed(w: Weights, batch: Any, taps: Weights | None = None) -> Any:
    """MiniLM's vectors, from its own names; `taps` gets the inputs of linear layers."""

    def linear(name: str, x: Any) -> Any:
        if taps is not None:
            taps[f"{name}.weight"] = x
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    tokens, mask = batch["tokens"], batch["mask"]
    x = w["embeddings.word_embeddings.weight"][tokens]
    x = x + w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = norm(
        "embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0]
    )
    for i in range(LAYERS):
        at = f"encoder.layer.{i}"
        q, k, v = (
            linear(f"{at}.attention.self.{name}", x)
            .reshape(*tokens.shape, HEADS, -1)
            .swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
        share = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9))
        mixed = (share @ v).swapaxes(1, 2).reshape(x.shape)
        mixed = linear(f"{at}.attention.output.dense", mixed)
        x = norm(f"{at}.attention.output.LayerNorm", x + mixed)
        up = jax.nn.gelu(linear(f"{at}.intermediate.dense", x), approximate=False)
        down = linear(f"{at}.output.dense", up)
        x = norm(f"{at}.output.LayerNorm", x + down)
    mean = (x * mask[..., None]).sum(1)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def batches(texts: list[str], size: int) -> Iterator[Weights]:
    """Tokens of one length, so that all batches are one program."""
    sys.path.insert(0, str(ROOT / "examples"))
    import minilm  # pyright: ignore[reportMissingImports]

    for first in range(0, len(texts) - size + 1, size):
        found = minilm.tokenize(texts[first : first + size])
        missing = max(0, LENGTH - found["tokens"].shape[1])
        yield {
            k: np.pad(v[:, :LENGTH], ((0, 0), (0, missing))) for k, v in found.items()
        }


def minilm(options: Any) -> dict[str, Any]:
    """Methods on MiniLM."""
    weights = models()["minilm"]
    known, unknown = docstrings()
    count = sum(w.size for w in weights.values())
    training = [*batches(known[: options.sentences], 16)]
    begin = time.process_time()
    rules: dict[str, Any] = dict.fromkeys(options.rules.split(","))
    if "calibrated" in rules:
        rules["calibrated"] = compress.calibrate(embed, weights, training, draws=2)
    seconds = {"calibrate": time.process_time() - begin}
    tests = {
        "other docstrings": [*batches(unknown[:512], 64)],
        "180 sentences": [*batches(sentences(), 60)],
        "calibrated on": training,
    }
    vectors = jax.jit(embed)
    right = {k: [np.asarray(vectors(weights, b)) for b in v] for k, v in tests.items()}

    def judge(name: str, back: Weights, nbytes: float) -> dict[str, float]:
        row = {"bytes": nbytes, "bits_per_weight": 8 * nbytes / count}
        for test, of_test in tests.items():
            pairs = zip(right[test], of_test, strict=True)
            cosines = [(r * np.asarray(vectors(back, b))).sum(1) for r, b in pairs]
            row[test] = float(np.mean(1 - np.concatenate(cosines).astype(np.float64)))
        print(name, row, file=sys.stderr, flush=True)
        return row

    def ours(name: str, budget: SizeBudget, sensitivity: Any) -> dict[str, float]:
        begin = time.process_time()
        data = compress.compress(weights, budget, sensitivity=sensitivity)
        seconds[name] = time.process_time() - begin
        return judge(name, compress.decompress(data), len(data))

    def peer(name: str, quantise: Callable[..., Any]) -> dict[str, float]:
        back, total = {}, 0.0
        for key, w in weights.items():
            found = quantise(key, w) if w.ndim == 2 else (w, float(w.nbytes))
            back[key], total = found[0], total + found[1]
        return judge(name, back, total)

    grams = input_grams(weights, training)
    of_groups = {3: round_groups(3, 64), 4: round_groups(4, 64)}

    def by_gptq(bits: int) -> Callable[[str, np.ndarray], Any]:
        return lambda key, w: (
            gptq(w, grams[key], bits, 64) if key in grams else of_groups[bits](w)
        )

    peers = {
        "HQQ 3 bits g64": lambda _, w: hqq(3)(w),
        "GPTQ 3 bits g64": by_gptq(3),
        "NF4 g64": lambda _, w: nf4(w),
        "HQQ 4 bits g64": lambda _, w: hqq(4)(w),
        "GPTQ 4 bits g64": by_gptq(4),
    }
    asked = options.peers.split(",") if options.peers else [*peers]
    asked = [name for name in asked if name != "none"]
    found = {name: peer(name, peers[name]) for name in asked}
    budgets = {} if options.peers and asked else {"3 bits": SizeBudget("3bpw")}
    for nbytes in sorted({int(row["bytes"]) for row in found.values()}):
        budgets[f"{nbytes:,} bytes"] = SizeBudget(bytes=nbytes)
    for size, budget in budgets.items():
        for rule, sensitivity in rules.items():
            name = f"{size}, {rule}"
            found[name] = ours(name, budget, sensitivity)
    return {"rows": found, "cpu_seconds": seconds, "sentences": options.sentences}


def input_grams(weights: Weights, training: list[Weights]) -> Weights:
    """The second moments of the inputs of each linear layer, paddings left out."""

    @jax.jit
    def grams(weights: Weights, batch: Any) -> Weights:
        taps: Weights = {}
        embed(weights, batch, taps)
        there = {k: x * batch["mask"][..., None] for k, x in taps.items()}
        return {k: jnp.einsum("bti,btj->ij", x, x) for k, x in there.items()}

    total: Weights = {}
    for batch in training:
        for key, gram in grams(weights, batch).items():
            total[key] = total.get(key, 0) + np.asarray(gram, np.float64)
    return total


def minilm_table(found: dict[str, Any]) -> str:
    """The errors of embeddings."""
    tests = ("other docstrings", "180 sentences", "calibrated on")
    rows = [
        [name, f"{row['bytes']:,.0f}", f"{row['bits_per_weight']:.2f}"]
        + [f"{row[test]:.4f}" for test in tests]
        for name, row in found["rows"].items()
    ]
    return table(["method", "bytes", "bits per weight", *tests], rows)


def stdlib_lm(options: Any) -> dict[str, Any]:
    """The language model of the examples, at some sizes."""
    import optax

    from frugax.run import load_config, load_task

    folder = ROOT / "examples"
    config = load_config(folder / "stdlib_lm.yaml")
    task = load_task(config, config_folder=folder)
    assert task.apply is not None
    evaluate, draw = task.evaluate, task.batches
    assert evaluate is not None
    assert callable(draw)
    steps = config.train.steps
    schedule = optax.cosine_decay_schedule(config.train.learning_rate, steps)
    optimiser = optax.adam(schedule)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda p: task.loss(p, batch)[0])(params)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, updates), state

    params = task.init(jax.random.key(config.seed))
    state = optimiser.init(params)
    for number in range(steps):
        params, state = step(params, state, draw(number))
    params = jax.device_get(params)
    bits = lambda p: float(evaluate(p)["bits_per_character"])
    # Windows of the training text that no step has drawn.
    training = [np.asarray(draw(steps + i))[:, :-1] for i in range(8)]
    calibration = compress.calibrate(task.apply, params, training, draws=4)
    before = bits(params)
    rows = {"float32": {"bits_per_weight": 32.0, "bits": before, "more": 0.0}}
    for size in ("3bpw", "4bpw"):  # the bar first
        for name, rule in (("default", None), ("calibrated", calibration)):
            data = compress.compress(params, SizeBudget(size), sensitivity=rule)
            after = bits(compress.decompress(data))
            rows[f"{size}, {name}"] = {
                "bits_per_weight": float(size[0]),
                "bits": after,
                "more": after - before,
            }
            print(f"{size}, {name}: {after - before:+.4f}", file=sys.stderr, flush=True)
    return rows


def stdlib_lm_table(found: dict[str, Any]) -> str:
    """Measure the loss of the language model's quality."""
    rows = [
        [name, f"{row['bits']:.4f}", f"{row['more']:+.4f}"]
        for name, row in found.items()
    ]
    return table(["file", "bits a character", "more than float32"], rows)


PARTS: dict[str, Part] = {
    "minilm": (minilm, minilm_table),
    "stdlib_lm": (stdlib_lm, stdlib_lm_table),
}


def main() -> None:
    """Run the requested parts and add them to the stored results."""
    sys.path.append(str(install(*PEERS)))
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ask.add_argument("--sentences", type=int, default=256, help="to calibrate on")
    ask.add_argument("--rules", default="default,calibrated", help="of minilm")
    ask.add_argument("--peers", help="some of minilm's, and their bytes; or none")
    run_parts("benchmarks.compress_calibrated", PARTS, ask)


if __name__ == "__main__":
    main()

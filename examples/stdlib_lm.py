"""A small language model on the Python source that is on this machine already.

It reads the standard library of the interpreter that runs it, one character at a time,
and learns to write more of it. The model is plain JAX: a decoder-only transformer, its
layers one after the other. Nothing is downloaded.

    frugax run examples/stdlib_lm.yaml
    python examples/stdlib_lm.py sample runs/stdlib_lm
"""

import argparse
import math
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.text import Text

from frugax.errors import ConfigError, FrugaxError
from frugax.run import Task, load_trained

# Line ends and printable ASCII, by place; all else is one character more.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
OTHER = len(ALPHABET)
CHARACTERS = OTHER + 1

PROMPTS = ("import ", "def ", "class ", "    return ")

Params = dict[str, Any]


def task(
    layers: int = 8,
    width: int = 128,
    heads: int = 4,
    context: int = 128,
    batch: int = 16,
    validation_share: float = 0.1,
    seed: int = 0,
) -> Task:
    """Guess the next character of Python source code.

    Args:
        layers: transformer blocks.
        width: features of each character.
        heads: of the attention; divides `width`.
        context: characters that the model sees at once.
        batch: windows of `context` characters in one training step.
        validation_share: of the files, kept for validation.
        seed: of the split, and of which windows are drawn when.

    Raises:
        ConfigError: the standard library's sources are not there, or `heads` does not
            divide `width`.
    """
    if width % heads:
        raise ConfigError(f"options: heads={heads} does not divide width={width}.")
    train, validation = split(sources(), share=validation_share, seed=seed)
    train_text, validation_text = encode(train), encode(validation)
    for text in (train_text, validation_text):
        if len(text) <= context:
            raise ConfigError(
                f"options: context={context} needs more than the {len(text):,} "
                f"characters that are there with validation_share={validation_share}."
            )

    def batches(step: int) -> np.ndarray:
        return windows(train_text, context, batch, key=(seed, step))

    # The same windows every time, so that two evaluations compare models and not luck.
    held_out = windows(validation_text, context, 256, key=(seed,))

    def measured(params: Params, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = apply(params, batch[:, :-1], heads=heads)
        right = (scores.argmax(axis=-1) == batch[:, 1:]).mean(axis=-1)
        return bits(scores, batch[:, 1:]), right

    def loss(params: Params, batch: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        value, right = measured(params, batch)
        return value, {"accuracy": right.mean()}

    @jax.jit
    def on_held_out(params: Params) -> tuple[jax.Array, jax.Array]:
        # 16 at a time: evaluating must not need more memory than training.
        parts = held_out.reshape(16, 16, context + 1)
        value, right = jax.lax.map(partial(measured, params), parts)
        # One accuracy for each window: the receipt then knows how sure a change is.
        return value.mean(), right.reshape(-1)

    def evaluate(params: Params) -> dict[str, jax.Array]:
        value, right = on_held_out(params)
        return {"bits_per_character": value, "accuracy": right}

    return Task(
        partial(init, layers=layers, width=width),
        loss,
        batches,
        evaluate,
        apply=partial(apply, heads=heads),
        summary=(
            f"decoder-only transformer of {layers} layers, width {width}, context "
            f"{context}, on the standard library of Python "
            f"{sys.version_info.major}.{sys.version_info.minor}: {len(train)} files of "
            f"{len(train_text):,} characters, and {len(validation)} of "
            f"{len(validation_text):,} for validation"
        ),
    )


def sources(folder: Path | None = None) -> list[str]:
    """The text of the standard library's top-level modules, by name.

    What others put beside them, and what is generated when Python is built, is left
    out: the text depends on the Python version alone.

    Args:
        folder: where they are; None: of the running interpreter.

    Raises:
        ConfigError: there are fewer than ten.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    files = [f for f in folder.glob("*.py") if f.stem in sys.stdlib_module_names]
    if len(files) < 10:
        raise ConfigError(
            f"task: {folder} holds {len(files)} source files of the standard library: "
            "this Python came without them. Use another one, such as python.org's."
        )
    return [f.read_text(encoding="utf-8") for f in sorted(files)]


def split(
    texts: Sequence[str], *, share: float, seed: int
) -> tuple[list[str], list[str]]:
    """Texts for training and for validation: at least one of each."""
    order = np.random.default_rng(seed).permutation(len(texts))
    few = min(max(1, round(share * len(texts))), len(texts) - 1)
    chosen = set(order[:few].tolist())
    return (
        [t for i, t in enumerate(texts) if i not in chosen],
        [t for i, t in enumerate(texts) if i in chosen],
    )


def encode(texts: Sequence[str]) -> np.ndarray:
    """Encode texts, one after the other, as indices into `ALPHABET`."""
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le"), dtype=np.uint32)
    places = np.full(128, OTHER, dtype=np.int32)
    places[[ord(c) for c in ALPHABET]] = np.arange(OTHER)
    return places[np.minimum(codes, 127)]  # 127 is not in the alphabet


def decode(places: Sequence[int]) -> str:
    """The text that `encode` was given, but for characters outside the alphabet."""
    return "".join((ALPHABET + "\N{REPLACEMENT CHARACTER}")[p] for p in places)


def windows(
    text: np.ndarray, context: int, count: int, *, key: tuple[int, ...]
) -> np.ndarray:
    """`count` pieces of the text, of one character more than the context."""
    starts = np.random.default_rng(key).integers(len(text) - context, size=count)
    return text[starts[:, None] + np.arange(context + 1)]


def init(key: jax.Array, *, layers: int, width: int) -> Params:
    """Fresh weights.

    Norms have none: each is followed by a matrix that can scale as well. What writes
    into the residual stream starts smaller the more layers there are (GPT-2).
    """
    keys = iter(jax.random.split(key, 2 + 4 * layers))

    def matrix(rows: int, columns: int, scale: float) -> jax.Array:
        return scale * jax.random.normal(next(keys), (rows, columns))

    def block() -> Params:
        into = (2 * layers) ** -0.5
        return {
            "attention_in": matrix(width, 3 * width, width**-0.5),
            "attention_out": matrix(width, width, into * width**-0.5),
            "mlp_in": matrix(width, 4 * width, width**-0.5),
            "mlp_out": matrix(4 * width, width, into * (4 * width) ** -0.5),
        }

    return {
        "characters": matrix(CHARACTERS, width, 1.0),
        "blocks": [block() for _ in range(layers)],
        "head": matrix(width, CHARACTERS, 0.1 * width**-0.5),
    }


def apply(params: Params, places: jax.Array, *, heads: int) -> jax.Array:
    """Scores of the next character after each one.

    Args:
        params: the weights.
        places: `[batch, length]`, as `encode` gives them.
        heads: of the attention.

    Returns:
        `[batch, length, CHARACTERS]`, larger is likelier.
    """
    x = params["characters"][places]
    for weights in params["blocks"]:
        x = x + attention(weights, norm(x), heads=heads)
        x = x + jax.nn.gelu(norm(x) @ weights["mlp_in"]) @ weights["mlp_out"]
    return norm(x) @ params["head"]


def norm(x: jax.Array) -> jax.Array:
    """Features of mean square one (Zhang & Sennrich 2019, without a scale)."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def attention(weights: Params, x: jax.Array, *, heads: int) -> jax.Array:
    """Each character looks at itself and at those before it.

    How far back something is counts against it, in each head another amount (Press,
    Smith & Lewis 2022, "Train short, test long"). This replaces positions that are
    learned, which take more than 200 steps to be of use.
    """
    batch, length, width = x.shape
    each = (x @ weights["attention_in"]).reshape(batch, length, 3, heads, -1)
    query, key, value = each[:, :, 0], each[:, :, 1], each[:, :, 2]
    place = jnp.arange(length, dtype=x.dtype)
    back = place[:, None] - place[None]
    slopes = jnp.exp2(-8 * jnp.arange(heads, dtype=x.dtype) / heads)
    far = jnp.where(back < 0, jnp.inf, slopes[:, None, None] * back[None])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // heads) ** -0.5
    share = jax.nn.softmax(scores - far[None], axis=-1)
    seen = jnp.einsum("bhqk,bkhd->bqhd", share, value)
    return seen.reshape(batch, length, width) @ weights["attention_out"]


def bits(scores: jax.Array, places: jax.Array) -> jax.Array:
    """Mean cross-entropy, in bits per character."""
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, places)
    return nats.mean() / math.log(2)


def sample(
    model: Params,
    apply: Callable[[Params, jax.Array], jax.Array],
    prompts: Sequence[str],
    *,
    length: int,
    temperature: float = 0.7,
    key: jax.Array,
) -> list[str]:
    """Let a model continue texts.

    Args:
        model: the weights.
        apply: the task's.
        prompts: beginnings.
        length: characters of each text, with its beginning. Longer than the context
            in training is possible, and no better.
        temperature: 1 samples from the model; less favours likely characters; > 0.
        key: for the samples.

    Raises:
        ValueError: a prompt is empty or too long, or `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}.")
    places = np.full((len(prompts), length), -1, dtype=np.int32)
    for row, prompt in zip(places, prompts, strict=True):
        if not 0 < len(prompt) <= length:
            raise ValueError(
                f"a prompt must have 1 to {length} characters, got {len(prompt)}: "
                f"{prompt!r:.40}."
            )
        row[: len(prompt)] = encode([prompt])
    given = jnp.asarray(places)  # -1: to be written

    def write(place: jax.Array, text: jax.Array) -> jax.Array:
        # Characters from `place` on are not read: attention is causal.
        scores = apply(model, text)[:, place - 1] / temperature
        drawn = jax.random.categorical(jax.random.fold_in(key, place), scores)
        told = given[:, place]
        return text.at[:, place].set(jnp.where(told < 0, drawn, told))

    write_all = jax.jit(lambda text: jax.lax.fori_loop(1, length, write, text))
    written = write_all(jnp.maximum(given, 0))
    return [decode(row) for row in np.asarray(written).tolist()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the text that a trained model writes; return the process's exit code."""
    parser = argparse.ArgumentParser(description="What a trained model writes.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sample", help="let a finished run write")
    command.add_argument("run_folder", type=Path, help="such as runs/stdlib_lm")
    command.add_argument("prompts", nargs="*", default=PROMPTS)
    command.add_argument("--length", type=int, default=200, help="of each text")
    command.add_argument("--temperature", type=float, default=0.7)
    command.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        model, trained = load_trained(given.run_folder)
        assert trained.apply is not None  # `task` above gives one
        written = sample(
            model,
            trained.apply,
            given.prompts,
            key=jax.random.key(given.seed),
            length=given.length,
            temperature=given.temperature,
        )
    except (FrugaxError, ValueError) as e:
        sys.stderr.write(f"{e}\n")
        return 2
    for prompt, text in zip(given.prompts, written, strict=True):
        console.rule(style="dim")
        console.print(Text(text[: len(prompt)], style="bold") + text[len(prompt) :])
    return 0


if __name__ == "__main__":
    sys.exit(main())

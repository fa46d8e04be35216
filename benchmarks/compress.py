"""Files of `compress` beside other coders and quantisers: bytes, errors and speed.

    python -m benchmarks.compress [lossless lossy calibrated table tasks unseen ...]

`lossless`: four published models (`real_weights.py`) in float32 and bfloat16 beside
ZipNN and blosc2. Our length is that of the whole file; the peers get all weights as one
buffer (blosc2 the best of three orders). `lossy`, `calibrated`: all-MiniLM-L6-v2 beside
NF4, int8, HQQ and GPTQ, which quantise all matrices; vectors stay float32, and all
bytes count. The error is the mean of 1 - cosine to the embeddings by float32 weights.
`table`: GGUF, NF4, HQQ and GPTQ in the bytes of each, on six nets that are trained
here. `tasks`, `unseen`: the rules of error weights on these, and on ten nets of
packages. `budgets`: how much of a budget is used. `speed`: millions of
weights a second.

Packages of peers are put into a folder of their own. Speeds count processor time.
"""

import argparse
import ast
import functools
import math
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from benchmarks import compress_tasks, compress_unseen
from benchmarks.compress_rivals import (
    bound_db,
    gptq,
    hqq,
    int8,
    nf4,
    round_groups,
    sentences,
    snr_db,
)
from benchmarks.harness import (
    CONTROL,
    OURS,
    ROOT,
    Case,
    Figures,
    Part,
    Row,
    choose,
    cpu_seconds,
    is_chosen,
    run,
    say,
)
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.compress.codecs import BLOCK, lossless
from frugax.compress.codecs.groups import Grouping, decode_groups, quantise_groups

Weights = dict[str, Any]
# From a name and a matrix to decoded values and bytes.
Quantiser = Callable[[str, np.ndarray], tuple[np.ndarray, float]]
HQQ = ("hqq", "termcolor", "tokenizers", "tqdm", "huggingface-hub")
LOSSLESS = ("zipnn==0.5.4", "blosc2", "numexpr", "ndindex", "msgpack", "py-cpuinfo")
_SENTENCES = 256  # to calibrate on
_CALIBRATED_ON = 64


def find_peers(*packages: str) -> None:
    sys.path.append(str(install(*packages)))


def compress_back(
    weights: Mapping[str, Any], budget: SizeBudget, rule: Any = None
) -> tuple[Weights, int]:
    """Compress and decompress: decoded weights, and the bytes of the whole file."""
    data = compress.compress(dict(weights), budget, sensitivity=rule)
    return compress.decompress(data), len(data)


def quantise_matrices(
    weights: Mapping[str, Any], quantise: Quantiser
) -> tuple[Weights, float]:
    """Quantise all matrices; other tensors stay and count as they are."""
    back, total = dict(weights), 0.0
    for name, w in weights.items():
        count = float(w.nbytes)
        if w.ndim == 2 and w.dtype.kind == "f":
            back[name], count = quantise(name, w)
        total += count
    return back, total


# --- without loss -------------------------------------------------------------------


class Codec:
    """Our codec alone, chunk by chunk as in a file."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        flat = [array.reshape(-1) for array in tensors.values()]
        self.parts = [a[i : i + BLOCK] for a in flat for i in range(0, len(a), BLOCK)]
        self.blocks = [lossless.encode(part) for part in self.parts]

    def encode(self) -> None:
        for part in self.parts:
            lossless.encode(part)

    def decode(self) -> None:
        for part, block in zip(self.parts, self.blocks, strict=True):
            lossless.decode(memoryview(block), part.dtype, len(part))


def blosc2_bytes(raw: bytes, itemsize: int) -> int:
    """Length with byte shuffling and zstd at level 1, on one thread."""
    import blosc2

    how = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "typesize": itemsize}
    how |= {"filters": [blosc2.Filter.SHUFFLE], "nthreads": 1}
    blob = blosc2.compress2(raw, **how)
    assert blosc2.decompress2(blob) == raw
    return len(blob)


def measure_lossless(given: argparse.Namespace) -> Figures:
    """Bytes, and decoding and encoding beside ZipNN; every result is compared.

    "checked" is `decompress`, which compares the digest of the file; ZipNN checks
    nothing. It may write over its input, so it gets copies.
    """
    found: Figures = {}
    if given.quick:
        rng = np.random.default_rng(0)
        cases = {"quick": {"w": rng.normal(size=(64, 64)).astype(np.float32)}}
    else:
        find_peers(*LOSSLESS)
        cases = models()
    for model, weights in cases.items():
        for dtype in (np.float32, ml_dtypes.bfloat16):
            name = f"{model} {np.dtype(dtype).name}"
            if is_chosen(name, given):
                say(name)
                tensors = {key: array.astype(dtype) for key, array in weights.items()}
                found[name] = lossless_figures(tensors, given)
    return found


def lossless_figures(
    tensors: Mapping[str, np.ndarray], given: argparse.Namespace
) -> Figures:
    raw = b"".join(array.tobytes() for array in tensors.values())
    file = compress.compress(dict(tensors), SizeBudget(max_abs=0))
    for name, array in compress.decompress(file).items():
        assert array.tobytes() == tensors[name].tobytes(), name
    codec, dtype = Codec(tensors), next(iter(tensors.values())).dtype
    sizes = {"frugax": len(file)}
    peers: dict[str, dict[str, Callable[[], Any]]] = {"decode": {}, "encode": {}}
    peers["decode"]["frugax, checked"] = lambda: compress.decompress(file)
    if not given.quick:
        import zipnn

        zip_codec = zipnn.ZipNN(bytearray_dtype=dtype.name, threads=1)
        blob = bytes(zip_codec.compress(bytearray(raw)))
        assert bytes(zip_codec.decompress(bytearray(blob))) == raw
        peers["decode"]["zipnn"] = lambda: zip_codec.decompress(bytearray(blob))
        peers["encode"]["zipnn"] = lambda: zip_codec.compress(bytearray(raw))
        # Which tensors share one of its blocks matters: the best of three orders.
        names = list(tensors)
        orders = names, sorted(names), names[::-1]
        joined = [b"".join(tensors[n].tobytes() for n in order) for order in orders]
        sizes["zipnn"] = len(blob)
        sizes["blosc2"] = min(blosc2_bytes(each, dtype.itemsize) for each in joined)
    times = {
        what: Case(
            name=what, ours=getattr(codec, what), rivals=peers[what], clock="cpu"
        ).measure(0.2 if given.quick else given.seconds)
        for what in peers
    }
    speeds = {f"{what} MB/s": len(raw) / t[OURS]["us"] for what, t in times.items()}
    return {"bytes": len(raw), "sizes": sizes, "times": times} | speeds


def lossless_rows(found: Figures) -> Iterator[Row]:
    for name, f in found.items():
        ours, peers = f["sizes"]["frugax"], dict(f["sizes"])
        del peers["frugax"]
        if not peers:
            continue
        best = min(peers, key=lambda peer: peers[peer])
        yield Row.counted(f"{name}, lossless", "bytes", ours, best, peers[best])
        for what, times in f["times"].items():
            zipnn, speed = times["zipnn"], f["bytes"] / times["zipnn"]["us"]
            yield Row(
                task=f"{name}, lossless: {what}",
                quantity="MB/s of processor time",
                ours=f[f"{what} MB/s"],
                peer="zipnn",
                theirs=speed,
                ahead_by=zipnn["ratio"],
                low=zipnn["low"],
                high=zipnn["high"],
            )


def show_lossless(found: Figures) -> str:
    lines = []
    for name, f in found.items():
        sizes = ", ".join(f"{k} {f['bytes'] / v:.3f}" for k, v in f["sizes"].items())
        speeds = ", ".join(
            f"{what}: {peer} {t['ratio']:.2f}"
            for what, times in f["times"].items()
            for peer, t in times.items()
            if peer != OURS
        )
        lines.append(f"{name}: times smaller {sizes}; times of ours, {speeds}")
    return "\n".join([*lines, f"{CONTROL!r} is the noise."])


# --- MiniLM -------------------------------------------------------------------------


def measure_lossy(given: argparse.Namespace) -> Figures:
    """Quantisers of matrices on MiniLM, and files at their error and in their bytes.

    The bound is the least error of any code at as many bits for independent Gaussian
    rows (reverse water-filling, one variance for each row of each tensor).
    """
    find_peers(*HQQ)
    weights = models()["minilm"]
    texts, vectors = batches(sentences(), 60), jax.jit(embed_minilm)
    embed = lambda w: np.concatenate([np.asarray(vectors(w, b)) for b in texts])
    right, count = embed(weights), sum(w.size for w in weights.values())

    def judge(back: Weights, nbytes: float) -> Figures:
        cosine = (right * embed(back)).sum(axis=1)
        snr = snr_db(weights, back)
        return {
            "bytes": nbytes,
            "bits_per_weight": 8 * nbytes / count,
            "snr_db": snr,
            "rel_error": 10 ** (-snr / 20),
            "cosine_error": float(np.mean(1 - cosine.astype(np.float64))),
            "from_bound_db": bound_db(weights, nbytes) - snr,
        }

    peers = {"nf4 g64": nf4, "int8 per channel": int8}
    peers |= {f"hqq {b} bit g64": hqq(b) for b in (8, 4, 3)}
    found: Figures = {}
    for name in choose(peers, given, 1):
        say(name)
        quantise = lambda _, w, by=peers[name]: by(w)
        found[name] = peer = judge(*quantise_matrices(weights, quantise))
        at_bytes = SizeBudget(bytes=int(peer["bytes"]))
        at_error = SizeBudget(rel_error=peer["rel_error"])
        found[f"{name}: ours, bytes"] = judge(*compress_back(weights, at_bytes))
        found[f"{name}: ours, error"] = judge(*compress_back(weights, at_error))
    return found


def lossy_rows(found: Figures) -> Iterator[Row]:
    """Files at the error of another quantiser, and errors in its bytes."""
    for peer in [name for name in found if ": ours" not in name]:
        theirs = found[peer]
        ours = {what: found[f"{peer}: ours, {what}"] for what in ("error", "bytes")}
        sizes = ours["error"]["bytes"], peer, theirs["bytes"]
        yield Row.counted("MiniLM at equal error of the weights", "bytes", *sizes)
        for what, words in (("error", "equal error of the weights"),
                            ("bytes", "equal bytes")):  # fmt: skip
            task = f"MiniLM at {words}: embeddings"
            errors = ours[what]["cosine_error"], peer, theirs["cosine_error"]
            yield Row.counted(task, "1 - cosine", *errors)


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
        # Sentences of 6 to 30 words that are words for the most part.
        by_file.append(
            [
                s
                for p in parts
                for s in re.split(r"(?<=[.!?])\s+", p)
                if re.fullmatch(r"[A-Z].*\.", s)
                and 6 <= len(s.split()) <= 30
                and sum(c.isalpha() or c == " " for c in s) > 0.9 * len(s)
            ]
        )
    rng = random.Random(0)
    rng.shuffle(by_file)
    halves = [[s for f in half for s in f] for half in (by_file[::2], by_file[1::2])]
    for half in halves:
        rng.shuffle(half)
    return halves[0], halves[1]


def embed_minilm(w: Weights, batch: Any, taps: Weights | None = None) -> Any:
    """MiniLM's vectors, from its own names; `taps` gets the inputs of linear layers."""
    layers, heads = 6, 12

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
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x)
    for i in range(layers):
        at = f"encoder.layer.{i}"
        q, k, v = (
            linear(f"{at}.attention.self.{name}", x)
            .reshape(*tokens.shape, heads, -1)
            .swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
        share = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9))
        mixed = (share @ v).swapaxes(1, 2).reshape(x.shape)
        mixed = linear(f"{at}.attention.output.dense", mixed)
        x = norm(f"{at}.attention.output.LayerNorm", x + mixed)
        up = jax.nn.gelu(linear(f"{at}.intermediate.dense", x), approximate=False)
        x = norm(f"{at}.output.LayerNorm", x + linear(f"{at}.output.dense", up))
    mean = (x * mask[..., None]).sum(1)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def batches(texts: list[str], size: int, length: int = 32) -> list[Weights]:
    """Tokens of one length, so that all batches are one program."""
    sys.path.insert(0, str(ROOT / "examples"))
    import minilm

    def pad(v: np.ndarray) -> np.ndarray:
        missing = max(0, length - v.shape[1])
        return np.pad(v[:, :length], ((0, 0), (0, missing)))

    starts = range(0, len(texts) - size + 1, size)
    found = (minilm.tokenize(texts[i : i + size]) for i in starts)
    return [{k: pad(v) for k, v in tokens.items()} for tokens in found]


def input_grams(weights: Weights, training: list[Weights]) -> Weights:
    """The second moments of the inputs of each linear layer, paddings left out."""

    @jax.jit
    def grams(weights: Weights, batch: Any) -> Weights:
        taps: Weights = {}
        embed_minilm(weights, batch, taps)
        there = {k: x * batch["mask"][..., None] for k, x in taps.items()}
        return {k: jnp.einsum("bti,btj->ij", x, x) for k, x in there.items()}

    total: Weights = {}
    for batch in training:
        for key, gram in grams(weights, batch).items():
            total[key] = total.get(key, 0) + np.asarray(gram, np.float64)
    return total


def measure_calibrated(given: argparse.Namespace) -> Figures:
    """Files calibrated on docstrings of one half of Python's modules, and others.

    Measured on docstrings of the other half, and on 180 sentences that are nothing like
    docstrings. GPTQ is written as its paper and its code say, for the linear layers,
    from their inputs on the same text; embedding tables, which have no such inputs, are
    rounded to the same bits in the same groups.
    """
    find_peers(*HQQ)
    weights = models()["minilm"]
    known, unknown = docstrings()
    training = batches(known[:_SENTENCES], 16)
    tests = {
        "other docstrings": batches(unknown[:512], 64),
        "180 sentences": batches(sentences(), 60),
        "calibrated on": training,
    }
    vectors = jax.jit(embed_minilm)
    right = {k: [np.asarray(vectors(weights, b)) for b in v] for k, v in tests.items()}

    def judge(back: Weights, nbytes: float) -> Figures:
        row: Figures = {"bytes": nbytes}
        for test, of_test in tests.items():
            pairs = zip(right[test], of_test, strict=True)
            cosines = [(r * np.asarray(vectors(back, b))).sum(1) for r, b in pairs]
            row[test] = float(np.mean(1 - np.concatenate(cosines).astype(np.float64)))
        return row

    grams = input_grams(weights, training)
    rounded = {bits: round_groups(bits, 64) for bits in (3, 4)}

    def by_gptq(bits: int, key: str, w: np.ndarray) -> tuple[np.ndarray, float]:
        return gptq(w, grams[key], bits, 64) if key in grams else rounded[bits](w)

    peers: dict[str, Quantiser] = {
        "HQQ 3 bits g64": lambda _, w: hqq(3)(w),
        "GPTQ 3 bits g64": functools.partial(by_gptq, 3),
        "NF4 g64": lambda _, w: nf4(w),
        "HQQ 4 bits g64": lambda _, w: hqq(4)(w),
        "GPTQ 4 bits g64": functools.partial(by_gptq, 4),
    }
    rules = {
        "default": None,
        "calibrated": compress.calibrate(embed_minilm, weights, training, draws=2),
    }
    found: Figures = {}
    for name in choose(peers, given, 1):
        say(name)
        found[name] = judge(*quantise_matrices(weights, peers[name]))
        budget = SizeBudget(bytes=int(found[name]["bytes"]))
        for rule, sensitivity in rules.items():
            back = compress_back(weights, budget, sensitivity)
            found[f"{name}: ours, {rule}"] = judge(*back)
    return found


def calibrated_rows(found: Figures) -> Iterator[Row]:
    """GPTQ is calibrated, and so is the file beside it; beside the others it is not."""
    for peer in [name for name in found if ": ours" not in name]:
        rule = "calibrated" if peer.startswith("GPTQ") else "default"
        ours = found[f"{peer}: ours, {rule}"]
        for test in ("other docstrings", "180 sentences"):
            task = f"MiniLM in the bytes of a peer, {rule}: {test}"
            errors = ours[test], peer, found[peer][test]
            yield Row.counted(task, "1 - cosine", *errors)


# --- six nets that are trained here, and ten of packages ----------------------------


def q4_0(w: np.ndarray) -> tuple[np.ndarray, float]:
    """GGUF's Q4_0, as `frugax export` writes it: decoded values, bytes."""
    grouping = Grouping(4, 32)
    integers, steps = quantise_groups(w, grouping, np.dtype(np.float16))
    decoded = decode_groups(integers, steps, grouping, w.dtype)
    return decoded, w.size / 2 + steps.nbytes


def four_bit_rows(w: np.ndarray) -> tuple[np.ndarray, float]:
    """Round to 4 bits with a float16 step for each row: decoded values, bytes."""
    rows = w.reshape(len(w), -1).astype(np.float32)
    step = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / 7, 1e-7)
    step = step.astype(np.float16).astype(np.float32)
    levels = np.clip(np.rint(rows / np.maximum(step, 1e-7)), -7, 7)
    return (levels * step).reshape(w.shape), w.size / 2 + 2 * len(w)


def in_groups(
    quantise: Any, w: np.ndarray, group: int = 64
) -> tuple[np.ndarray, float]:
    """Quantise a flat array in groups, zeros at the end of the last one.

    HQQ's package needs an even number of groups; those that there were count.
    """
    flat = np.pad(w.reshape(-1).astype(np.float32), (0, -w.size % group))
    groups = flat.reshape(-1, group)
    even = np.pad(groups, ((0, len(groups) % 2), (0, 0)))
    decoded, count = quantise(even)
    count *= len(groups) / len(even)
    return decoded.reshape(-1)[: w.size].reshape(w.shape), count


def grams_of(task: compress_tasks.Task, weights: Weights) -> Weights:
    """Second moments of the inputs of every linear layer."""
    grams: dict[str, np.ndarray] = {}
    linear = compress_tasks.linear

    def note(w: Weights, name: str, x: Any) -> Any:
        rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
        grams[f"{name}.w"] = grams.get(f"{name}.w", 0) + rows.T @ rows
        return linear(w, name, x)

    compress_tasks.linear = note
    try:
        with jax.disable_jit():
            task.apply(weights, jnp.asarray(task.train[0][:_CALIBRATED_ON]))
    finally:
        compress_tasks.linear = linear
    return grams


def task_peers(task: compress_tasks.Task, weights: Weights) -> dict[str, Quantiser]:
    """Each peer; matrices are (inputs, outputs), and groups are of inputs."""
    grams = grams_of(task, weights)

    def transposed(quantise: Any) -> Quantiser:
        def by(_: str, w: np.ndarray) -> tuple[np.ndarray, float]:
            decoded, count = in_groups(quantise, np.ascontiguousarray(w.T))
            return decoded.T, count

        return by

    def by_gptq(bits: int, name: str, w: np.ndarray) -> tuple[np.ndarray, float]:
        gram = grams.get(name)
        # No linear layer, or a number of inputs that groups do not divide.
        if gram is None or len(gram) % 64:
            return transposed(round_groups(bits, 64))(name, w)
        decoded, count = gptq(w.T, gram, bits, 64)
        return np.ascontiguousarray(decoded.T), count

    return {
        "GGUF Q4_0": transposed(q4_0),
        "NF4": transposed(nf4),
        "HQQ 4": transposed(hqq(4)),
        "GPTQ 4": functools.partial(by_gptq, 4),
        "GPTQ 3": functools.partial(by_gptq, 3),
    }


def calibrate_task(task: compress_tasks.Task, weights: Weights) -> Any:
    batch = [jnp.asarray(task.train[0][:_CALIBRATED_ON])]
    return compress.calibrate(task.apply, weights, batch)


def measure_table(given: argparse.Namespace) -> Figures:
    """Each peer on each net, and files of ours in its bytes; then exact coding."""
    import zstandard

    find_peers(*HQQ, "zipnn")
    import zipnn

    found: Figures = {}
    every = (*compress_tasks.CHOSEN_ON, *compress_tasks.REPORTED)
    for net, task, weights in compress_tasks.tasks(choose(every, given, 1)):
        say(net)
        rules = {"default": "default", "calibrated": calibrate_task(task, weights)}
        judge = functools.partial(compress_tasks.judge, net, task, weights)
        cells: Figures = {}
        for name, quantise in task_peers(task, weights).items():
            decoded, total = quantise_matrices(weights, quantise)
            cells[name] = {"bytes": total, "peer": judge(decoded)}
            for rule, sensitivity in rules.items():
                budget = SizeBudget(bytes=int(total))
                back, _ = compress_back(weights, budget, sensitivity)
                cells[name][rule] = judge(back)
        whole = b"".join(np.ascontiguousarray(w).tobytes() for w in weights.values())
        codec = zipnn.ZipNN(bytearray_dtype="float32", threads=1)
        exact = {
            "weights": len(whole),
            "frugax": compress_back(weights, SizeBudget(max_abs=0))[1],
            "zstd": len(zstandard.ZstdCompressor(level=19).compress(whole)),
            "zipnn": len(codec.compress(bytearray(whole))),
        }
        found[net] = {"before": judge(weights)[1], "cells": cells, "exact": exact}
    return found


def table_rows(found: Figures) -> Iterator[Row]:
    """Change of outputs of trained nets in the bytes of GGUF, NF4, HQQ and GPTQ."""
    for net, f in found.items():
        for peer, cell in f["cells"].items():
            rule = "calibrated" if peer.startswith("GPTQ") else "default"
            # The decibels are of energies.
            ours, theirs = (10 ** (cell[who][0] / 20) for who in (rule, "peer"))
            task = f"{net} in the bytes of a peer, {rule}: change of outputs"
            yield Row.counted(task, "of their size", ours, peer, theirs)
        exact = f["exact"]
        best = min(("zipnn", "zstd"), key=lambda name: exact[name])
        sizes = exact["frugax"], best, exact[best]
        yield Row.counted(f"{net}, lossless", "bytes", *sizes)


def show_table(found: Figures) -> str:
    """Decibels and scores of the peer, of the default and of a calibrated file."""
    lines = ["| net | peer | peer | default | calibrated |", "|---|---|--:|--:|--:|"]
    for net, f in found.items():
        for peer, cell in f["cells"].items():
            each = [cell[who] for who in ("peer", "default", "calibrated")]
            cells = " | ".join(f"{db:.1f} dB, {score:.4g}" for db, score in each)
            lines.append(f"| {net} | {peer} | {cells} |")
    return "\n".join(lines)


def judge_rules(
    weights: Weights, rules: Mapping[str, Any], ratios: tuple[float, ...], judge: Any
) -> Figures:
    """Means over files: the weights' error, the outputs' change in dB, the score."""
    figures: Figures = {}
    for rule, sensitivity in rules.items():
        each = []
        for ratio in ratios:
            budget = SizeBudget(ratio=ratio)
            data = compress.compress(weights, budget, sensitivity=sensitivity)
            error = 20 * math.log10(data.report.rel_error)
            each.append((error, *judge(compress.decompress(data))))
        _, figures[f"{rule}, dB"], figures[rule] = map(float, np.mean(each, axis=0))
    return figures


def measure_tasks(given: argparse.Namespace) -> Figures:
    """The rules of error weights on the six nets, means of three ratios."""
    found: Figures = {}
    every = (*compress_tasks.CHOSEN_ON, *compress_tasks.REPORTED)
    for net, task, weights in compress_tasks.tasks(choose(every, given, 1)):
        say(net)
        judge = functools.partial(compress_tasks.judge, net, task, weights)
        rules = {"default": "default", "equal": "equal", "rows": "rows"}
        rules |= {"calibrated": calibrate_task(task, weights)}
        found[net] = {"before": judge(weights)[1]}
        found[net] |= judge_rules(weights, rules, (6.0, 8.0, 10.0), judge)
    return found


def measure_unseen(given: argparse.Namespace) -> Figures:
    """The rules on ten nets, and files of ours in the bytes of peers.

    Half-precision weights are made 3, 4 and 5 times smaller. Peers leave vectors and
    small tensors as they are, and count them.
    """
    find_peers(*compress_unseen.PACKAGES)
    peers = {
        "NF4": functools.partial(in_groups, nf4),
        "Q4_0": functools.partial(in_groups, q4_0, group=32),
        "int4 rows": four_bit_rows,
    }
    found: Figures = {}
    every = (*compress_unseen.CHOSEN_ON, *compress_unseen.REPORTED)
    for name in choose(every, given, 1):
        say(name)
        net = getattr(compress_unseen, name)(install())
        before = net.run(net.weights)
        judge = lambda w, net=net, before=before: compress_unseen.judge(net, w, before)
        size = sum(w.size for w in net.weights.values())
        of_four = sum(w.nbytes for w in net.weights.values()) / size / 4
        ratios = (6 * of_four, 8 * of_four, 10 * of_four)
        rules = {"default": "default", "equal": "equal", "rows": "rows"}
        found[name] = {"weights": size, "before": net.score(before[1], before[1])}
        found[name] |= judge_rules(net.weights, rules, ratios, judge)
        for peer, quantise in peers.items():
            decoded, total = dict(net.weights), 0.0
            for key, w in net.weights.items():
                count = float(w.nbytes)
                if w.ndim > 1 and w.size >= 256:
                    decoded[key], count = quantise(w)
                    decoded[key] = decoded[key].astype(w.dtype)
                total += count
            ours, _ = compress_back(
                net.weights, SizeBudget(bytes=int(total)), "default"
            )
            for who, back in ((peer, decoded), (f"in {peer}'s bytes", ours)):
                found[name][f"{who}, dB"], found[name][who] = judge(back)
    return found


# --- budgets, speed, memory ---------------------------------------------------------


def measure_budgets(given: argparse.Namespace) -> Figures:
    """Each budget on each model: how much was used, and the gap to the bound."""
    found: Figures = {}
    drawn = {"quick": {"w": np.random.default_rng(0).normal(size=(64, 64))}}
    for model, weights in (drawn if given.quick else models()).items():
        original = sum(w.nbytes for w in weights.values())
        ratios = [{"ratio": float(r)} for r in (2, 3, 4, 6, 8, 10, 12)]
        errors = [{"rel_error": e} for e in (1e-3, 1e-2, 0.05, 0.1)]
        for limits in ratios[:1] if given.quick else [*ratios, *errors]:
            budget = SizeBudget(**limits)
            name = f"{model}, {budget}"
            if not is_chosen(model, given):
                continue
            plan, used = compress.plan(weights, budget), 0.0
            if "ratio" in limits:
                used = plan.file_bytes / (original / limits["ratio"])
            else:
                used = plan.rel_error / limits["rel_error"]
            figures = {"used": used, "file_bytes": plan.file_bytes}
            found[name] = figures | {"gap": plan.allocation_gap}
            say(f"{name}: {used:.4f}")
    return found


def measure_speed(given: argparse.Namespace) -> Figures:
    """Millions of weights a second in files 8 times smaller, the best of three.

    Search, coding and the check of the decoded file; normal float32 numbers, and the
    models as a whole. The first call is left out.
    """
    rng = np.random.default_rng(0)
    draw = lambda side: rng.normal(size=(side, side)).astype(np.float32)
    cases: dict[str, Any] = {"four of 64 x 64": {f"w{i}": draw(64) for i in range(4)}}
    if not given.quick:
        cases = {
            "one of 4,096 x 4,096": {"w": draw(4096)},
            "four of 1,024 x 1,024": {f"w{i}": draw(1024) for i in range(4)},
        } | models()
    found: Figures = {}
    for name, tree in cases.items():
        data = compress.compress(tree, SizeBudget("8x"))
        millions = sum(w.size for w in tree.values()) / 1e6
        both = {
            "compress": lambda t=tree: compress.compress(t, SizeBudget("8x")),
            "decompress": lambda d=data: compress.decompress(d),
        }
        found[name] = {"bytes": len(data)} | {
            what: millions / min(cpu_seconds(work) for _ in range(3))
            for what, work in both.items()
        }
    return found


PARTS = {
    "lossless": Part(
        measure=measure_lossless, rows=lossless_rows, show=show_lossless, is_timed=True
    ),
    "lossy": Part(measure=measure_lossy, rows=lossy_rows, minutes=(30, 0)),
    "calibrated": Part(
        measure=measure_calibrated, rows=calibrated_rows, minutes=(60, 0)
    ),
    "table": Part(
        measure=measure_table, rows=table_rows, show=show_table, minutes=(15, 0)
    ),
    "tasks": Part(measure=measure_tasks),
    "unseen": Part(measure=measure_unseen),
    "budgets": Part(measure=measure_budgets),
    "speed": Part(measure=measure_speed),
}


if __name__ == "__main__":
    run("compress", PARTS, about=__doc__)

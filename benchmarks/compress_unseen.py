"""Ten nets from packages that no other benchmark uses, and how well each still works.

Their inputs are real ones or drawn: files of this Python, lines of text, Thai titles,
English words, notes. Where the truth is not known, the score is agreement with the net
as it was; more is better.

What was learned from the nets of `CHOSEN_ON` may have changed the library; the others
report.
"""

import dataclasses
import itertools
import json
import math
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compress_tasks import neighbours

from frugax import compress

CHOSEN_ON = ("magika", "g2p", "recogniser", "wordllama", "orientation")
REPORTED = ("deepcut", "attacut", "thai2rom", "notes", "detector")
PACKAGES = (
    *("magika", "g2p-en", "rapidocr-onnxruntime", "wordllama", "pythainlp"),
    *("attacut", "basic-pitch", "onnx", "onnxruntime"),
)
Weights = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Net:
    """A net, and what its user looks at.

    Attributes:
        weights: as its package ships them.
        run: from weights to the outputs on all inputs, and to what the score is of.
        score: from that, and that of the net as it was, to a number; more is better.
    """

    weights: Weights
    run: Callable[[Weights], tuple[np.ndarray, Any]]
    score: Callable[[Any, Any], float]


class OnnxNet:
    """The float weights of an ONNX file by name, and the net with others in it."""

    def __init__(self, path: Path) -> None:
        import onnx

        self._model = onnx.load(str(path))
        self.meta = {p.key: p.value for p in self._model.metadata_props}
        graph = self._model.graph
        self._tensors = {t.name: t for t in graph.initializer} | {
            node.output[0]: a.t
            for node in graph.node
            if node.op_type == "Constant"
            for a in node.attribute
            if a.name == "value"
        }
        self.weights: Weights = {
            name: onnx.numpy_helper.to_array(t)
            for name, t in self._tensors.items()
            if t.data_type == onnx.TensorProto.FLOAT and math.prod(t.dims)
        }

    def session(self, weights: Weights) -> Callable[[dict[str, Any]], list[Any]]:
        """Return the net with these weights: from inputs by name to its outputs."""
        import onnx
        import onnxruntime

        for name in self.weights:
            new = onnx.numpy_helper.from_array(np.ascontiguousarray(weights[name]))
            new.name = self._tensors[name].name
            self._tensors[name].CopyFrom(new)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            self._model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        return lambda inputs: session.run(None, inputs)


def _softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def _edits(a: Any, b: Any) -> int:
    row = [*range(len(b) + 1)]
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            new = min(row[j] + 1, row[j - 1] + 1, before + (x != y))
            before, row[j] = row[j], new
    return row[-1]


def _spelled_alike(found: list[Any], truth: list[Any]) -> float:
    wrong = sum(map(_edits, found, truth))
    return 1 - wrong / sum(map(len, truth))


def _same(found: Any, before: Any) -> float:
    return float(np.mean(np.asarray(found) == np.asarray(before)))


def _overlap(found: np.ndarray, before: np.ndarray) -> float:
    return float((found & before).sum() / (found | before).sum())


def _words() -> list[str]:
    """English words of Python's own documentation, in the order of the alphabet."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join(f.read_text("utf8") for f in sorted(folder.glob("*.py"))[:100])
    comments = " ".join(re.findall(r"#(.*)", text)).lower()
    return sorted({w for w in re.findall(r"[a-z]+", comments) if 4 <= len(w) <= 12})


def _lines(count: int, seed: int) -> Iterator[tuple[np.ndarray, str]]:
    """Lines of text, drawn grey on grey with noise, 48 pixels high; and the text."""
    import matplotlib as mpl
    from PIL import Image, ImageDraw, ImageFont

    fonts = Path(mpl.get_data_path(), "fonts", "ttf")
    rng = np.random.default_rng(seed)
    words = _words()
    for _ in range(count):
        text = " ".join(words[i] for i in rng.integers(0, len(words), 2))
        name = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
        file = fonts / f"{name[int(rng.integers(4))]}.ttf"
        font = ImageFont.truetype(str(file), int(rng.integers(18, 30)))
        width = min(640, int(font.getlength(text)) + 24)
        image = Image.new("L", (width, 48), int(rng.integers(150, 230)))
        at = 12, int(rng.integers(2, 12))
        ImageDraw.Draw(image).text(at, text, fill=int(rng.integers(0, 110)), font=font)
        pixels = np.asarray(image, np.float32) + rng.normal(size=(48, width)) * 22
        yield (np.clip(pixels, 0, 255) / 127.5 - 1).astype(np.float32), text


def magika(folder: Path) -> Net:
    """What type a file has, from its bytes; source files of this Python's library."""
    path = folder / "magika" / "models" / "standard_v3_3"
    net = OnnxNet(path / "model.onnx")
    labels = json.loads((path / "config.min.json").read_text())["target_labels_space"]
    same = "html css json xml csv toml png svg ttf npz npy zip rst yaml txt pdf tcl c"
    types = {suffix: suffix for suffix in same.split()}
    types |= {"py": "python", "js": "javascript", "h": "c", "hpp": "cpp", "so": "elf"}
    types |= {"md": "markdown", "f90": "fortran"}
    types |= {"sh": "shell", "gz": "gzip", "bat": "batch"}
    # Neither what was installed nor what was compiled here: other machines have others.
    here = Path(sysconfig.get_paths()["stdlib"])
    installed = here / "site-packages"
    rows, truth = [], []
    for suffix, label in types.items():
        files = sorted(
            f for f in here.rglob(f"*.{suffix}") if not f.is_relative_to(installed)
        )
        for file in files[:: max(1, len(files) // 8)][:8]:
            content = file.read_bytes() if file.is_file() else b""
            if len(content) < 64 or label not in labels:
                continue
            start, end = (
                content[:4096].lstrip()[:1024],
                content[-4096:].rstrip()[-1024:],
            )
            row = [
                *start,
                *[256] * (1024 - len(start)),
                *[256] * (1024 - len(end)),
                *end,
            ]
            rows.append(row)
            truth.append(labels.index(label))
    inputs = {"bytes": np.array(rows, np.int32)}

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        (scores,) = net.session(weights)(inputs)
        return scores, scores.argmax(-1)

    return Net(net.weights, run, lambda found, _: _same(found, truth))


def g2p(folder: Path) -> Net:
    """How English words are spoken: two GRUs, one letter or sound at a time."""
    weights = dict(np.load(folder / "g2p_en" / "checkpoint20.npz"))
    words = _words()[::7]
    letters = np.full((len(words), 13), 2)  # the end of a word
    for row, word in zip(letters, words, strict=True):
        row[: len(word)] = [ord(c) - ord("a") + 3 for c in word]
    lengths = np.array(list(map(len, words)))

    def cell(w: Weights, part: str, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        size = h.shape[1]
        a = x @ w[f"{part}_w_ih"].T + w[f"{part}_b_ih"]
        b = h @ w[f"{part}_w_hh"].T + w[f"{part}_b_hh"]
        gates = 1 / (1 + np.exp(-(a + b)[:, : 2 * size]))
        r, z = gates[:, :size], gates[:, size:]
        return (1 - z) * np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :]) + z * h

    def run(w: Weights) -> tuple[np.ndarray, Any]:
        h = np.zeros((len(words), w["enc_w_hh"].shape[1]), np.float32)
        for t in range(13):
            new = cell(w, "enc", w["enc_emb"][letters[:, t]], h)
            h = np.where((t <= lengths)[:, None], new, h)
        first = logits = h
        said = np.full((len(words), 20), 3)
        last = np.full(len(words), 2)
        for t in range(20):
            h = cell(w, "dec", w["dec_emb"][last], h)
            logits = h @ w["fc_w"].T + w["fc_b"]
            last = np.where(last == 3, 3, logits.argmax(-1))
            said[:, t] = last
        return first, [[s for s in row if s != 3] for row in said.tolist()]

    return Net(weights, run, _spelled_alike)


def recogniser(folder: Path) -> Net:
    """Lines of text, letter by letter (PP-OCRv4); the letters that are right."""
    models = folder / "rapidocr_onnxruntime" / "models"
    net = OnnxNet(models / "ch_PP-OCRv4_rec_infer.onnx")
    letters = ["", *net.meta["character"].splitlines(), " "]
    lines = [*_lines(40, seed=0)]

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        session = net.session(weights)
        outputs, found = [], []
        for pixels, _ in lines:
            (scores,) = session({"x": np.repeat(pixels[None, None], 3, axis=1)})
            outputs.append(np.log(np.maximum(scores[0], 1e-6)))
            best = [k for k, _ in itertools.groupby(scores[0].argmax(-1).tolist())]
            found.append("".join(letters[k] for k in best))
        return np.concatenate(outputs), found

    return Net(net.weights, run, lambda f, _: _spelled_alike(f, [t for _, t in lines]))


def detector(folder: Path) -> Net:
    """Where on a page there is text: pixels found, beside those found before."""
    models = folder / "rapidocr_onnxruntime" / "models"
    net = OnnxNet(models / "ch_PP-OCRv4_det_infer.onnx")
    rng = np.random.default_rng(0)
    pages = rng.normal(0.4, 0.1, size=(3, 480, 640)).astype(np.float32)
    lines = [*_lines(30, seed=1)]
    ten_each = (lines[i : i + 10] for i in range(0, 30, 10))
    for page, ten in zip(pages, ten_each, strict=True):
        for i, (pixels, _) in enumerate(ten):
            width = min(pixels.shape[1], 600)
            at = int(rng.integers(0, 640 - width + 1))
            page[48 * i : 48 * i + 48, at : at + width] = pixels[:, :width]

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        session = net.session(weights)
        maps = [session({"x": np.repeat(p[None, None], 3, axis=1)})[0] for p in pages]
        return np.concatenate(maps), np.concatenate(maps) > 0.3

    return Net(net.weights, run, _overlap)


def orientation(folder: Path) -> Net:
    """Whether a line of text stands on its head."""
    models = folder / "rapidocr_onnxruntime" / "models"
    net = OnnxNet(models / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    rng = np.random.default_rng(0)
    images = np.zeros((100, 3, 48, 192), np.float32)
    turned = np.arange(100) % 2
    for image, (pixels, _), turn in zip(images, _lines(100, 2), turned, strict=True):
        part = pixels[::-1, ::-1] if turn else pixels
        image[:, :, : part.shape[1]] = part[:, :192]
        image += rng.normal(size=image.shape[1:]) * 0.1

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        (scores,) = net.session(weights)({"x": images})
        logits = np.log(np.maximum(scores, 1e-9))
        return logits[:, :1] - logits[:, 1:], scores.argmax(-1)

    return Net(net.weights, run, lambda found, _: _same(found, turned))


def wordllama(folder: Path) -> Net:
    """A table of 32,000 tokens; which ten stay the nearest of each of 2,000."""
    path = folder / "wordllama" / "weights" / "l2_supercat_256.safetensors"
    weights = {k: np.array(v) for k, v in compress.load_weights(path).items()}

    def run(w: Weights) -> tuple[np.ndarray, Any]:
        (table,) = w.values()
        rows = table[1000:3000].astype(np.float32)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return unit, neighbours(unit)

    def score(found: np.ndarray, before: np.ndarray) -> float:
        return float((found[:, :, None] == before[:, None]).any(-1).mean())

    return Net(weights, run, score)


def _thai(folder: Path, count: int) -> list[str]:
    path = folder / "pythainlp" / "corpus" / "wikipedia_titles_th.txt"
    titles = [
        t for t in path.read_text("utf8").splitlines() if re.fullmatch("[ก-๙]+", t)
    ]
    return [t for t in titles if 8 <= len(t) <= 40][:: len(titles) // count]


def deepcut(folder: Path) -> Net:
    """Where Thai words begin: convolutions over 21 letters, and the type of each."""
    source = (folder / "pythainlp" / "tokenize" / "deepcut.py").read_text("utf8")
    tables: dict[str, Any] = {}  # importing the package would ask for its data
    exec(source[source.index("_CHAR_TYPE:") : source.index("_session:")], tables)
    letter, kind = tables["_CHARS_MAP"], tables["_CHAR_TYPES_MAP"]
    net = OnnxNet(folder / "pythainlp" / "corpus" / "deepcut.onnx")
    rows: list[list[str]] = []
    for title in _thai(folder, 150):
        text = " " * 10 + title + " " * 10
        rows += [
            [*text[i + 1 : i + 11], *text[i - 10 : i][::-1], text[i]]
            for i in range(10, 10 + len(title))
        ]
    of = tables["_CHAR_TYPE_FLAT"]
    inputs = {
        "input_1": [[letter.get(c, letter["other"]) for c in row] for row in rows],
        "input_2": [[kind[of.get(c, "o")] for c in row] for row in rows],
    }
    inputs = {name: np.array(x, np.float32) for name, x in inputs.items()}

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        (share,) = net.session(weights)(inputs)
        share = np.clip(share.astype(np.float64), 1e-7, 1 - 1e-7)
        return np.log(share / (1 - share)), share > 0.5

    return Net(net.weights, run, _same)


def attacut(folder: Path) -> Net:
    """Where Thai words begin: three convolutions over letters, in torch."""
    import torch
    from torch.nn import functional

    path = folder / "attacut" / "artifacts" / "attacut-c"
    place = json.loads((path / "characters.json").read_text("utf8"))
    state = torch.load(path / "model.pth", weights_only=True, map_location="cpu")
    titles = _thai(folder, 300)
    rows = torch.zeros(len(titles), 44, dtype=torch.long)
    for row, title in zip(rows, titles, strict=True):
        row[: len(title)] = torch.tensor([place.get(c, 1) for c in title])
    there = (rows > 0).numpy()

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        w = {name: torch.from_numpy(np.array(a)) for name, a in weights.items()}
        x = w["embeddings.weight"][rows].permute(0, 2, 1)
        found = []
        for i, (size, apart) in enumerate(((3, 1), (5, 3), (9, 2)), 1):
            kernel, bias = w[f"conv{i}.conv.weight"], w[f"conv{i}.conv.bias"]
            pad = size // 2 * apart
            found.append(functional.conv1d(x, kernel, bias, 1, pad, apart))
        x = torch.stack(found).amax(0).permute(0, 2, 1)
        x = functional.relu(x @ w["linear1.weight"].T + w["linear1.bias"])
        logits = (x @ w["linear2.weight"].T + w["linear2.bias"])[..., 0].numpy()[there]
        return logits, logits > 0

    return Net({name: t.numpy() for name, t in state.items()}, run, _same)


def thai2rom(folder: Path) -> Net:
    """Thai words in Latin letters, one after the other: an LSTM and a GRU."""
    corpus = folder / "pythainlp" / "corpus"
    parts = [OnnxNet(corpus / f"thai2rom_{part}coder.onnx") for part in ("en", "de")]
    tables = json.loads((corpus / "thai2rom_loader_onnx.json").read_text("utf8"))
    letters, target = tables["char_to_ix"], tables["target_char_to_ix"]
    titles = [title for title in _thai(folder, 300) if len(title) <= 12][:60]

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        encode, decode = (
            part.session({name: weights[f"{i}/{name}"] for name in part.weights})
            for i, part in enumerate(parts)
        )
        first, said = [], []
        for title in titles:
            word = [
                *(letters.get(c, letters["<UNK>"]) for c in title),
                letters["<end>"],
            ]
            source = np.array([word])
            lengths = np.array([len(word)], np.int32)
            seen, *last = encode({"input_tensor": source, "input_lengths": lengths})
            h = np.concatenate([last[0][:1], last[0][1:]], axis=-1)
            now, row = target["<start>"], []
            for _ in range(30):
                inputs = {
                    "decoder_input": np.array([[now]], np.int32),
                    "decoder_hidden_1": h,
                    "encoder_outputs": seen,
                    "mask": np.ones((1, seen.shape[1]), np.float32),
                }
                logits, h = decode(inputs)[:2]
                if not row:
                    first.append(logits[0])
                now = int(logits.argmax())
                if now == target["<end>"]:
                    break
                row.append(now)
            said.append(row or [now])
        return np.stack(first), said

    weights = {f"{i}/{n}": w for i, p in enumerate(parts) for n, w in p.weights.items()}
    return Net(weights, run, _spelled_alike)


def notes(folder: Path) -> Net:
    """Which notes sound (basic-pitch): chords of plucked strings, in noise."""
    path = folder / "basic_pitch" / "saved_models" / "icassp_2022" / "nmp.onnx"
    net = OnnxNet(path)
    rng = np.random.default_rng(0)
    audio = rng.normal(size=(3, 43_844)) * 0.01
    for clip in audio:
        for _ in range(12):
            pitch = 440 * 2 ** ((int(rng.integers(36, 84)) - 69) / 12)
            start = int(rng.integers(0, 36_000))
            t = np.arange(43_844 - start) / 22_050
            tone = sum(np.sin(2 * np.pi * pitch * k * t) / k**1.5 for k in range(1, 8))
            clip[start:] += 0.15 * rng.uniform(0.4, 1) * tone * np.exp(-3 * t)
    inputs = {"serving_default_input_2:0": audio[..., None].astype(np.float32)}

    def run(weights: Weights) -> tuple[np.ndarray, Any]:
        found = [x.astype(np.float64) for x in net.session(weights)(inputs)[:2]]
        flat = np.concatenate([x.reshape(-1) for x in found])
        return flat, np.concatenate([(found[0] > 0.3), (found[1] > 0.3)])

    return Net(net.weights, run, _overlap)


def judge(net: Net, weights: Weights, before: Any) -> tuple[float, float]:
    """The change of the outputs in dB below their size, and the score."""
    outputs, found = net.run(weights)
    a, b = (np.asarray(x, np.float64) for x in (before[0], outputs))
    if a.ndim > 1 and a.shape[-1] > 1:  # equal up to a constant
        a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    error = ((a - b) ** 2).sum() / (a**2).sum()
    return 10 * math.log10(max(error, 1e-30)), net.score(found, before[1])

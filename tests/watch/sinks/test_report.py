"""The report: the live page in one file, with its answers inside."""

import base64
import json
import re
import tempfile
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

from chromium import BROWSER, chromium
from frugax.budget import Receipt, Spend
from frugax.errors import OutputError
from frugax.watch.drawing import PALETTES, Palette, hex_to_rgb
from frugax.watch.sinks import HtmlReport, Sink

from ..watching import event

pytestmark = pytest.mark.slow

NASTY = "</script><img src=x onerror=alert(1)>"


def run():
    """The records of a small run with everything in it."""
    rng = np.random.default_rng(0)
    for step in range(60):
        yield event("scalar", "", step, {"loss": 1 / (step + 1), "lr": 0.1})
        if step % 10 == 0:
            yield event("scalar", "", step, {"val": 1.0})  # later, for the same step
            grid = rng.integers(-1, 10, (4, 5), np.int8)
            yield event("frame", "grid", step, {"grid": grid, "mask": grid != 3})
            hidden = rng.normal(size=(3, 3 + step // 30))
            yield event("frame", "hidden", step, {"h": hidden})
            bins = {"counts": np.arange(4), "low": 0.0, "high": 1.0}
            yield event("frame", "weights", step, bins)
            told = {"reward": step / 2, "success": step > 30}
            yield event("summary", "episodes", step, told)
    status = {"overhead": 0.006, "budget": 0.01, "time": 1.8e9}
    status |= {"kept_frame": 12, "dropped_frame": 2}
    yield event("summary", "watch", 59, status)
    yield event("scalar", NASTY, 1, {NASTY: 1.0})
    yield event("summary", NASTY, 2, {NASTY: 1.0})
    yield event("frame", NASTY, 3, {NASTY: np.eye(2, dtype=int)})


RECEIPT = Receipt(
    (Spend(name="time & more", unit="share", limit=0.01, measured=0.006, source="x"),)
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    sink = HtmlReport(path, title=f"run {NASTY}", palette="high_contrast")
    assert isinstance(sink, Sink)
    sink.write(list(run()))
    sink.receipt = RECEIPT
    sink.close()
    return path


def held(path):
    """The answers in a report, and the bytes of its frames."""
    (text,) = re.findall(r'id="held">(.*?)</script>', path.read_text())
    data = zlib.decompress(base64.b64decode(text))
    end = 4 + int.from_bytes(data[:4], "little")
    return json.loads(data[4:end]), data[end:]


def film(path, stream):
    """The steps of a stream's frames, and their arrays."""
    answers, data = held(path)
    one = next(f for f in answers["frames"] if f["stream"] == f["column"] == stream)
    arrays, start = [], one["start"]
    for end in one["ends"]:
        head = start + 4 + int.from_bytes(data[start : start + 4], "little")
        about = json.loads(data[start + 4 : head])
        array = np.frombuffer(data[head:end], about["dtype"])
        arrays.append(array.reshape(about["shape"]))
        start = end
    return one["steps"], arrays


def written(path, events, **options):
    sink = HtmlReport(path, **options)
    sink.write(list(events))
    sink.close()
    return held(path)[0]


class Elements(HTMLParser):
    """Keeps every element with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_is_self_contained_and_escapes_all_values(page):
    text = page.read_text()
    found = Elements(text).found
    assert not re.findall(r'(?:src|href)="(?!data:|#|\./)', text)
    assert not [a for _, a in found if any(name.startswith("on") for name in a)]
    assert "default-src 'none'" in text
    scripts = [a.get("type") for tag, a in found if tag == "script"]
    assert scripts == ["application/octet-stream", "module"]


def test_it_holds_every_record_of_a_small_run(page):
    answers, _ = held(page)
    curves = {(c["stream"], c["column"]): c for c in answers["curves"]}
    assert curves["", "loss"]["x"] == [*range(60)]
    assert curves["", "val"]["x"] == [*range(0, 60, 10)]
    assert curves["", "loss"]["places"].keys() == {"step", "time", "clock"}
    assert answers["rows"]["episodes"]["steps"] == [50, 40, 30, 20, 10, 0]
    steps, grids = film(page, "grid")
    want = [e for e in run() if e.stream == "grid"]
    assert steps == [e.step for e in want]
    np.testing.assert_array_equal(grids, [e.values["grid"] for e in want])
    # Frames of another shape are a film of their own.
    films = [f["steps"] for f in answers["frames"] if f["stream"].startswith("hidden")]
    assert films == [[0, 10, 20], [30, 40, 50]]
    # All that the page may ask for is there.
    asked = {
        (stream, column)
        for stream, about in answers["run"]["streams"].items()
        for column in about["frames"]
    }
    assert asked == {(f["stream"], f["column"]) for f in answers["frames"]}
    assert answers["histograms"]["weights"]["steps"] == [*range(0, 60, 10)]
    (budget,) = answers["run"]["facts"]["budgets"]
    assert (budget["name"], budget["verdict"]) == ("time & more", "kept")
    assert answers["run"]["streams"]["watch"]["latest"]["dropped_frame"] == 2


def test_too_many_frames_are_thinned_evenly_and_said(tmp_path):
    frames = (
        event("frame", "g", step, {"g": np.full((10, 10), step % 10)})
        for step in range(1000)
    )
    answers = written(tmp_path / "a.html", frames, max_bytes=40_000)
    steps = np.array(film(tmp_path / "a.html", "g")[0])
    assert 90 <= len(steps) <= 102
    assert (steps[0], steps[-1]) == (0, 999)
    assert len(set(np.diff(steps[:-1]))) == 1
    about = answers["run"]["streams"]["g"]["frames"]["g"]
    assert (about["count"], about["seen"]) == (len(steps), 1000)


def test_a_long_curve_keeps_its_peak(tmp_path):
    values = np.where(np.arange(20_000) == 12_345, 9.0, 1.0)
    events = (event("scalar", "", i, {"x": x}) for i, x in enumerate(values))
    (curve,) = written(tmp_path / "a.html", events)["curves"]
    assert len(curve["x"]) <= 1000
    assert max(curve["high"]) == 9.0


def test_an_empty_run_has_a_page_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert written(tmp_path / "a.html", [])["curves"] == []
    with pytest.raises(OutputError):
        HtmlReport(tmp_path / "a.html" / "report.html").close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_it_opens_in_a_browser_and_its_controls_work(page):
    step = "document.querySelector('#frame-step')?.textContent"
    pixel = """(() => {
      const c = document.querySelector('#frame');
      const pen = document.createElement("canvas")
        .getContext("2d", { willReadFrequently: true });
      pen.drawImage(c, 4 - c.width, 4 - c.height);
      return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })()"""
    change = (
        "(() => {{ const s = document.querySelector('{}'); s.value = '{}';"
        " s.dispatchEvent(new Event('change')); }})()"
    )
    with chromium() as browser:
        browser.open(f"file://{page}")
        browser.wait_for(f"{step} === 'step 50'")
        assert browser.run("document.querySelector('#title').textContent") == (
            f"run {NASTY}"
        )
        assert browser.run("document.querySelectorAll('.chart canvas').length") >= 5
        last = [e for e in run() if e.stream == "grid"][-1].values["grid"][-1, -1]
        assert last not in (-1, 3)  # neither padding nor masked
        palettes: tuple[Palette, ...] = ("high_contrast", "arc")
        for name in palettes:
            browser.run(change.format("#palette", name))
            assert browser.run(pixel) == hex_to_rgb(PALETTES[name])[last].tolist()
        browser.run("document.querySelector('#scrub').focus()")
        for key, at in (("ArrowLeft", 40), ("Home", 0), ("ArrowRight", 10)):
            browser.press(key)
            browser.wait_for(f"{step} === 'step {at}'", timeout_s=10)
        plain = browser.run("document.querySelector('#frame').toDataURL()")
        for control in ("numbers", "changes"):
            browser.run(f"document.querySelector('#{control}').click()")
            drawn = "document.querySelector('#frame').toDataURL()"
            browser.wait_for(f"{drawn} !== {json.dumps(plain)}", timeout_s=10)
            plain = browser.run(drawn)
        for _ in range(2):
            browser.run("document.querySelector('#tables th button').click()")
        cell = "document.querySelector('#tables tbody td').textContent"
        assert browser.run(cell) == "0"
        browser.run(change.format("#axis", "time"))
        browser.run(change.format("#span", "0.5"))
        browser.size(400, 800)
        browser.run("new Promise((done) => setTimeout(done, 300))")
        assert browser.run("document.documentElement.scrollWidth") <= 400
        assert browser.complaints == []

"""The report: one file, nothing from outside, sound in a browser and without one."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from frugax.budget import Receipt, Spend
from frugax.errors import OutputError
from frugax.watch.drawing import PALETTES, Palette, hex_to_rgb
from frugax.watch.sinks import Curve, HtmlReport, Sink

from ..watching import event

pytestmark = pytest.mark.slow

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
NASTY = "</script><img src=x onerror=alert(1)>"


def run():
    """The records of a small run with everything in it."""
    rng = np.random.default_rng(0)
    for step in range(60):
        yield event("scalar", "", step, {"loss": 1 / (step + 1), "lr": 0.1})
        if step % 10 == 0:
            grid = rng.integers(-1, 10, (4, 5))
            yield event("frame", "grid", step, {"grid": grid})
            hidden = rng.normal(size=(3, 3 + step // 30))
            yield event("frame", "hidden", step, {"h": hidden})
            told = {"reward": step / 2, "success": step > 30}
            yield event("summary", "episodes", step, told)
    status = {"overhead": 0.006, "budget": 0.01}
    status |= {"kept_summary": 6, "dropped_summary": 0}
    status |= {"kept_frame": 12, "dropped_frame": 2}
    yield event("summary", "watch", 59, status)
    yield event("scalar", NASTY, 1, {NASTY: 1.0})
    yield event("summary", NASTY, 1, {NASTY: 1.0})
    yield event("frame", NASTY, 1, {NASTY: np.eye(2, dtype=int)})


RECEIPT = Receipt(
    (Spend(name="time & more", unit="share", limit=0.01, measured=0.006, source="x"),)
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    sink = HtmlReport(path, title=f"run {NASTY}")
    assert isinstance(sink, Sink)
    sink.write(list(run()))
    sink.receipt = RECEIPT
    sink.close()
    return path


class Elements(HTMLParser):
    """Counts elements and keeps every attribute."""

    def __init__(self, text):
        super().__init__()
        self.found, self.depth = [], 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_is_self_contained_and_escapes_all_values(page):
    text = page.read_text()
    found = Elements(text).found
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert not [a for _, a in found if any(name.startswith("on") for name in a)]
    assert not [tag for tag, _ in found if tag in {"img", "iframe", "link"}][1:]
    assert "default-src 'none'" in text
    assert text.count("<script>") == 1


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((0.004, 0.006), "kept"), ((0.004, 0.02), "cannot"), ((0.02, 0.03), "broken")],
)
def test_an_overhead_is_coloured_as_a_receipt_would_judge_it(tmp_path, ends, kind):
    sink, (low, high) = HtmlReport(tmp_path / "a.html"), ends
    status = {"budget": 0.01, "overhead": (low + high) / 2, "overhead_high": high}
    sink.write([event("summary", "watch", 1, status)])
    sink.close()
    assert f'<b class="{kind}">' in (tmp_path / "a.html").read_text()


def films(page):
    texts = re.findall(r'class="film-data">(.*?)</script>', page.read_text())
    return [json.loads(text) for text in texts]


def test_films_hold_every_frame_cell_for_cell(page):
    grid, hidden, _ = films(page)
    want = [e for e in run() if e.stream == "grid"]
    codes = np.frombuffer(zlib.decompress(base64.b64decode(grid["data"])), np.uint8)
    codes = codes.reshape(6, 4, 5).astype(int)
    codes[codes == 255] = -1
    np.testing.assert_array_equal(codes, [e.values["grid"] for e in want])
    assert grid["steps"] == [e.step for e in want]
    assert (hidden["kind"], hidden["rows"], hidden["columns"]) == ("ramp", 3, 4)
    assert hidden["sizes"][0] == [3, 3]


def test_lost_records_are_named(page):
    assert '<b class="cannot">2 frames</b><span>records lost</span>' in page.read_text()


def test_without_a_script_the_last_frame_is_a_drawing(page):
    stills = re.findall(r"<noscript>(<svg.*?</svg>)", page.read_text(), re.DOTALL)
    assert len(stills) == 3
    assert "grid, step 50" in stills[0]


def test_too_many_frames_are_thinned_evenly_with_a_note(tmp_path):
    sink = HtmlReport(tmp_path / "a.html", max_bytes=20_000)
    for step in range(1000):
        sink.write([event("frame", "g", step, {"g": np.full((10, 10), step % 10)})])
    sink.close()
    (film,) = films(tmp_path / "a.html")
    steps = np.array(film["steps"])
    assert 40 <= len(steps) <= 102
    assert (steps[0], steps[-1]) == (0, 999)
    assert len(set(np.diff(steps[:-1]))) == 1
    assert f"{len(steps)} of 1,000 frames" in (tmp_path / "a.html").read_text()


def test_a_million_points_keep_their_peak_in_bounded_memory():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, 9.0 if step == 54_321 else 1.0)
    steps, values = curve.points()
    assert len(steps) <= 8000
    assert steps[values.argmax()] == 54_321
    assert (steps[0], steps[-1]) == (0, 99_999)


def test_an_empty_run_has_a_page_too(tmp_path):
    HtmlReport(tmp_path / "a.html").close()
    assert "0 records" in (tmp_path / "a.html").read_text()


def test_a_page_that_cannot_be_written_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        HtmlReport(tmp_path / "file" / "report.html").close()


def opened(path, folder, *more):
    """The page's elements after its script has run, and the console's messages."""
    out = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder}", "--enable-logging=stderr", "--v=0",
            "--virtual-time-budget=4000", *more, "--dump-dom", f"file://{path}",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    return out.stdout, [line for line in out.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_it_opens_without_a_console_error(page, tmp_path):
    dom, console = opened(page, tmp_path)
    assert not console
    assert re.search(r'<html[^>]* class="scripted ready"', dom)
    assert dom.count("step 50</output>") == 2


ACT = """
<script>
addEventListener("error", (e) => document.body.dataset.error = e.message);
const wait = setInterval(() => {
  if (!document.documentElement.classList.contains("ready")) return;
  clearInterval(wait);
  const said = [], film = document.querySelector(".film");
  const tell = () => said.push(film.querySelector(".controls output").textContent);
  const press = (key) => {
    film.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    tell();
  };
  ["ArrowLeft", "ArrowLeft", "Home", "ArrowLeft", "ArrowRight", "End"].forEach(press);
  const pixel = () => {
    const c = film.querySelector(".screen");
    const pen = document.createElement("canvas")
      .getContext("2d", { willReadFrequently: true });
    pen.drawImage(c, 4 - c.width, 4 - c.height);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).join();
  };
  said.push(pixel());
  const choice = document.querySelector("select.palette");
  choice.value = "high_contrast";
  choice.dispatchEvent(new Event("change"));
  said.push(pixel());
  document.querySelectorAll("input.numbers, input.changes").forEach((i) => i.click());
  said.push(document.querySelector(".readout").textContent);
  document.querySelector("table.sortable th button").click();
  document.querySelector("table.sortable th button").click();
  said.push(document.querySelector("table.sortable tbody td").textContent);
  said.push(document.documentElement.scrollWidth <= innerWidth);
  document.body.dataset.said = said.join("|");
}, 50);
</script>
"""


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_keys_scrub_films_and_choices_redraw(page, tmp_path):
    # Its policy allows no second script, so this copy has no policy.
    policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
    text = re.sub(policy, "", page.read_text())
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", ACT + "</body>"))
    dom, console = opened(copy, tmp_path / "profile", "--window-size=500,800")
    assert not console
    assert "data-error" not in dom
    said = unescape(re.findall(r'data-said="([^"]*)"', dom)[0]).split("|")
    steps = ["step 40", "step 30", "step 0", "step 0", "step 10", "step 50"]
    assert said[:6] == steps
    last = [e for e in run() if e.stream == "grid"][-1].values["grid"][-1, -1]
    assert last >= 0
    palettes: tuple[Palette, ...] = ("arc", "high_contrast")
    for name, pixel in zip(palettes, said[6:8], strict=True):
        assert pixel == ",".join(map(str, hex_to_rgb(PALETTES[name])[last]))
    assert said[8].startswith("step 50: ")
    assert said[9:] == ["0", "true"]

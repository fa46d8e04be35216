"""The page in a real browser: it draws, updates, and keeps its security policy."""

import numpy as np
import pytest

from chromium import BROWSER, chromium
from frugax.watch.journal import Journal
from watched_pages import Server, shown, write_steps

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here"),
]

DRAWN = (
    "document.querySelectorAll('.chart canvas').length >= 2"
    " && performance.getEntriesByName('first-chart').length"
)
STEP = "document.querySelector('#frame-step').textContent"
# Whether anything but the background is painted on a canvas.
PAINTED = """(() => {
  const canvas = document.querySelector('%s');
  const pen = canvas.getContext('2d');
  const data = new Uint32Array(
    pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(data).size;
})()"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser, folder):
    """The browser with the page of an unfinished run open."""
    with shown(browser, folder):
        browser.wait_for(DRAWN)
        browser.wait_for(f"{STEP} === 'step 100'")
        yield browser


def test_tables_texts_and_system_metrics_have_their_own_panels(browser, tmp_path):
    steps = np.arange(100)
    with Journal.create(tmp_path / "journal", {}) as journal:
        journal.write_many(steps, {"loss": np.ones(100)})
        status = {"time": 1.8e9 + 0.25 * steps[::4], "stride": np.full(25, 16.0)}
        status["seconds per step"] = np.full(25, 0.25)
        journal.write_many(steps[::4], status, "watch")
        rows = {"index": np.tile([3, 1], (5, 1)), "loss": np.tile([0.5, 0.25], (5, 1))}
        journal.write_many(steps[:5], rows, "worst")
        memory = {"peak memory of the process, bytes": np.full(4, 2.0**28)}
        journal.write_many(np.array([0, 5, 10, 15]), memory, "system")
    with shown(browser, tmp_path / "journal"):
        cells = (
            "[...document.querySelectorAll('#frame-table tr')].map((r) => r.innerText)"
        )
        browser.wait_for(f"{cells}.length === 3")
        assert browser.run(cells) == ["index\tloss", "3\t0.5", "1\t0.25"]
        tiles = "document.querySelector('#tiles').innerText"
        browser.wait_for(f"{tiles}.includes('256 MiB')")
        # Short steps are thinned, and the curve says so.
        caption = "document.querySelector('.chart .read').innerText"
        browser.wait_for(f"{caption}.includes('every 16th step')")
        assert "0.25 s" in browser.run(tiles) or "250 ms" in browser.run(tiles)
        assert browser.complaints == []


def test_charts_and_frames_are_drawn_without_a_complaint(page):
    assert page.run("document.querySelector('#title').textContent") == "small"
    assert page.run("document.querySelector('#alive').className") in (
        "pill running",
        "pill died",  # on a slow machine the fixture's journal is old by now
    )
    assert page.run(PAINTED % ".chart canvas") > 5
    # The ten digits of the grid, and the lines between the cells.
    assert page.run(PAINTED % "#frame") >= 10
    label = page.run("document.querySelector('.plot').getAttribute('aria-label')")
    assert label.startswith("Chart of loss: 1 at step 1, 0.01 at step 100")
    rows = page.run("document.querySelectorAll('#tables tbody tr').length")
    assert rows == 5
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.complaints == []


def test_frames_are_moved_through_by_keys(page):
    page.run("document.querySelector('#scrub').focus()")

    def after(key, step, **held):
        page.press(key, **held)
        page.wait_for(f"{STEP} === 'step {step}'", timeout_s=10)

    after("ArrowLeft", 90)
    after("ArrowLeft", 80)
    after("ArrowRight", 90)
    after("Home", 10)
    after("ArrowRight", 100, shift=True)
    after("Home", 10)
    said = page.run("document.querySelector('#scrub').getAttribute('aria-valuetext')")
    assert said == "step 10, frame 1 of 10"
    page.press(" ")
    playing = "document.querySelector('#play').getAttribute('aria-label')"
    assert page.run(playing) == "Pause"
    page.wait_for(f"{STEP} === 'step 100'", timeout_s=20)
    page.wait_for(f"{playing} === 'Play'", timeout_s=10)
    after("End", 100)
    assert page.complaints == []


def test_new_records_are_shown_without_a_reload(page, folder):
    page.run("window.mine = true")
    with Journal.append_to(folder / "journal") as journal:
        write_steps(journal, 101, 140)
        page.wait_for("document.title.startsWith('step 140')")
        page.wait_for(f"{STEP} === 'step 140'")  # it was at the newest, so it follows
        page.wait_for("document.querySelectorAll('#tables tbody tr').length === 7")
        journal.rewind(120, others={"episode_summary": 6})
        page.wait_for("document.title.startsWith('step 120')")
        page.wait_for(f"{STEP} === 'step 120'")
        page.wait_for("document.querySelectorAll('#tables tbody tr').length === 6")
    assert page.run("window.mine")
    assert page.complaints == []


@pytest.mark.thorough
def test_it_continues_when_the_server_comes_back(browser, folder):
    server = Server(folder, "--port", 0)
    browser.complaints.clear()
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.wait_for(DRAWN)
    browser.run("window.mine = true")
    server.leave()
    browser.wait_for("document.querySelector('#alive').className === 'pill offline'")
    with Journal.append_to(folder / "journal") as journal:
        write_steps(journal, 101, 110)
    again = Server(folder, "--port", server.port)
    try:
        browser.wait_for("document.title.startsWith('step 110')")
        assert browser.run("window.mine")
        # That a connection was refused is the browser's own remark.
        assert all("ERR_" in text for text in browser.complaints)
    finally:
        browser.open("about:blank")
        again.leave()


@pytest.mark.thorough
def test_a_stretch_that_is_dragged_over_is_shown_finer(page):
    box = page.run(
        "(() => { const b = document.querySelector('.plot').getBoundingClientRect();"
        " return [b.left, b.top, b.width, b.height]; })()"
    )
    left, top, width, height = box
    middle = top + height / 2
    page.drag((left + width / 4, middle), (left + width / 2, middle))
    page.wait_for("!document.querySelector('#whole').hidden", timeout_s=10)
    page.run("document.querySelector('#whole').click()")
    assert page.run("document.querySelector('#whole').hidden")
    page.run(
        "const s = document.querySelector('#span'); s.value = '0.1';"
        " s.dispatchEvent(new Event('change'))"
    )
    asked = "performance.getEntriesByType('resource').some("
    page.wait_for(asked + "(e) => e.name.includes('from='))", timeout_s=10)
    assert page.complaints == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                (390, "light"),
                (320, "light"),
                (320, "dark"),
                (1280, "light"),
                (1280, "dark"),
            ]
        ),
    ],
)
def test_it_fits_the_width_and_the_scheme(page, width, scheme):
    page.size(width, 800)
    page.prefer(prefers_color_scheme=scheme)
    page.run("new Promise((done) => setTimeout(done, 200))")
    assert page.run("document.documentElement.scrollWidth") <= width
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (int(paper[4:].split(",")[0]) < 60) == (scheme == "dark")
    assert page.complaints == []


@pytest.mark.thorough
def test_reduced_motion_disables_animations(page):
    page.run("document.querySelector('#alive').className = 'pill running'")
    moving = "getComputedStyle(document.querySelector('#alive i')).animationName"
    page.prefer(prefers_reduced_motion="no-preference")
    assert page.run(moving) == "breathe"
    page.prefer(prefers_reduced_motion="reduce")
    assert page.run(moving) == "none"


def test_everything_that_can_be_pressed_has_a_name(page):
    nameless = page.run(
        "[...document.querySelectorAll('button, select, input, [role=img]')]"
        ".filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim()"
        " || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []


def test_the_policy_is_in_force(page):
    page.run(
        "new Promise((done) => { addEventListener('securitypolicyviolation', done);"
        " const s = document.createElement('style'); s.textContent = 'b{}';"
        " document.head.append(s); })"
    )
    assert page.complaints  # the one breach that this test made itself


@pytest.mark.thorough
def test_the_token_leaves_the_address(browser, folder):
    with shown(browser, folder, "--token"):
        browser.wait_for(DRAWN)
        assert browser.run("location.search") == ""
        assert browser.run("document.cookie") == ""  # scripts cannot read it
        assert browser.complaints == []

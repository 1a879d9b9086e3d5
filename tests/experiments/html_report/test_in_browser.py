"""The report as a browser shows it: it draws, answers to pointer and keys, and nothing overlaps."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from tests.conftest import go_without
from tests.experiments.html_report.conftest import Browser, page_of, run_of
from tests.experiments.html_report.test_views import REPEATED

PAPER_PX = 1039
"""A4 across, less the margins of the page."""


def test_it_draws_every_section_without_a_word_on_the_console(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    headings = browser.js("return [...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert headings == [
        "Summary",
        "Latency distributions",
        "Where the time went",
        "Over time",
        "By request class",
        "Replicas, iteration by iteration",
        "The ten worst requests",
        "Configs and hashes",
        "Definitions",
    ]
    assert browser.js("return document.querySelectorAll('#latency .main-svg').length") > 0
    assert browser.js("return document.querySelectorAll('#table tbody tr').length") == 6
    assert browser.js("return document.querySelectorAll('#table td.best').length") > 3
    said = browser.js("return document.querySelector('#time .shares').textContent")
    assert said.count("What usually helps: ") == 6
    assert "FLOP per byte, below the ridge of 295" in said
    assert browser.complaints() == []


def visible_of(browser: Browser, node: str, variant: int) -> int:
    script = (
        "return document.getElementById(arguments[0]).data.filter(t => t.meta === arguments[1])"
    )
    return len(browser.js(script, node, variant))


def test_a_press_on_a_variant_hides_and_shows_it_everywhere(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    charts = ("cdf-ttft", "cdf-itl", "over-time")
    before = [visible_of(browser, chart, 2) for chart in charts]
    assert min(before) > 0
    browser.click("#variants [data-variant='2']")
    assert [visible_of(browser, chart, 2) for chart in charts] == [0, 0, 0]
    assert browser.js("return document.querySelectorAll('#percentiles tbody tr').length") == 5
    pressed = "return document.querySelector('[data-variant=\"2\"]').getAttribute('aria-pressed')"
    assert browser.js(pressed) == "false"
    browser.js("document.querySelector('[data-variant=\"2\"]').focus()")
    browser.press("Enter")
    browser.js("document.activeElement.click()" if browser.js(pressed) == "false" else "")
    assert [visible_of(browser, chart, 2) for chart in charts] == before
    assert browser.complaints() == []


PLACE = """
const node = document.getElementById(arguments[0]);
node.scrollIntoView({block: 'center', behavior: 'instant'});
const trace = node.data.find(t => t.meta === arguments[1] && t.mode === 'lines');
const {xaxis, yaxis, _size: size} = node._fullLayout;
const box = node.getBoundingClientRect();
const at = trace.x.findIndex((_, i) => trace.y[i] >= arguments[2]);
return [box.left + size.l + xaxis.d2p(trace.x[at]), box.top + size.t + yaxis.d2p(trace.y[at])];
"""


def test_pointing_at_a_curve_names_it_and_dims_the_others_in_all_charts(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    browser.point_at(*browser.js(PLACE, "cdf-ttft", 0, 0.5))
    text = browser.until("return document.querySelector('#cdf-ttft .hovertext')?.textContent")
    assert "static" in text
    assert "%" in text
    dimmed = """
    const node = document.getElementById('cdf-e2e');
    return node._fullData.filter(t => t.mode === 'lines' && t.meta !== null).map(t =>
      [t.meta, document.querySelector(`#cdf-e2e .trace${t.uid}`).style.opacity]);
    """
    assert dict(browser.js(dimmed)) == {0: "", **dict.fromkeys(range(1, 6), "0.15")}


def test_dragging_zooms_and_a_double_click_goes_back(browser: Browser, quickstart: Path) -> None:
    browser.open(quickstart)
    axis = "return document.getElementById('cdf-e2e').layout.xaxis.range"
    x, y = browser.js(PLACE, "cdf-e2e", 1, 0.5)
    before = browser.js(axis)
    for kind, dx in (("mousePressed", 0), ("mouseMoved", 60), ("mouseMoved", 90)):
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        browser.command("Input.dispatchMouseEvent", type=kind, x=x + dx, y=y, **pressed)
    browser.command(
        "Input.dispatchMouseEvent", type="mouseReleased", x=x + 90, y=y, button="left", clickCount=1
    )
    wide = before[1] - before[0]
    browser.until(f"const r = (() => {{ {axis} }})(); return r[1] - r[0] < {wide / 2}")
    ticks = browser.js("return document.querySelectorAll('#cdf-e2e .xtick').length")
    assert ticks >= 2  # ticks are made anew for what is shown


def test_the_slider_reads_out_exact_percentiles(browser: Browser, quickstart: Path) -> None:
    browser.open(quickstart)
    browser.js(
        "const input = document.getElementById('percentile');"
        "input.value = 49; input.dispatchEvent(new Event('input'))"
    )
    assert browser.js("return document.getElementById('chosen').textContent") == "P50"
    cells = "return [...document.querySelectorAll('{}')].map(e => e.textContent.trim())"
    shown = browser.js(cells.format("#percentiles tbody tr td:nth-child(2)"))
    heads = browser.js(cells.format("#table thead th"))
    column = heads.index("TTFTP50 (s)") + 1
    table = browser.js(cells.format(f"#table tbody tr :nth-child({column})"))
    assert shown == [text.removesuffix(" ★") for text in table]


def test_the_timeline_moves_by_keys_and_reads_out_what_is_under_the_pointer(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    browser.js(
        "const canvas = document.getElementById('timeline-canvas');"
        "canvas.scrollIntoView({block: 'center', behavior: 'instant'}); canvas.focus()"
    )
    browser.js(PICTURE)
    whole = browser.js("return picture()")
    assert len(set(whole)) > 3  # prefill, decode and idle at least
    browser.press("+")
    zoomed = browser.js("return picture()")
    assert zoomed != whole
    browser.press("0")
    assert browser.js("return picture()") == whole
    box = "const b = document.getElementById('timeline-canvas').getBoundingClientRect();"
    x, y = browser.js(box + "return [b.left + 300, b.top + 20]")
    browser.point_at(x, y)
    said = browser.until(
        "const t = document.querySelector('#replicas .readout').textContent;"
        "return t.includes('replica-0') && t"
    )
    assert any(word in said for word in ("Prefill", "Decode", "Mixed", "idle"))


PICTURE = """
window.picture = () => {
  const canvas = document.getElementById('timeline-canvas');
  const data = canvas.getContext('2d').getImageData(118, 20, canvas.width - 130, 1).data;
  return [...Array(data.length / 4).keys()].map(i => data.slice(4 * i, 4 * i + 3).join());
};
"""


def test_the_life_of_a_request_is_gone_through_by_buttons_and_keys(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    now = (
        "return [...document.querySelectorAll('#life li')].findIndex(e => e.ariaCurrent === 'step')"
    )
    texts = browser.js("return [...document.querySelectorAll('#life li')].map(e => e.textContent)")
    assert texts[0].endswith("arrives")
    assert "is first scheduled on" in texts[1]
    assert any("first token (TTFT" in text for text in texts)
    assert texts[-1].endswith("finished")
    assert browser.js(now) == 0
    where = "return document.getElementById('ladder').layout.shapes[0].x0"
    at_first = browser.js(where)
    buttons = browser.driver.find_elements("css selector", "#life .row button")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", buttons[1])
    buttons[1].click()
    assert browser.js(now) == 1
    assert browser.js(where) > at_first
    browser.js("document.querySelector('#life ol').focus()")
    browser.press("ArrowDown")
    assert browser.js(now) == 2
    browser.press("Home")
    assert browser.js(now) == 0
    ladder = browser.js("return document.getElementById('ladder').data[0].x.length")
    told = browser.js("return document.querySelector('#life .note').textContent")
    assert f" of {ladder:,} output tokens" in told


def test_another_worst_request_and_variant_can_be_chosen(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    heading = "return document.querySelector('#life h3').textContent"
    before = browser.js(heading)
    browser.click(".worst tbody tr:nth-child(3) button")
    assert browser.js(heading) != before
    browser.js(
        "const s = document.getElementById('worst-variant');"
        "s.value = 5; s.dispatchEvent(new Event('change'))"
    )
    assert browser.js(heading).endswith("of disaggregated")
    assert "leaves prefill-0" in browser.js("return document.getElementById('life').textContent")
    assert browser.complaints() == []


def test_the_dark_scheme_is_that_of_the_system_and_can_be_switched(
    browser: Browser, quickstart: Path
) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    curve = "return document.getElementById('cdf-ttft').data.find(t => t.meta === 0).line.color"
    browser.open(quickstart, scheme="light")
    light, black = browser.js(background), browser.js(curve)
    assert black == "#000000"
    browser.open(quickstart, scheme="dark")
    assert browser.js(background) != light
    assert browser.js(curve) != black
    browser.click("#theme")
    assert browser.js(background) == light
    assert browser.js(curve) == black
    assert browser.complaints() == []


def test_definitions_stand_beside_what_they_define_on_hover_and_focus(
    browser: Browser, quickstart: Path
) -> None:
    browser.open(quickstart)
    tip = "const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent"
    assert browser.js(tip) == ""
    browser.js("document.querySelectorAll('#table th [data-about]')[6].focus()")
    assert "arrival to first token" in browser.js(tip)
    browser.press("Escape")
    assert browser.js(tip) == ""


# --- where things stand

BOXES = """
const drawn = '.xtick text, .ytick text, text[class*="title"], .annotation text';
const written = 'h1, h2, h3, .chip, .legend span, #table :is(th, td), #percentiles :is(th, td)';
const nodes = document.querySelectorAll(`${drawn}, ${written}`);
return [...nodes].map(node => {
  const box = node.getBoundingClientRect();
  return {text: node.textContent, left: box.left, right: box.right, top: box.top + scrollY,
          bottom: box.bottom + scrollY};
}).filter(box => box.right > box.left && box.text.trim());
"""


def overlaps(boxes: list[dict[str, Any]], slack: float = 1.0) -> list[tuple[str, str]]:
    """Pairs of boxes that share more than a pixel in both directions."""
    ordered = sorted(boxes, key=lambda box: box["top"])
    found = []
    for at, one in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other["top"] >= one["bottom"] - slack:
                break
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            if across > slack:
                found.append((one["text"], other["text"]))
    return found


@pytest.mark.parametrize(
    ("width", "media"), [(1280, ""), (1920, ""), (PAPER_PX, "print")], ids=["1280", "1920", "paper"]
)
def test_titles_legends_and_ticks_neither_meet_nor_leave_the_page(
    browser: Browser, quickstart: Path, width: int, media: str
) -> None:
    browser.open(quickstart, width, media=media)
    boxes = browser.js(BOXES)
    assert len(boxes) > 200
    assert [box["text"] for box in boxes if box["left"] < -0.5 or box["right"] > width + 0.5] == []
    assert overlaps(boxes) == []
    assert browser.js("return document.documentElement.scrollWidth") <= width


AXES = """
const node = document.getElementById('over-time');
const its = Object.entries(node._fullLayout).filter(([key]) => /^yaxis/.test(key));
const time = node.querySelector('.xtitle').getBoundingClientRect();
const drawn = [...node.querySelectorAll('[class$="title"]')].filter(e => /^y/.test(e.classList[0]));
return [its.length, drawn.every(e => e.getBoundingClientRect().bottom < time.top),
  [...node.querySelectorAll('[class$="tick"] text')].map(e => e.textContent)];
"""


@pytest.mark.parametrize("first", ["none", pytest.param("cache", marks=pytest.mark.slow)])
def test_panels_that_only_some_variants_have_keep_their_axes(
    browser: Browser, tmp_path: Path, first: str
) -> None:
    variants = [
        {"label": "none", "policy": "vllm-v1"},
        {"label": "cache", "policy": {"name": "vllm-v1", "prefix_cache": True}},
    ]
    config = {
        "workload": {
            "preset": "system-prompts",
            "requests": 60,
            "arrivals": {"process": "poisson", "rate_per_s": 4},
        },
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "compare": sorted(variants, key=lambda each: each["label"] != first),
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    browser.open(page_of(run_of(tmp_path / "c.yaml", tmp_path / "out"), tmp_path / "r.html"))
    cached = 0 if first == "cache" else 1

    assert visible_of(browser, "over-time", cached) == 4  # all but arrivals, which are alike
    for _ in range(2):
        panels, below, ticks = browser.js(AXES)
        assert (panels, below) == (5, True)
        assert [text for text in ticks if not re.fullmatch(r"[\d,.]+", text)] == []
        browser.click(f"#variants [data-variant='{cached}']")  # the panel of hits stays, empty
    assert "Prefix hits: no curve of none." in browser.js(
        "return document.getElementById('over').textContent"
    )
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two variants with three runs each, of which one loses a replica."""
    folder = tmp_path_factory.mktemp("repeated")
    (folder / "c.yaml").write_text(json.dumps(REPEATED))
    words = ["run", str(folder / "c.yaml"), "--out", str(folder / "out"), "--jobs", "1"]
    done = CliRunner().invoke(app, [*words, "--figures", "none", "--report"])
    assert done.exit_code == 0, done.output
    return folder / "out" / "report.html"


def test_the_run_that_is_shown_can_be_chosen(browser: Browser, repeated: Path) -> None:
    browser.open(repeated)
    shown = [
        f"return document.getElementById('run-{id}').value" for id in ("over", "replicas", "worst")
    ]
    curve = "return document.getElementById('over-time').data[0].y"
    heading = "return document.querySelector('#life h3').textContent"
    before, life = browser.js(curve), browser.js(heading)
    assert [browser.js(each) for each in shown] == ["0", "0", "0"]
    assert "of 3" in browser.js("return document.querySelector('#over .one-run').textContent")
    browser.js(
        "const s = document.getElementById('run-worst');"
        "s.value = 2; s.dispatchEvent(new Event('change'))"
    )
    assert [browser.js(each) for each in shown] == ["2", "2", "2"]
    assert browser.js(curve) != before
    assert browser.js(heading) != life
    browser.click("#variants [data-variant='1']")
    assert visible_of(browser, "over-time", 1) == 0
    assert browser.complaints() == []


def test_changes_of_the_cluster_are_marked_over_time(browser: Browser, repeated: Path) -> None:
    browser.open(repeated)
    marks = "return document.getElementById('over-time').data.filter(t => t.text).map(t => t.text)"
    (texts,) = browser.js(marks)
    assert [text.split(",")[0] for text in texts] == ["replica-1 failed", "replica-1 restored"]
    lines = browser.js("return document.getElementById('over-time').layout.shapes.map(s => s.x0)")
    assert lines == [2, 3]
    browser.click("#variants [data-variant='0']")
    assert browser.js(marks) == []
    assert not browser.js("return document.getElementById('over-time').layout.shapes?.length")
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [1280, 1920])
def test_what_is_of_one_run_meets_nothing_either(
    browser: Browser, repeated: Path, width: int
) -> None:
    browser.open(repeated, width)
    boxes = browser.js(BOXES)
    assert "Changes" in {box["text"] for box in boxes}
    assert overlaps(boxes) == []


WORD = re.compile(
    r'<word xMin="([\d.-]+)" yMin="([\d.-]+)" xMax="([\d.-]+)" yMax="([\d.-]+)">(.*?)</word>'
)


def words_of(pdf: Path) -> Iterator[tuple[float, float, list[dict[str, Any]]]]:
    """Width and height of each page, and the box of each word on it, in points, by poppler."""
    reader = shutil.which("pdftotext")
    if reader is None:
        go_without("pdf", "no pdftotext on the path (Debian: apt install poppler-utils)")
    text = subprocess.run(
        [reader, "-bbox", str(pdf), "-"], capture_output=True, text=True, check=True
    ).stdout
    for page in text.split("<page ")[1:]:
        size = re.match(r'width="([\d.]+)" height="([\d.]+)"', page)
        assert size is not None
        boxes = []
        for *edges, word in WORD.findall(page):
            left, top, right, bottom = map(float, edges)
            # Boxes are as tall as the font, which is more than its letters are.
            air = 0.18 * (bottom - top)
            edges_of = {"left": left, "right": right, "top": top + air, "bottom": bottom - air}
            boxes.append({"text": word, **edges_of})
        yield float(size[1]), float(size[2]), boxes


@pytest.mark.parametrize("which", ["quickstart", "repeated"])
def test_on_paper_no_word_meets_another_or_leaves_its_page(
    browser: Browser, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The PDF that Chromium prints, read by another program: what a printer would get."""
    browser.open(request.getfixturevalue(which))
    printed = browser.command("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
    pdf = tmp_path / "report.pdf"
    pdf.write_bytes(base64.b64decode(printed["data"]))
    pages = list(words_of(pdf))
    assert len(pages) > 5
    assert sum(len(boxes) for _, _, boxes in pages) > 1000
    every = {box["text"] for _, _, boxes in pages for box in boxes}
    assert {"Summary", "Definitions", "Share", "TTFT"} <= every
    panels = {"Over", "Arrivals", "Queue", "Batch", "KV", "Time"}
    assert any(panels <= {box["text"] for box in boxes} for _, _, boxes in pages)  # on one page
    for width, height, boxes in pages:
        assert width > height  # A4 across
        for box in boxes:
            assert 0 <= box["left"] < box["right"] <= width, box
            assert 0 <= box["top"] < box["bottom"] <= height, box
        assert overlaps(boxes) == []


def test_overlaps_are_found() -> None:
    box = {"text": "a", "left": 0, "right": 10, "top": 0, "bottom": 10}
    assert overlaps([box, {**box, "text": "b", "left": 8}]) == [("a", "b")]
    assert overlaps([box, {**box, "text": "b", "left": 9.5}, {**box, "top": 9.5}]) == []


def test_it_prints_in_the_light_scheme(browser: Browser, quickstart: Path) -> None:
    browser.open(quickstart, scheme="dark", media="print")
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert browser.js("return getComputedStyle(document.querySelector('nav')).display") == "none"
    printed = browser.command("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
    assert len(printed["data"]) > 50_000
    assert browser.complaints() == []


# --- names of users

NAMES = (
    "<script>window.broken = 1</script>",
    "</script><img src=x onerror='window.broken = 2'>",
    "a \"quoted\" & 'named' {{values}} $x$",
)
CLASSES = ("<b>bold</b> \u2028 </script>", "<i>it's</i>")


def test_markup_in_names_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f'{at / 5},{100 + at},{5 + at % 7},"{CLASSES[at % 2]}"' for at in range(60)]
    header = "arrival_s,prompt_tokens,output_tokens,request_class\n"
    trace.write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    config = {
        "name": "<script>window.broken = 3</script>",
        "about": "<b>about</b> \u2028 it",
        "workload": {"trace": str(trace)},
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "compare": [{"label": name, "policy": "vllm-v1"} for name in NAMES],
    }
    browser.open(page_of(run_of(config, tmp_path / "out"), tmp_path / "page.html"))
    assert browser.js("return window.broken === undefined")
    assert browser.js("return document.querySelectorAll('main img, main b, main i').length") == len(
        browser.js("return [...document.querySelectorAll('.legend i')]")
    )
    chips = browser.js(
        "return [...document.querySelectorAll('.chip > span')].map(e => e.textContent)"
    )
    assert [text for text in chips if text != "too short to tell"] == list(NAMES)
    assert browser.js("return document.querySelector('h1').textContent") == config["name"]
    assert "<b>about</b>" in browser.js("return document.getElementById('about').textContent")
    classes = browser.js(
        "return [...document.querySelectorAll('#classes h3')].map(e => e.textContent)"
    )
    assert classes == sorted(CLASSES)
    browser.point_at(*browser.js(PLACE, "cdf-ttft", 0, 0.5))
    hover = browser.until("return document.querySelector('#cdf-ttft .hovertext')?.textContent")
    assert any(name[:20] in hover for name in NAMES)
    assert browser.complaints() == []

"""The board in a real Chromium: live lines, zoom, a filter, a run that dies, a file that is cut in the middle."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from board_runs import TOKEN, add, make_run, make_sweep, served, steps

from shoestring.core.run_folder import RunFolder
from shoestring.report.page import draw, write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The board of four runs; a message of the page's console is an error."""
    make_run(tmp_path / "runs", "alive", until=40, lr=2e-3)
    make_run(tmp_path / "runs", "finished", until=100, done=True)
    make_run(tmp_path / "runs", "killed", until=60)
    make_run(tmp_path / "runs", "planned")
    said: list[str] = []
    with served(tmp_path / "runs") as board, playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{board.address}/?token={TOKEN}")
        until(page, "plot !== null && rows.size === 4 && [...rows.values()].every(r => r.state !== 'reading')")
        yield page
        browser.close()
    assert said == []


def until(page: Any, expression: str) -> None:
    """Wait until it is true; the page's own policy forbids what would wait in the page."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(expression)


def hold(folder: RunFolder) -> subprocess.Popen[bytes]:
    """A process that has the lock of a run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock = folder.path.with_name(f".{folder.path.name}.lock")
    lock.write_text(json.dumps({"pid": process.pid, "host": socket.gethostname(), "since": "now"}))
    return process


def cell(page: Any, run: str, number: int) -> str:
    return str(page.inner_text(f'tr[data-run="{run}"] td:nth-child({number})')).strip()


def state(page: Any, run: str, expected: str) -> None:
    until(page, f"rows.get({run!r}).state === {expected!r}")
    assert cell(page, run, 3) == expected


def test_a_run_is_watched_to_its_death(page: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs/alive")
    process = hold(folder)
    state(page, "alive", "running")
    assert cell(page, "alive", 4) == "40 %" and cell(page, "alive", 5) == "1m 2s"
    steps(folder, 41, 60)
    until(page, "rows.get('alive').step === 60")
    assert cell(page, "alive", 4) == "60 %" and cell(page, "alive", 7) == "3.900 ± 0.020"
    last = "Math.max(...plot.data[0].filter((x, i) => plot.data[1][i] !== null))"
    until(page, f"plot.series[1].label === 'alive, training' && {last} > 59 * 128")
    with folder.metrics.open("a") as file:
        file.write('{"step": 61, "tokens": 7808, "lo')
    add(folder.timings, {"step": 61, "elapsed": 63.0, "tokens_per_second": 128.0})
    until(page, "rows.get('alive').seconds === 63")
    assert page.evaluate("rows.get('alive').step") == 60, "a line that is cut waits"
    with folder.metrics.open("a") as file:
        file.write('ss": 3.5}\n###\n')
    until(page, "rows.get('alive').step === 61")
    until(page, "rows.get('alive').problems.length === 1")
    assert "1 lines of metrics or timings cannot be read" in cell(page, "alive", 9)
    process.kill()
    process.wait()
    state(page, "alive", "died")


def test_zoom_axes_and_a_filter(page: Any) -> None:
    while (box := page.locator(".u-over").bounding_box()) is None:  # it is drawn again just now
        page.wait_for_timeout(50)
    whole = page.evaluate("[plot.scales.x.min, plot.scales.x.max]")
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    until(page, "zoom !== null && !busy")
    low, high = page.evaluate("[plot.scales.x.min, plot.scales.x.max]")
    span = whole[1] - whole[0]
    assert low == pytest.approx(whole[0] + 0.5 * span, abs=0.02 * span)
    assert high == pytest.approx(whole[0] + 0.75 * span, abs=0.02 * span)
    page.mouse.dblclick(box["x"] + 100, box["y"] + 50)
    until(page, "zoom === null && !busy")
    assert page.evaluate("[plot.scales.x.min, plot.scales.x.max]") == pytest.approx(whole)
    for by, end in (("step", 100), ("seconds", 102), ("flops", 12_800_000)):
        page.select_option("#by", by)
        until(page, f"!busy && Math.abs(plot.scales.x.max / {end} - 1) < 0.01")
    page.check("#logx")
    page.check("#logy")
    until(page, "!busy && plot.scales.x.distr === 3 && plot.scales.y.distr === 3")
    page.fill("#filter", "done")
    assert page.locator("#runs tbody tr").count() == 1 and cell(page, "finished", 2) == "finished"
    page.fill("#filter", "")
    page.click('th[data-key="progress"]')
    page.click('th[data-key="progress"]')
    assert page.locator("#runs tbody tr").first.get_attribute("data-run") == "finished"


def _drawn(page: Any, done: Callable[[bytes], bool]) -> None:
    """Wait until the page looks as it should."""
    for _ in range(100):
        if done(page.screenshot()):
            return
        page.wait_for_timeout(100)
    raise AssertionError("the page does not look as it should after ten seconds")


def test_the_page_of_a_run_is_live_as_a_file(tmp_path: Path) -> None:
    folder, said = make_run(tmp_path, "finished", until=100), []
    write_page(folder, draw(folder), None)
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(folder.report.resolve().as_uri())
        assert page.locator("figure canvas").count() == 1 and page.locator("figure svg").count() == 0
        before, box = page.screenshot(), page.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 60, steps=4)
        page.mouse.up()
        page.mouse.move(5, 5)
        _drawn(page, lambda shown: shown != before)  # zoomed
        page.mouse.dblclick(box["x"] + 100, box["y"] + 50)
        page.mouse.move(5, 5)
        _drawn(page, lambda shown: shown == before)
        page.check("figure input >> nth=0")
        _drawn(page, lambda shown: shown != before)
        browser.close()
    assert said == []


def test_a_run_and_two_recipes(page: Any) -> None:
    page.click('tr[data-run="finished"]')
    page.wait_for_selector("#detail .samples")
    text = page.inner_text("#detail")
    assert "once <b>upon</b>" in text, "as it was written, not as markup"
    assert "Still falling: go on." in text and "Plan against actual" in text and "held-out loss" in text
    page.click("#none")
    for name in ("alive", "finished"):
        page.check(f'input[aria-label="show {name}"]')
    page.click("#compare")
    page.wait_for_selector("#detail .fields")
    fields = [line.split("\t")[0] for line in page.inner_text("#detail .fields").splitlines()]
    assert fields == ["field", "run.name", "train.lr"]


def test_a_sweep_is_drawn_and_grows(page: Any, tmp_path: Path) -> None:
    """Its list, a cell and a line for each setting, the best first; a run that ends meanwhile joins them."""
    runs = {
        f"{lr}-{width}": {"train.lr": lr, "model.width": width} for lr, width in itertools.product((0.1, 0.2), (8, 16))
    }
    for number, name in enumerate(list(runs)[:3]):
        make_run(tmp_path / "runs/grid", name, until=20, done=True, loss=3.0 - 0.1 * number)
    make_sweep(tmp_path, "grid", runs)
    until(page, "document.querySelectorAll('tr[data-sweep]').length === 1 && rows.size === 7")
    until(page, "document.querySelector('tr[data-sweep]').innerText.includes('3 done, 1 waiting')")
    page.click("tr[data-sweep]")
    until(page, "document.querySelectorAll('#heat rect').length === 3")
    assert page.locator("#parallel polyline").count() == 3
    best = "document.querySelector('.settings tr:nth-child(2)').innerText.split('\\t').slice(0, 3).join(' ')"
    assert page.evaluate(best) == "0.2 8 2.800"
    bright = "document.querySelector('[data-cell=\"0.2,8\"]').getAttribute('fill')"
    assert page.evaluate(bright) == "rgb(253,231,37)", "the best is bright"
    make_run(tmp_path / "runs/grid", "0.2-16", until=20, done=True, loss=1.0)
    until(page, "document.querySelectorAll('#heat rect').length === 4")
    assert page.evaluate(best) == "0.2 16 1.000" and page.evaluate(bright) != "rgb(253,231,37)"
    page.select_option("#sweepx", "model.width")
    assert page.locator('[data-cell="8,0.2"]').count() == 1, "the fields have changed places"
    page.click("#sweepcurves")
    until(page, "chosen.size === 4 && !busy && plot.series.length === 9")
    page.click('[data-cell="16,0.2"]', force=True)
    page.wait_for_selector("#detail h2")
    assert page.inner_text("#detail h2") == "grid/0.2-16"
    page.click("#closesweep")
    until(page, "document.getElementById('sweep').hidden")

"""The page: everything in one file, escaped, at any stage of a run."""

import base64
import dataclasses
import hashlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.records import Line, Machine, Plan
from shoestring.core.results import ClassScore, Evaluation, Forecast, Outcome, StateRow, StateTable, Verdict
from shoestring.core.run_folder import RunFolder
from shoestring.report.figures import loss_curve
from shoestring.report.interactive import plot_data, script
from shoestring.report.page import draw, plan_against_actual, write_page

PLAN = Plan(
    binding="time",
    steps=1000,
    tokens=2_000_000,
    seconds=120.0,
    tokens_per_second=20_000.0,
    disk_bytes=10_000_000,
    peak_bytes=None,
    lines=(Line(quantity="steps", value="1,000", reason="time / (step & <overhead>)"),),
)
OUTCOME = Outcome(
    steps=900,
    tokens=1_800_000,
    seconds=118.0,
    segments=1,
    tokens_per_second=18_000.0,
    disk_bytes=11_000_000,
    peak_bytes=500_000_000,
    loss=1.5,
    shortened=None,
)
MACHINE = Machine(
    device="cpu",
    device_name="A CPU <of> some & sort",
    threads=2,
    memory_bytes=16_000_000_000,
    system="Linux 6.1",
    python="3.11.7",
    versions={"torch": "2.13.0+cpu", "numpy": "2.4.6"},
)
EVALUATION = Evaluation(
    step=900,
    rows=256,
    tokens=65_536,
    loss=1.5,
    perplexity=4.4817,
    bits_per_byte=2.164,
    loss_by_position=(4.0, 2.0, 1.5),
    baselines={"uniform": 5.568, "unigram": 3.1, "bigram": 2.4},
)
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects tables, headings, attributes and text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self.plain = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "h2":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.plain += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if "h2" in self.open:
            self.titles[-1] += data


def make_folder(path: Path, name: str = "a run") -> RunFolder:
    values = {"run": {"name": name, "folder": str(path)}, "budget": {"steps": 1000}, "train": {"batch": 8, "lr": 3e-4}}
    recipe = recipe_file.build(values, "test")
    folder = RunFolder.of(recipe)
    folder.claim(recipe)
    return folder


def finished(path: Path, name: str = "a run") -> RunFolder:
    folder = make_folder(path, name)
    PLAN.write(folder.plan)
    MACHINE.write(folder.machine)
    EVALUATION.write(folder.evaluation)
    lines: list[dict[str, float]] = []
    for step in (450, 900):
        lines.append({"step": step, "tokens": step * 2000, "loss": 900 / step, "lr": 0.1, "grad_norm": 1.0})
        lines.append({"step": step, "heldout_loss": 1000 / step})
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def page_of(folder: RunFolder, outcome: Outcome | None) -> str:
    write_page(folder, draw(folder), outcome)
    return folder.report.read_text(encoding="utf-8")


def test_verdicts_come_first_as_recorded_or_by_the_curve(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    told = (Verdict(kind="unstable", text="Unstable: loss < 5 & rising."),)
    page = Page(page_of(folder, replace(OUTCOME, verdicts=told)))
    assert page.titles[0] == "Verdicts"
    assert "Unstable: loss < 5 & rising." in page.plain
    lines = [{"step": step, "tokens": step, "loss": 3.0 - step / 1000} for step in (300, 600, 900)]
    lines += [{"step": step, "heldout_loss": 1 + step / 900} for step in (300, 600, 900)]
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "Overfitting since step 300" in Page(page_of(folder, None)).plain, "of a run that is not finished"
    assert "Overfitting since step 300" in Page(page_of(folder, OUTCOME)).plain, "of an older version"


def test_the_forecast_stands_beside_time_and_memory(tmp_path: Path) -> None:
    expected = Forecast(step=180, loss=1.6, low=1.4, high=1.9)
    page = Page(page_of(finished(tmp_path), replace(OUTCOME, forecast=expected)))
    assert ["held-out loss", "1.600", "1.500", "-6.2%"] in page.rows
    assert "expected after step 180, at 1.600 (1.400 to 1.900, 90 %)" in page.plain


def test_a_finished_run_shows_everything(tmp_path: Path) -> None:
    page = Page(page_of(finished(tmp_path), OUTCOME))
    assert page.titles == [
        "Held-out loss",
        "Loss",
        "Loss by position",
        "Plan against actual",
        "Plan",
        "Machine",
        "Recipe",
    ]
    assert ["steps", "1,000", "time / (step & <overhead>)"] in page.rows, "the plan, with its reasons"
    assert ["steps", "1,000", "900", "-10.0%"] in page.rows, "the plan against what happened"
    assert ["device", "A CPU <of> some & sort"] in page.rows
    assert ["versions", "torch 2.13.0+cpu, numpy 2.4.6"] in page.rows
    assert ["system", "Linux 6.1, Python 3.11.7"] in page.rows
    assert [row[:2] for row in page.rows if row[0] == "this model"] == [["this model", "1.500"]]
    assert [row[:2] for row in page.rows if row[0] == "bigram"] == [["bigram", "2.400"]]
    assert "900 steps, 1.8M positions" in page.plain
    assert "held-out loss 1.500 nats per token, where counting pairs of tokens reaches 2.400" in page.plain
    assert "perplexity 4.48, 2.164 bits per byte" in page.plain
    assert "[budget]\nsteps = " in page.plain


def test_the_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    whole = page_of(finished(tmp_path), OUTCOME)
    code, policy = script()
    assert f'content="{policy}"' in whole and whole.count("<script") == 3, (
        "our own script, and the numbers of two figures"
    )
    text = re.sub('<script type="application/json">.*?</script>', "", whole.replace(code, ""))
    assert text.count("<svg") == 2
    for tag, name, value in Page(text).attributes:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "image"), tag
        if name.startswith("xmlns"):
            continue
        assert name not in ("src", "srcset", "action", "data", "background"), f"{tag} {name}"
        if name in ("href", "xlink:href"):
            assert value.startswith("#")
        assert "//" not in value, f"{tag} {name}={value}"
    assert "@import" not in text
    assert not re.search(r"url\(\s*['\"]?(?!#)", text)
    without = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://", without)


def test_names_and_recipes_are_escaped(tmp_path: Path) -> None:
    text = page_of(finished(tmp_path, '<b>bold & "$x" ${title}'), OUTCOME)
    assert "<b>" not in text
    assert "&lt;b&gt;bold &amp; " in text
    page = Page(text)
    assert page.plain.count("<b>bold & ") == 3, "the title, the heading and the recipe"
    assert "${title}" in page.plain


def test_a_figure_that_can_be_zoomed_has_the_numbers_of_its_picture() -> None:
    metrics = [
        {"step": 1, "tokens": 10, "loss": 3.0},
        {"step": 2, "tokens": 20, "loss": 2.0},
        {"step": 2, "heldout_loss": 2.5},
    ]
    found = plot_data(loss_curve(metrics, {"bigram": 1.5}))
    assert found["x"] == [10.0, 20.0] and found["titles"]["x"] == "positions of training"
    assert {one["label"]: one["y"] for one in found["series"]} == {
        "training": [3.0, 2.0],
        "held out": [None, 2.5],
        "bigram 1.50": [1.5, 1.5],
    }


HOSTILE = "</script></svg><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


def test_no_text_of_a_record_is_markup(tmp_path: Path) -> None:
    """Baselines, texts, classes, words of states, sentences, reasons, versions, and what a figure shows."""
    folder = finished(tmp_path)
    score = {field.name: 0.5 for field in dataclasses.fields(ClassScore)}
    names = [field.name for field in dataclasses.fields(ClassScore) if field.type in ("int", int)]
    replace(
        EVALUATION,
        text=HOSTILE,
        baselines={HOSTILE: 2.0, "bigram": 1.0},
        baselines_by_position={HOSTILE: (1.0, 2.0, 3.0)},
        macro_f1=0.5,
        accuracy=0.5,
        classes=(ClassScore(**score | dict.fromkeys(names, 1)),),
        confusion=((256,),),
    ).write(folder.evaluation)
    StateTable(rows=(StateRow(state=0, share=1.0, words=HOSTILE, moves=HOSTILE),), sentences=(HOSTILE,)).write(
        folder.states
    )
    replace(PLAN, lines=(Line(quantity=HOSTILE, value=HOSTILE, reason=HOSTILE),)).write(folder.plan)
    replace(MACHINE, device_name=HOSTILE, versions={HOSTILE: HOSTILE}).write(folder.machine)
    text = page_of(folder, replace(OUTCOME, shortened=HOSTILE))
    page = Page(text)
    assert text.count("<script") == 3 and "<img" not in text
    (code,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    (policy,) = (
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "script" in value
    )
    assert f"script-src 'sha256-{digest}'" in policy, "no other script runs in the page"
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.plain.count("<script>alert(1)") >= 8


def test_reasons_of_a_shortened_run_are_escaped_too(tmp_path: Path) -> None:
    page = Page(page_of(finished(tmp_path), replace(OUTCOME, shortened="at step 5 <script>", segments=3)))
    assert "Shortened: at step 5 <script>." in page.plain
    assert "over 3 sessions" in page.plain


def test_a_run_that_is_still_going_has_a_page(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    folder.evaluation.unlink()
    page = Page(page_of(folder, None))
    assert "Still running." in page.plain
    assert page.titles == ["Loss", "Plan", "Machine", "Recipe"]


def test_a_run_with_nothing_but_its_recipe_has_a_page(tmp_path: Path) -> None:
    page = Page(page_of(make_folder(tmp_path), None))
    assert page.titles == ["Recipe"]
    assert "Still running." in page.plain


def test_a_torn_last_line_of_the_metrics_is_left_out(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    with open(folder.metrics, "ab") as file:
        file.write(b'{"step": 901, "tok')
    assert "Loss" in draw(folder)


def test_without_the_drawing_library_the_page_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    text = page_of(finished(tmp_path), OUTCOME)
    assert "<svg" not in text
    page = Page(text)
    assert page.plain.count("needs vl-convert-python; install it with: pip install 'shoestring[report]'") == 2
    assert ["steps", "1,000", "900", "-10.0%"] in page.rows


def test_unknown_quantities_are_called_unknown(tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in plan_against_actual(PLAN, OUTCOME)}
    assert rows["memory"] == ("unknown", "500 MB", "unknown")
    assert rows["positions"] == ("2M", "1.8M", "-10.0%")
    assert rows["disk"] == ("10 MB", "11 MB", "+10.0%")
    folder = finished(tmp_path)
    replace(MACHINE, memory_bytes=None).write(folder.machine)
    replace(EVALUATION, bits_per_byte=None).write(folder.evaluation)
    page = Page(page_of(folder, replace(OUTCOME, peak_bytes=None)))
    assert ["memory", "unknown"] in page.rows
    assert ["memory", "unknown", "unknown", "unknown"] in page.rows
    assert "bits a byte" not in page.plain


def test_one_of_a_thing_is_in_the_singular(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    replace(EVALUATION, rows=1, tokens=1).write(folder.evaluation)
    page = Page(page_of(folder, replace(OUTCOME, steps=1, tokens=1)))
    assert "1 step, 1 position in" in page.plain
    assert "1 row, 1 prediction, after step 900" in page.plain


def test_an_evaluation_without_baselines_is_shown(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    replace(EVALUATION, baselines={}).write(folder.evaluation)
    page = Page(page_of(folder, OUTCOME))
    assert [row[:2] for row in page.rows if row[0] == "this model"] == [["this model", "1.500"]]
    assert "counting pairs" not in page.plain


def test_a_classifier_has_a_loss_per_row_and_no_positions(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    scores = {"accuracy": 0.7, "macro_f1": 0.6, "majority_accuracy": 0.5, "majority_macro_f1": 0.3}
    replace(EVALUATION, loss_by_position=(1.0,), **scores).write(folder.evaluation)
    found = draw(folder)
    assert "nats per row" in found["Loss"] and "nats per token" not in found["Loss"]
    assert "Loss by position" not in found


def test_the_page_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    page_of(folder, None)
    before = {path.name for path in folder.path.iterdir()}
    assert "Still running." not in page_of(folder, OUTCOME)
    assert {path.name for path in folder.path.iterdir()} == before

"""What a model writes at its evaluations: the prompts, the file, its cost, and a run that is interrupted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.planning.stops import TEXTS_SECONDS, TEXTS_SHARE
from shoestring.report.page import write_page
from shoestring.report.samples import texts_by_prompt
from shoestring.runs import sample_texts, session
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.sample_texts import TOKENS, Sample, SampleTexts, _beginnings
from shoestring.track import LineFile, read_lines


class StoppedClock(Clock):
    """Time passes only where a text is written."""

    now = 0.0

    def elapsed(self) -> float:
        return self.now


def sampler(path: Path, clock: StoppedClock, token: float, said: list[str]) -> SampleTexts:
    """Each token takes so many seconds."""

    def write(tokens: int) -> list[Sample]:
        clock.now += tokens * token
        return [Sample("a", f"a {tokens}")]

    return SampleTexts(write, LineFile(path), clock, said.append, lambda state: state.step)


def after(samples: SampleTexts, step: int, total: int = 100) -> None:
    samples.wanted = True
    samples(at(step, total), None)  # type: ignore[arg-type]


def at(step: int, total: int = 100) -> Any:
    return SimpleNamespace(step=step, schedule=SimpleNamespace(total=total, progress=lambda step: step / total))


@pytest.mark.parametrize(("token", "each"), [(0.0005, 20.0), (0.01, 20.0), (0.02, 10.0)])
def test_texts_take_a_bounded_share_of_the_time_and_are_spread_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: float, each: float
) -> None:
    clock, cost = StoppedClock(), TOKENS * token
    clock.now = 0.0
    monkeypatch.setattr(sample_texts.time, "perf_counter", clock.elapsed)
    samples, training = sampler(tmp_path / "samples.jsonl", clock, token, []), 0.0
    for step in range(1, 101):
        clock.now, training = clock.now + each, training + each
        after(samples, step)
    assert clock.now - training <= TEXTS_SECONDS + TEXTS_SHARE * clock.now + 4 * token
    lines = read_lines(tmp_path / "samples.jsonl")
    steps, most = [line["step"] for line in lines], int((TEXTS_SECONDS + TEXTS_SHARE * clock.now - 4 * token) / cost)
    assert steps[0] == 1 and steps[-1] == 100, "the first and the last evaluation"
    assert min(100, most) - 2 <= len(steps) <= min(100, most)
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert max(gaps) <= 2 * -(-100 // len(steps)), "no long time without a text"
    assert lines[0]["samples"] == [{"prompt": "a", "text": f"a {TOKENS}"}]


def test_a_failure_is_said_once_and_ends_the_samples(tmp_path: Path) -> None:
    said: list[str] = []

    def write(tokens: int) -> list[Sample]:
        raise ValueError("no words")

    samples = SampleTexts(
        write, LineFile(tmp_path / "samples.jsonl"), Clock(0.0), said.append, lambda state: state.step
    )
    after(samples, 1)
    after(samples, 2)
    assert len(said) == 1 and "ValueError: no words" in said[0] and "the run continues" in said[0]


def test_a_step_is_written_once_and_only_after_an_evaluation(tmp_path: Path) -> None:
    clock, path = StoppedClock(0.0), tmp_path / "samples.jsonl"
    for _ in range(2):  # the second one resumes
        samples = sampler(path, clock, 0.0, [])
        after(samples, 5)
        samples(at(6), None)  # type: ignore[arg-type]
    assert [line["step"] for line in read_lines(path)] == [5]


def test_prompts_begin_where_a_document_does() -> None:
    rows = torch.tensor([[5, 6, 0, 7, 8, 9], [1, 2, 3, 4, 0, 5], [0, 1, 2, 3, 4, 5], [9] * 6])
    assert _beginnings(rows, 0, 3).tolist() == [[7, 8, 9], [1, 2, 3], [5, 6, 0]], "two documents, and the first row"
    assert _beginnings(rows, 0, 1).tolist() == [[7], [5], [1]]
    assert _beginnings(rows[3:], 0, 2).tolist() == [[9, 9]]
    assert _beginnings(rows, None, 2).tolist() == [[5, 6], [1, 2], [0, 1]]


@pytest.mark.parametrize("kind", ["network", "prompts", "none", "hmm", "stream"])
def test_a_run_has_its_texts_in_a_file_and_on_its_page(kind: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides: dict[str, list[str]] = {
        "prompts": ['evaluate.prompts=["line", "a number"]'],
        "none": ["evaluate.prompts=[]"],
        "stream": ["data.documents=", "data.stream=markov:12"],
    }
    """And what it writes when asked for it, line by line."""
    file = tiny
    monkeypatch.setattr(sample_texts, "TEXTS_SECONDS", 1e9)
    monkeypatch.setattr(session, "draw", lambda _: {})
    if kind == "hmm":
        file = tiny.with_name("hmm.toml")
        file.write_text(
            '[run]\nname = "h"\n[budget]\nepochs = 3\n[hmm]\nstates = 4\n[evaluate]\nevery = 0.34\nrows = 8\n'
            '[data]\nsource = "stories"\ntokenizer = "words:200"\nlength = 8\ndocuments = 300\n'
        )
    monkeypatch.chdir(tiny.parent)
    settings = tuple(overrides.get(kind, ()))
    recipe = load(file, settings)
    write_profile(file, *settings)
    run(recipe, Reporter(), Clock(0.0))
    folder = RunFolder.of(recipe)
    lines = read_lines(folder.samples)
    if kind == "none":
        assert not folder.samples.exists() and "What it writes" not in folder.report.read_text()
        return
    scored = [line["step"] for line in read_lines(folder.metrics) if "heldout_loss" in line]
    assert lines and {line["step"] for line in lines} <= set(scored)
    samples = lines[-1]["samples"]
    assert [s["prompt"] for s in samples] == (
        ["line", "a number"] if kind == "prompts" else [s["prompt"] for s in samples]
    )
    assert len(samples) == (2 if kind == "prompts" else 3) and all(s["text"] for s in samples)
    page = folder.report.read_text()
    assert "What it writes" in page
    words = samples[0]["text"].split()[0]
    asked = ["generate", str(folder.path), "--max-tokens", "4", "--top-p", "0.9", "--interactive", "--json"]
    told = CliRunner().invoke(root, asked, input=f"{words}\n\n{words}\n", catch_exceptions=False)
    answers = json.loads(told.stdout)["answers"]
    assert [answer["prompt"] for answer in answers] == [words, "", words]
    assert answers[0]["texts"][0].startswith(words) and answers[0] != answers[2], "each draws anew"
    assert texts_by_prompt(folder)[0][-1].step == lines[-1]["step"]


def test_an_interrupted_run_has_each_text_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    monkeypatch.setattr(sample_texts, "TEXTS_SECONDS", 1e9)
    monkeypatch.setattr(session, "draw", lambda _: {})
    whole, cut = (load(tiny, (f"run.name={name}", "evaluate.every=0.1")) for name in ("whole", "cut"))
    for recipe in (whole, cut):
        write_profile(tiny, f"run.name={recipe.run.name}", "evaluate.every=0.1")
    run(whole, Reporter(), Clock(0.0))
    steps = [line["step"] for line in read_lines(RunFolder.of(whole).metrics) if "heldout_loss" in line]
    kept = sample_texts.SampleTexts.__call__

    def stops(self: Any, state: Any, report: Any) -> Any:
        found = kept(self, state, report)
        if state.step == steps[1]:
            raise Fault("power cut")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(sample_texts.SampleTexts, "__call__", stops)
        with pytest.raises(Fault):
            run(cut, Reporter(), Clock(0.0))
    run(cut, Reporter(), Clock(0.0))
    first, second = (RunFolder.of(recipe).samples.read_bytes() for recipe in (whole, cut))
    assert first == second, "the same prompts, and the same weights"
    assert [json.loads(line)["step"] for line in first.splitlines()] == steps


def test_a_text_is_no_markup(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    recipe = load(tiny)
    folder = RunFolder.of(recipe)
    folder.claim(recipe)
    LineFile(folder.samples).add(step=1, samples=[{"prompt": "<b>", "text": "<b>x<script>"}])
    write_page(folder, {}, None)
    assert "<b>&lt;b&gt;</b>x&lt;script&gt;" in folder.report.read_text()

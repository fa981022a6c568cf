"""What `measure` shows of a corpus: how dense it is, and how sure that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoestring.cli.terminal import Terminal
from shoestring.core.facts import Cost, Density, Machine, Point, Profile
from shoestring.core.recipe import build
from shoestring.core.run_folder import RunFolder
from shoestring.stages import measure

SAMPLE = Density(
    documents=85_200,
    text_bytes=60_000_000,
    tokens=15_000_000,
    seconds=1.0,
    total_documents=852_000,
    total_documents_error=9000.0,
    tokens_per_gb_error=600_000.0,
    entries_per_gb_error=15_000.0,
)


def shown(
    density: Density | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """All that a person reads while a recipe is measured."""
    values = {"run": {"folder": str(tmp_path)}, "budget": {"steps": 1}, "train": {"batch": 1}}
    recipe = build(values, "test")
    profile = Profile(
        machine=Machine(
            device="cpu", device_name="a CPU", threads=1, memory_bytes=None, system="", python="", versions={}
        ),
        workload=recipe.workload,
        length=recipe.data.length,
        points=(Point(batch=1, seconds=0.5, slowest_seconds=0.5, peak_bytes=None),),
        setup_seconds=1.0,
        update_seconds=0.1,
        validate_seconds_per_row=0.1,
        checkpoint_seconds=0.1,
        checkpoint_bytes=1,
        available_bytes=None,
        stopped="enough",
        cost=Cost(parameters={"all": 1}, forward_flops_per_token=1.0),
        density=density,
    )
    monkeypatch.setattr(measure, "measure_recipe", lambda *_: profile)
    assert measure.ensure_profile(recipe, RunFolder.of(recipe), Terminal(), 1.0) == profile
    return capsys.readouterr().out


def test_a_sample_is_shown_with_its_intervals_of_95_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.96 · 15,000 = 29,400 entries; 1.96 · 600,000 = 1.176 M tokens."""
    out = shown(SAMPLE, tmp_path, monkeypatch, capsys)
    assert "1.42M ± 29.4k entries/GB, 250M ± 1.18M tokens/GB (± is 95 %, from a sample of 60 MB of text)" in out


@pytest.mark.parametrize(
    ("error", "said"), [(0.0, "all of its 60 MB of text counted"), (None, "from its first 85,200 entries")]
)
def test_what_was_counted_in_full_or_not_at_random_has_no_interval(
    error: float | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    density = Density(
        documents=SAMPLE.documents,
        text_bytes=SAMPLE.text_bytes,
        tokens=SAMPLE.tokens,
        seconds=1.0,
        total_documents=None if error is None else SAMPLE.documents,
        total_documents_error=error,
        tokens_per_gb_error=error,
        entries_per_gb_error=error,
    )
    out = shown(density, tmp_path, monkeypatch, capsys)
    assert f"1.42M entries/GB, 250M tokens/GB ({said}" in out
    assert "±" not in out


def test_a_stream_has_no_density_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "/GB" not in shown(None, tmp_path, monkeypatch, capsys)

"""Verdicts: each on runs where its fault is planted, and none of them on runs without one."""

import math

import pytest
from curves import Lines, changed, clean_lines

from shoestring.core.results import Evaluation
from shoestring.report.verdicts import live_verdicts, verdicts
from shoestring.track.curve import Curve

COUNTS = {"uniform": 5.568, "unigram": 3.042, "bigram": 2.283}


def evaluation(loss: float, error: float | None = 0.01, baselines: dict[str, float] | None = None) -> Evaluation:
    return Evaluation(
        step=400,
        rows=256,
        tokens=65_536,
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=None,
        loss_by_position=(loss,),
        baselines=COUNTS if baselines is None else baselines,
        loss_error=error,
    )


def kinds(lines: Lines, clip: float | None = 1.0) -> list[str]:
    return [verdict.kind for verdict in live_verdicts(Curve.of(lines), clip)]


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02, 0.06])
@pytest.mark.parametrize("seed", range(4))
def test_a_clean_run_has_no_fault_at_any_moment(noise: float, seed: int) -> None:
    lines = clean_lines(noise=noise, seed=seed)
    for end in range(25, len(lines) + 1, 45):
        assert kinds(lines[:end]) == []
    assert [each.kind for each in verdicts(Curve.of(lines), evaluation(1.75))] == ["noise"]


def test_a_run_that_stands_at_its_floor_has_no_fault() -> None:
    lines = changed(clean_lines(noise=0.01), "loss", lambda step, loss: loss if step < 200 else 2.0 + (loss % 0.02))
    assert kinds(lines) == []


@pytest.mark.parametrize("error", [0.01, None])
def test_overfitting_names_the_step_and_both_losses(error: float | None) -> None:
    lines = changed(clean_lines(error=error), "heldout_loss", lambda step, loss: loss + 0.004 * max(0, step - 160))
    lines = changed(lines, "loss", lambda step, loss: loss - 0.002 * max(0, step - 160))
    (verdict,) = live_verdicts(Curve.of(lines))
    assert verdict.kind == "overfitting"
    assert "since step 160" in verdict.text
    held = {line["step"]: line["heldout_loss"] for line in lines if "heldout_loss" in line}
    assert f"rose from {held[160]:.3f} to {held[400]:.3f}" in verdict.text
    assert kinds([line for line in lines if line["step"] <= 160]) == []  # not yet


def test_a_run_that_returned_to_its_best_weights_overfitted_before_and_is_not_unstable() -> None:
    """Its training loss is that of the best weights again, and the held-out loss ends below theirs."""
    lines = changed(clean_lines(error=0.01), "heldout_loss", lambda step, loss: loss + 0.004 * max(0, step - 160))
    lines = changed(lines, "loss", lambda step, loss: loss - 0.01 * max(0, step - 160))
    ended = changed(lines, "heldout_loss", lambda step, loss: loss if step <= 240 else 1.0)
    best = next(line["loss"] for line in ended if line["step"] == 160 and "loss" in line)
    ended = changed(ended, "loss", lambda step, loss: loss if step <= 240 else best - step / 1e4)
    assert "diverging" in kinds(ended) and "overfitting" not in kinds(ended)
    turned = [*ended, {"step": 240, "event": "overfitting", "best": 160, "total": 400, "was": 900}]
    (verdict,) = live_verdicts(Curve.of(turned))
    assert verdict.kind == "overfitting" and "since step 160" in verdict.text
    assert [each.kind for each in verdicts(Curve.of(turned), evaluation(1.0))] == ["overfitting", "noise"]


def test_a_rise_within_the_error_is_no_overfitting() -> None:
    flat = changed(clean_lines(error=0.02), "heldout_loss", lambda step, loss: max(loss, 1.9) + (step == 400) * 0.03)
    assert kinds(flat) == []
    assert kinds(changed(flat, "heldout_error", lambda *_: 0.01)) == ["overfitting"]


def test_a_steady_rise_within_the_error_of_few_rows_is_overfitting() -> None:
    """Evaluations are of the same rows: one differs from the next by less than the error of either."""
    rising = changed(
        clean_lines(error=0.2, evaluations=20),
        "heldout_loss",
        lambda step, _: 2 + abs(step - 200) / 2000 + step % 3 / 999,
    )
    assert kinds([line for line in rising if line["step"] <= 220]) == []
    assert kinds(rising) == ["overfitting"]


def test_a_rise_of_both_losses_is_not_overfitting() -> None:
    both = clean_lines()
    for name in ("loss", "heldout_loss"):
        both = changed(both, name, lambda step, loss: loss + 0.01 * max(0, step - 200))
    assert kinds(both) == ["diverging", "lr_too_high"]


def test_spikes_at_a_high_rate_say_that_it_is_too_high() -> None:
    at = (60, 100, 140, 180)
    spiky = changed(clean_lines(), "loss", lambda step, loss: loss * (1.6 if step in at else 1))
    spiky = changed(spiky, "grad_norm", lambda step, norm: norm * (40 if step in at else 1.5))
    first, second = live_verdicts(Curve.of(spiky), clip=1.0)
    assert (first.kind, second.kind) == ("unstable", "lr_too_high")
    assert "4 spikes" in first.text and "step 60" in first.text
    assert "train.lr = 0.0003" in second.text and "were clipped" in second.text
    assert kinds([line for line in spiky if line["step"] < 140]) == []  # two may be odd rows


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_spikes_at_a_low_rate_say_nothing_of_the_rate(name: str) -> None:
    factor = {"loss": 1.6, "grad_norm": 40}[name]
    spiky = changed(clean_lines(), name, lambda step, value: value * (factor if step in (280, 320, 360, 390) else 1))
    assert kinds(spiky) == ["unstable"]


def test_a_run_that_diverges_and_stays_there() -> None:
    stuck = changed(clean_lines(), "loss", lambda step, loss: loss if step < 120 else 4.2 + loss % 0.1)
    first, second = live_verdicts(Curve.of(stuck))
    assert (first.kind, second.kind) == ("diverging", "lr_too_high")
    assert "step 119" in first.text


@pytest.mark.parametrize(
    ("loss", "kind"), [(3.041, "learned_nothing"), (3.2, "learned_nothing"), (2.9, "only_counting"), (2.2, None)]
)
def test_counting_is_beaten_only_beyond_the_error(loss: float, kind: str | None) -> None:
    found = {each.kind: each.text for each in verdicts(Curve(training=(), heldout=()), evaluation(loss))}
    assert set(found) == {"noise", *([kind] if kind else [])}
    if kind == "only_counting":
        assert "below that of the unigram (3.042)" in found[kind] and "bigram (2.283)" in found[kind]


def test_what_overfitting_lost_was_learned() -> None:
    """The last weights are worse than a bigram, and the best were not."""
    lines = changed(clean_lines(), "heldout_loss", lambda step, loss: loss + 0.02 * max(0, step - 200))
    lines = changed(lines, "loss", lambda step, loss: loss - 0.002 * max(0, step - 200))
    found = verdicts(Curve.of(lines), evaluation(5.2))
    assert [each.kind for each in found] == ["overfitting", "noise"]


@pytest.mark.parametrize(
    ("baselines", "loss", "expected"),
    [
        ({"uniform": 0.69, "majority class": 0.5}, 0.5, "learned_nothing"),
        ({"uniform": 0.69, "majority class": 0.5}, 0.3, None),
        ({"unigram_in_context": 2.0, "bigram_in_context": 1.5, "oracle": 1.2}, 1.6, "only_counting"),
        ({"unigram_in_context": 2.0, "bigram_in_context": 1.5, "oracle": 1.2}, 1.4, None),
        ({}, 1.4, None),
        ({"unigram": 0.693, "bigram": 0.0004}, 0.7, "learned_nothing"),
        ({"unigram": 0.693, "bigram": 0.0004}, 0.3, "only_counting"),
        ({"unigram": 0.693, "bigram": 0.0004}, 0.005, None),
        ({"unigram": 0.004, "bigram": 0.003}, 1.5, "learned_nothing"),
        ({"unigram": 0.004, "bigram": 0.003}, 0.0041, None),
    ],
)
def test_counting_of_classes_and_of_streams(baselines: dict[str, float], loss: float, expected: str | None) -> None:
    found = verdicts(Curve(training=(), heldout=()), evaluation(loss, None, baselines))
    assert [each.kind for each in found] == ([expected] if expected else [])


def test_the_noise_is_the_error_over_the_rows() -> None:
    (verdict,) = verdicts(Curve(training=(), heldout=()), evaluation(1.5, 0.0123))
    assert verdict.text == "Held-out loss 1.500 ± 0.012: one standard error over 256 rows."


def test_epochs_of_a_fit_without_a_rate() -> None:
    lines = [{"step": n, "loss": 3 - 0.1 * n, "updates": n} for n in range(1, 8)]
    lines += [{"step": n, "heldout_loss": 3 + 0.1 * abs(n - 3)} for n in range(1, 8)]
    (verdict,) = live_verdicts(Curve.of(sorted(lines, key=lambda line: line["step"])), unit="epoch")
    assert "since epoch 3" in verdict.text

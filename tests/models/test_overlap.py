"""Overlaps and divergences against counting by hand, and prompts against a model that is asked id by id."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.sections import Model
from shoestring.models.fingerprint_prompts import draw_prompts, weights_fingerprint
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.overlap import BaseLists, among_least, among_most, divergence, least_likely, shared


def ids(mask: Tensor) -> list[int]:
    (row,) = mask
    return row.nonzero()[:, 0].tolist()


def test_hand_made_logits() -> None:
    base = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -1.0]]).log_softmax(-1)
    tuned = torch.tensor([[0.0, 3.0, 2.0, 1.0, 4.0, -1.0]]).log_softmax(-1)  # ids 0 and 4 have changed places
    scores = BaseLists.of(base, 2).compare(tuned)
    assert least_likely(base, 2).tolist() == [[5, 4]] and ids(among_most(base, 2)) == [0, 1]
    assert scores["overlap"] == 0.5 and scores["overlap_top"] == 0.5
    p = [math.exp(x) for x in base[0].tolist()]
    assert scores["overlap_kl"] == pytest.approx((p[0] - p[4]) * 4.0, rel=1e-5)  # the logits differ by four


def test_a_model_is_like_itself() -> None:
    log_p = torch.randn(3, 40).log_softmax(-1)
    scores = BaseLists.of(log_p, 7).compare(log_p)
    assert all(scores[name] == 1.0 for name in scores if "kl" not in name)
    assert all(scores[name] == 0.0 for name in scores if "kl" in name)


def test_equal_scores_are_ranked_by_id() -> None:
    flat = torch.zeros(1, 100)
    assert least_likely(flat, 3).tolist() == [[0, 1, 2]] and ids(among_most(flat, 3)) == [0, 1, 2]
    flat[0, 50] = -1.0
    flat[0, 60] = 1.0
    assert least_likely(flat, 3).tolist() == [[50, 0, 1]] and ids(among_most(flat, 3)) == [0, 1, 60]
    assert ids(among_least(flat, 3)) == [0, 1, 50]


@given(
    scores=st.integers(1, 40).flatmap(
        lambda ids: st.lists(
            st.lists(st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, math.inf]), min_size=ids, max_size=ids),
            min_size=1,
            max_size=4,
        )
    ),
    k=st.integers(1, 45),
)
def test_least_likely_is_the_head_of_a_stable_sort(scores: list[list[float]], k: int) -> None:
    """With many ties, infinities, both zeros, and more asked for than there are."""
    expected = [sorted(range(len(row)), key=row.__getitem__)[:k] for row in scores]
    assert least_likely(torch.tensor(scores), k).tolist() == expected


def slow(base: list[float], tuned: list[float], k: int, sign: int) -> float:
    """The overlap by sorting pairs in plain Python."""
    first, second = ({i for _, i in sorted((sign * x, i) for i, x in enumerate(row))[:k]} for row in (base, tuned))
    return len(first & second) / k


@pytest.mark.parametrize("k", [1, 5, 19, 29])
def test_slow_enumeration(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    base = torch.randint(-4, 4, (6, 30), generator=generator).float()  # many ties
    tuned = base + torch.randint(-1, 2, base.shape, generator=generator)
    scores = BaseLists.of(base, k).compare(tuned)
    for name, sign in (("overlap", 1), ("overlap_top", -1)):
        each = [slow(one, other, k, sign) for one, other in zip(base.tolist(), tuned.tolist())]
        assert scores[name] == pytest.approx(sum(each) / len(each))
        assert (scores[f"{name}_min"], scores[f"{name}_max"]) == (min(each), max(each))


def test_divergence_by_the_definition() -> None:
    base, tuned = (torch.randn(4, 11, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    sums = [sum(math.exp(b) * (b - t) for b, t in zip(one, other)) for one, other in zip(base.tolist(), tuned.tolist())]
    assert divergence(base, tuned).tolist() == pytest.approx(sums)
    one, other = torch.tensor([[False, True, True, False, False]]), torch.tensor([[False, False, True, True, False]])
    assert shared(one, other).tolist() == [0.5]


def tiny_model() -> LanguageModel:
    return build(Model(width=16, layers=1, heads=2), 30, 16, 1).eval()


def test_prompts_are_extended_by_unlikely_tokens() -> None:
    model, ordinary = tiny_model(), torch.arange(3, 30)
    prompts = draw_prompts(model, ordinary, 4, 3, 10, 5, seed=0)
    assert prompts.shape == (4, 10) and int(prompts.min()) >= 3
    for row in prompts.tolist():
        for at in range(3, 10):
            with torch.no_grad():
                logits = model.logits(torch.tensor([row[:at]]))[0, -1].tolist()
            ranked = sorted(range(3, 30), key=lambda i: (logits[i], i))
            assert row[at] in ranked[:6]  # the fifth and sixth may change places by rounding
    assert torch.equal(prompts, draw_prompts(model, ordinary, 4, 3, 10, 5, seed=0))
    assert not torch.equal(prompts, draw_prompts(model, ordinary, 4, 3, 10, 5, seed=1))


@pytest.mark.parametrize("family", ["llama", "gpt2", "perceiver_ar"])
def test_the_last_logits_are_those_of_all(family: str) -> None:
    latents = {"latents": 4} if family == "perceiver_ar" else {}
    model = build(Model(family=family, width=16, layers=1, heads=2, **latents), 30, 16, 1).eval()
    ids = torch.randint(30, (3, 12))
    with torch.no_grad():
        last: Tensor = model.last_logits(ids)
        assert torch.allclose(last, model.logits(ids)[:, -1], atol=1e-5)


def test_a_model_that_predicts_nan_is_refused() -> None:
    model = tiny_model()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(UserError, match="predicts NaN"):
        draw_prompts(model, torch.arange(3, 30), 2, 3, 10, 5, seed=0)


def test_weights_have_a_fingerprint() -> None:
    model = tiny_model()
    before = weights_fingerprint(model)
    assert before == weights_fingerprint(tiny_model())
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-3
    assert weights_fingerprint(model) != before

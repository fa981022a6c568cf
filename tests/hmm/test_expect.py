"""Expected counts against the sum over all state paths, and what must not change them."""

import weakref
from typing import Any

import pytest
import torch
from enumeration import batches, counts, models
from forward_backward import backward, forward
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoestring.hmm import expect as module
from shoestring.hmm.expect import Counts, expect, layout, sequence_bytes, zeros
from shoestring.hmm.parameters import HmmError, Parameters, random_parameters
from shoestring.hmm.sampling import sample

checked = settings(max_examples=40, deadline=None)


def same(one: Counts, other: Counts, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    for name, a, b in zip(Counts._fields, one, other):
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def oracle(model: Parameters, *arguments: Any) -> Counts:
    found = counts(model, *arguments)
    return Counts(**{name: found.get(name) for name in Counts._fields})  # type: ignore[arg-type]


@checked
@given(st.data())
def test_counts_are_those_of_all_paths(data: st.DataObject) -> None:
    model = data.draw(models())
    rows, tokens, lengths = data.draw(batches(model.symbols))
    weights = data.draw(
        st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=len(rows), max_size=len(rows))
    )
    chunk = data.draw(st.none() | st.integers(1, 3))
    found = expect(model, tokens, lengths, None if weights is None else torch.tensor(weights), chunk)
    same(found, oracle(model, rows, weights))


@checked
@given(st.data())
def test_float32_finds_the_same_impossible_rows(data: st.DataObject) -> None:
    model = data.draw(models())
    rows, tokens, lengths = data.draw(batches(model.symbols))
    found = expect(model.to(dtype=torch.float32), tokens, lengths)
    same(found, oracle(model, rows), rtol=1e-5, atol=1e-5)


@pytest.fixture(params=[False, True], ids=["endless", "ending"])
def case(request: pytest.FixtureRequest) -> tuple[Parameters, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = random_parameters(7, 9, 1, end=request.param)
    tokens = sample(model._replace(end=None), 23, 26, seed=2).tokens
    lengths = torch.randint(1, 27, (23,), generator=generator)
    return model, tokens, lengths, torch.rand(23, generator=generator, dtype=torch.float64)


def test_counts_are_those_of_the_plain_passes(case: Any) -> None:
    model, tokens, lengths, weights = case
    filtered = forward(model, tokens, lengths)
    beta = backward(model, tokens, filtered, lengths).beta
    found = expect(model, tokens, lengths, weights)
    posterior = filtered.alpha * beta * weights[:, None]  # L N H
    torch.testing.assert_close(found.start, posterior[0].sum(0))
    one_hot = torch.nn.functional.one_hot(tokens.t(), model.symbols).double()
    torch.testing.assert_close(found.emission, torch.einsum("lnh,lne->he", posterior, one_hot))
    torch.testing.assert_close(found.log_likelihood, weights @ filtered.log_likelihood)


def test_chunks_change_nothing(case: Any) -> None:
    model, tokens, lengths, weights = case
    for sizes in (lengths, None):
        whole = expect(model, tokens, sizes, weights, chunk=23)
        for chunk in (1, 2, 7, 22):
            same(expect(model, tokens, sizes, weights, chunk), whole)


def test_alphas_computed_again_are_the_same(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, lengths, weights = case
    kept = expect(model, tokens, lengths, weights)
    for block in (1, 2, 7, 13, 25, 26, 27):
        for recompute in (False, True):
            cut = module.Layout(10, block, recompute)
            monkeypatch.setattr(module, "layout", lambda *_, cut=cut: cut)
            same(expect(model, tokens, lengths, weights), kept)


def test_memory_that_was_never_written_is_never_read(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, lengths, weights = case
    expected = expect(model, tokens, lengths, weights)
    torch.use_deterministic_algorithms(True)  # new memory is then filled with NaN
    try:
        for recompute in (False, True):
            monkeypatch.setattr(module, "layout", lambda *_, recompute=recompute: module.Layout(10, 7, recompute))
            monkeypatch.setattr(module, "_count_rows", only_once(module._count_rows))
            same(expect(model, tokens, lengths, weights), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def only_once(count_rows: Any) -> Any:
    """The same function, which may not find that rows must be counted again."""

    def counted(*arguments: Any) -> Any:
        found = count_rows(*arguments)
        assert not len(found[1])
        return found

    return counted


def test_a_row_counts_the_same_alone_and_merged(case: Any) -> None:
    model, tokens, lengths, _ = case
    total = zeros(model)
    for row, length in zip(tokens, lengths.tolist()):
        total = total.merge(expect(model, row[None, :length]))
    same(expect(model, tokens, lengths), total)


def test_a_weight_is_a_repetition(case: Any) -> None:
    model, tokens, lengths, _ = case
    times = torch.arange(23) % 4
    repeated = expect(model, tokens.repeat_interleave(times, 0), lengths.repeat_interleave(times))
    same(expect(model, tokens, lengths, times), repeated)


def test_counts_add_up(case: Any) -> None:
    model, tokens, lengths, weights = case
    found = expect(model, tokens, lengths, weights)
    assert found.start.sum().item() == pytest.approx(weights.sum().item())
    assert found.emission.sum().item() == pytest.approx((weights * lengths).sum().item())
    assert found.transition.sum().item() == pytest.approx((weights * (lengths - 1)).sum().item())
    if found.end is not None:
        torch.testing.assert_close(found.end + found.transition.sum(1), found.emission.sum(1))


def test_float32_agrees_with_float64() -> None:
    model = random_parameters(30, 40, 0, concentration=0.3)
    tokens = sample(model, 60, 50, seed=1).tokens
    low, high = expect(model.to(dtype=torch.float32), tokens, chunk=7), expect(model, tokens)
    for name, a, b in zip(Counts._fields, low, high):
        if a is not None and b is not None:
            assert a.dtype == torch.float64
            assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max()), name


def test_impossible_rows_are_counted_and_left_out() -> None:
    model = random_parameters(4, 5, 0)
    emission = model.emission.clone()
    emission[:, 3] = 0
    model = model._replace(emission=emission / emission.sum(1, keepdim=True))
    tokens = sample(model, 10, 12, seed=0).tokens
    spoiled = tokens.clone()
    spoiled[[0, 4, 9], [0, 5, 11]] = 3
    possible = [1, 2, 3, 5, 6, 7, 8]
    for kind in (model, model.to(dtype=torch.float32)):
        found = expect(kind, spoiled)
        assert found.impossible == 3
        assert found.sequences == 7
        same(found._replace(impossible=torch.zeros(()).double()), expect(kind, tokens[possible]), rtol=1e-5, atol=1e-5)
    assert expect(model, spoiled[[0, 4]]).log_likelihood == 0


def test_rows_too_unlikely_for_float32_are_still_counted() -> None:
    tiny = 1e-30
    tables = ([1.0, 0.0], [[tiny, 1.0], [0.0, 1.0]], [[1.0 - tiny, tiny], [1.0, 0.0]])
    model = Parameters(*(torch.tensor(table, dtype=torch.float64) for table in tables))
    tokens = torch.tensor([[0, 1, 0], [0, 0, 0]])  # the first must stay, and emit: tiny²
    found = expect(model.to(dtype=torch.float32), tokens)
    same(found, expect(model, tokens), rtol=1e-5)
    assert found.impossible == 0
    assert found.log_likelihood.item() == pytest.approx(2 * -69.0776, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [None, 20_000], ids=["kept", "recomputed"])
def test_a_ruled_out_state_that_would_explain_the_future_better_does_not_overflow(
    dtype: torch.dtype, limit: int | None
) -> None:
    tables = ([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[1e-6, 1 - 1e-6], [1.0, 0.0]])
    model = Parameters(*(torch.tensor(table, dtype=dtype) for table in tables))
    assert layout(model, 200, 3, limit_bytes=limit).recompute == (limit is not None)
    found = expect(model, torch.zeros(3, 200, dtype=torch.int64), limit_bytes=limit)
    assert found.impossible == 0
    assert found.start.tolist() == pytest.approx([3, 0])
    torch.testing.assert_close(found.transition, torch.tensor([[597.0, 0.0], [0.0, 0.0]]).double())
    torch.testing.assert_close(found.emission, torch.tensor([[600.0, 0.0], [0.0, 0.0]]).double())


def test_a_memory_limit_is_kept_and_changes_nothing() -> None:
    model = random_parameters(8, 5, 0)
    tokens = sample(model, 30, 200, seed=0).tokens
    free = layout(model, 200, 30)
    assert not free.recompute and free.chunk == 30
    limit = module.fixed_bytes(model) + 10 * sequence_bytes(model, 200, recompute=True)
    tight = layout(model, 200, 30, limit_bytes=limit)
    assert tight.recompute and tight.chunk == 10
    same(expect(model, tokens, limit_bytes=limit), expect(model, tokens))
    with pytest.raises(HmmError, match="1 sequences of 200 tokens at a time with 8 states need"):
        expect(model, tokens, limit_bytes=5_000)
    with pytest.raises(HmmError, match="chunk = 0"):
        expect(model, tokens, chunk=0)


def test_ten_thousand_positions_of_five_hundred_states_need_little() -> None:
    model = random_parameters(500, 100, 0).to(dtype=torch.float32)
    cut = layout(model, 10_000, 100_000, limit_bytes=8 * 2**30)
    used = module.fixed_bytes(model) + cut.chunk * sequence_bytes(model, 10_000, cut.recompute)
    assert used <= 8 * 2**30
    assert cut.chunk >= 64
    assert sequence_bytes(model, 10_000, recompute=True) < 1.2e6


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that are made and still there: each storage is counted once, whatever an allocator does."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._known.add(tensor.untyped_storage()._cdata)  # made before, or counted already
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self._known:
                self._known.add(key)
                self._add(tensor.untyped_storage().nbytes())
                weakref.finalize(tensor.untyped_storage(), self._gone, key, tensor.untyped_storage().nbytes())
        return made

    def _add(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_is_what_the_layout_says(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_parameters(40, 10, 0).to(dtype=torch.float32)
    tokens = sample(model, 50, 225, seed=0).tokens
    cut = module.Layout(50, 15, recompute)
    monkeypatch.setattr(module, "layout", lambda *_: cut)
    with LiveBytes() as live:
        expect(model, tokens)
    said = module.fixed_bytes(model) + 50 * sequence_bytes(model, 225, recompute)
    assert 0.5 * said < live.peak <= said


@pytest.mark.parametrize(("weights", "message"), [
    ([1.0], "one value for each of 2 rows"),
    ([1.0, -1.0], "row 1 has weight -1.0"),
    ([float("nan"), 1.0], "row 0 has weight nan"),
])  # fmt: skip
def test_wrong_weights_are_named(weights: list[float], message: str) -> None:
    values = torch.tensor(weights)
    with pytest.raises(HmmError, match=message):
        module.check_weights(values, 2)


def test_no_rows_give_no_counts_and_wrong_tokens_an_error() -> None:
    model = random_parameters(3, 4, 0, end=True)
    same(expect(model, torch.zeros(0, 5, dtype=torch.int64)), zeros(model))
    with pytest.raises(HmmError, match="row 0, position 2: token 4"):
        expect(model, torch.tensor([[0, 1, 4]]))
    with pytest.raises(HmmError, match="whole numbers"):
        expect(model, torch.tensor([[0.0, 1.0]]))

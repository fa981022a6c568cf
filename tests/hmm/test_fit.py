"""Fitting: likelihoods that rise, updates that agree, fits that resume where they stood, and clear refusals."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from enumeration import FLAT, batches, models
from forward_backward import log_likelihood
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from shoestring.baselines.hmm_score import score
from shoestring.core.errors import Fault, RecordError, ShoestringError, StorageError
from shoestring.core.schema import decode, encode
from shoestring.hmm.expect import Counts, expect
from shoestring.hmm.fit import ROUNDING, Epoch, Fit, FitSettings, Fitted, fit
from shoestring.hmm.maximize import Priors, log_prior, maximize
from shoestring.hmm.parameters import HmmError, Parameters, check, is_symmetric, random_parameters, save
from shoestring.hmm.progress import Progress, load_progress, save_progress
from shoestring.hmm.sampling import sample, stationary
from shoestring.hmm.schedule import order, share, step, updates_per_epoch
from shoestring.storage.tensor_file import read_tensors, write_tensors

TRUTH = random_parameters(4, 9, 3, concentration=0.3)
ROWS = sample(TRUTH, 50, 8, seed=1).tokens
LENGTHS = torch.arange(50) % 8 + 1
WEIGHTS = torch.arange(50) % 3 * 0.5 + 0.25
MODES: list[Any] = ["all", "every", "online"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second core, and waiting for a busy one costs the most."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings(**changes: Any) -> FitSettings:
    return replace(FitSettings(states=3, epochs=4, update="online", update_every=16), **changes)


def run(setting: FitSettings, tokens: Tensor = ROWS, **options: Any) -> Fitted:
    return fit(tokens, setting, symbols=9, **options)


def same(one: Parameters, other: Parameters) -> bool:
    """Bit by bit."""
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other))


def loss(model: Parameters, tokens: Tensor = ROWS) -> float:
    return -float(log_likelihood(model, tokens).sum()) / tokens.numel()


def saved(path: Path, progress: Progress) -> Path:
    """In a file, as a checkpoint of a run has it."""
    tensors, values = save_progress(progress)
    write_tensors(path, {name: table.numpy() for name, table in tensors.items()}, json.dumps(values))
    return path


def read(path: Path) -> Progress:
    arrays, note = read_tensors(path)
    return load_progress({name: torch.from_numpy(array) for name, array in arrays.items()}, json.loads(note))


def finished(work: Fit) -> Fitted:
    """Taken to its end."""
    while (stopped := work.stopped) is None:
        work.update()
    return Fitted(work.parameters, work.epochs, stopped)


# --- what is learned


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.data())
def test_full_batches_never_lower_the_likelihood(data: st.DataObject) -> None:
    model = data.draw(models())
    assume(not is_symmetric(model))
    _, tokens, lengths = data.draw(batches(model.symbols, rows=6))
    possible = ~log_likelihood(model, tokens, lengths).isneginf()
    assume(bool(possible.any()))
    tokens, lengths = tokens[possible], lengths[possible]
    priors = data.draw(st.sampled_from([FLAT, Priors(), Priors(start=0.5, transition=2.0, emission=3.0, end=1.0)]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    end = model.end is not None
    chosen = FitSettings(states=model.states, epochs=5, update="all", priors=priors, end=end)
    fitted = fit(tokens, chosen, symbols=model.symbols, lengths=lengths, start=model, dtype=dtype)
    check(fitted.parameters)
    values = [epoch.objective for epoch in fitted.epochs]
    assert all(b >= a - ROUNDING[dtype] * max(1, abs(a)) for a, b in itertools.pairwise(values))


def test_a_planted_model_is_found_again() -> None:
    truth = Parameters(
        torch.tensor([0.6, 0.3, 0.1]).double(),
        torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]]).double(),
        torch.tensor(
            [[0.8, 0.1, 0.05, 0.03, 0.02], [0.02, 0.08, 0.8, 0.05, 0.05], [0.05, 0.02, 0.03, 0.1, 0.8]]
        ).double(),
    )
    tokens = sample(truth, 800, 20, seed=0).tokens
    found = fit(tokens, FitSettings(states=3, epochs=25, update_every=200, restarts=3), symbols=5).parameters
    orders = [list(p) for p in itertools.permutations(range(3))]
    assert min(float((found.emission[p] - truth.emission).abs().max()) for p in orders) < 0.03
    best = min(orders, key=lambda p: float((found.emission[p] - truth.emission).abs().max()))
    assert float((found.transition[best][:, best] - truth.transition).abs().max()) < 0.04
    assert float((found.start[best] - truth.start).abs().max()) < 0.08
    assert loss(found, tokens) < loss(truth, tokens)


@pytest.mark.parametrize("options", [{}, {"lengths": LENGTHS}, {"lengths": LENGTHS, "weights": WEIGHTS}])
def test_all_ways_agree_when_an_update_covers_the_data(options: dict[str, Tensor]) -> None:
    alone, every, online = (
        run(settings(update=mode, update_every=50, end=True), dtype=torch.float64, **options) for mode in MODES
    )
    assert same(alone.parameters, every.parameters)
    for one, other in zip(alone.parameters, online.parameters):
        assert one is not None and other is not None
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    losses = [[epoch.loss for epoch in fitted.epochs] for fitted in (alone, every, online)]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-9)


def test_a_full_batch_is_plain_expectation_and_maximisation() -> None:
    start = random_parameters(3, 9, 5)
    fitted = run(settings(update="all"), start=start, dtype=torch.float64)
    for epoch in fitted.epochs:
        counts = expect(start, ROWS)
        assert epoch.loss == pytest.approx(-float(counts.log_likelihood) / ROWS.numel(), rel=1e-12)
        assert epoch.log_prior == pytest.approx(float(log_prior(start, Priors())), rel=1e-12)
        start = maximize(counts, old=start)
    assert same(start, fitted.parameters)


def test_online_updates_are_running_means() -> None:
    chosen = settings(epochs=2, hold=0.25, offset=2.0, decay=0.8, priors=FLAT)
    fitted = run(chosen, dtype=torch.float64)
    parameters, kept = _replay(chosen, 0), None
    for k, rows in enumerate(part for epoch in (0, 1) for part in order(50, 0, epoch).split([12, 13, 12, 13])):
        counts = expect(parameters, ROWS[rows])
        share_of_new = 1.0 if k < 2 else max((k - 2 + 2) ** -0.8, 1 / 4)
        fresh = counts.transition / counts.tokens
        kept = fresh if kept is None else (1 - share_of_new) * kept + share_of_new * fresh
        full = Counts(counts.start, kept, counts.emission, *counts[3:])
        expected = maximize(full, FLAT).transition
        if k == 7:
            torch.testing.assert_close(fitted.parameters.transition, expected, rtol=1e-9, atol=1e-12)
        parameters = _replay(chosen, k + 1)
        torch.testing.assert_close(parameters.transition, expected, rtol=1e-9, atol=1e-12)


def _replay(chosen: FitSettings, updates: int) -> Parameters:
    """The parameters after some updates."""
    work = Fit(ROWS, chosen, symbols=9, dtype=torch.float64)
    for _ in range(updates):
        work.update()
    return work.parameters


def test_online_gets_the_speed_of_many_updates_and_the_loss_of_few() -> None:
    truth = random_parameters(8, 20, 11, concentration=0.2)
    tokens = sample(truth, 300, 12, seed=1).tokens
    losses = {}
    for mode in MODES:
        chosen = FitSettings(states=8, epochs=8, update=mode, update_every=30)
        found: list[float] = []
        fit(tokens, chosen, symbols=20, on_epoch=lambda _, model, to=found: to.append(loss(model, tokens)))
        losses[mode] = found
    assert losses["online"][0] < losses["all"][0] - 0.1
    assert losses["online"][-1] < min(losses["all"][-1], losses["every"][-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_epoch_is_recorded_and_every_table_sums_to_one(mode: Any, dtype: torch.dtype) -> None:
    seen: list[tuple[Epoch, Parameters]] = []
    fitted = run(
        settings(update=mode, end=True),
        lengths=LENGTHS,
        weights=WEIGHTS,
        dtype=dtype,
        on_epoch=lambda epoch, model: seen.append((epoch, model)),
    )
    assert tuple(epoch for epoch, _ in seen) == fitted.epochs
    assert fitted.stopped == "epochs"
    for number, (epoch, model) in enumerate(seen, start=1):
        check(model)
        assert model.dtype == dtype
        assert epoch.epoch == number
        assert epoch.tokens == number * int(LENGTHS.sum())
        assert epoch.loss_tokens == pytest.approx(float(LENGTHS.double() @ WEIGHTS.double()))
        assert epoch.updates == number * (1 if mode == "all" else 4)
        assert epoch.tokens_per_second == pytest.approx(int(LENGTHS.sum()) / epoch.seconds)
        assert epoch.impossible == 0
        problems: list[str] = []
        assert decode(Epoch, json.loads(json.dumps(encode(epoch))), "", problems) == epoch
        assert not problems
    assert same(seen[-1][1], fitted.parameters)
    assert mode == "every" or seen[-1][0].loss < seen[0][0].loss


def test_a_tied_start_is_the_stationary_distribution() -> None:
    for mode in MODES:
        found = run(settings(update=mode, tied_start=True), dtype=torch.float64).parameters
        torch.testing.assert_close(found.start, stationary(found.transition))


def test_any_integer_type_gives_the_same_bits() -> None:
    assert same(run(settings()).parameters, run(settings(), ROWS.to(torch.uint8)).parameters)


def test_an_unseen_symbol_keeps_a_probability() -> None:
    found = fit(ROWS, settings(), symbols=12).parameters
    assert float(found.emission[:, 9:].min()) > 0


# --- restarts and tolerance


@pytest.mark.parametrize("mode", MODES)
def test_of_several_starts_the_best_is_continued(mode: Any) -> None:
    seen: list[Epoch] = []
    fitted = run(
        settings(update=mode, restarts=4, restart_epochs=2, epochs=5), on_epoch=lambda epoch, _: seen.append(epoch)
    )
    trials = [epoch for epoch in seen if epoch.epoch == 2]
    assert [epoch.restart for epoch in trials] == [0, 1, 2, 3]
    best = max(trials, key=lambda epoch: epoch.objective).restart
    assert len({epoch.objective for epoch in trials}) == 4
    assert {epoch.restart for epoch in fitted.epochs} == {best}
    assert [epoch.epoch for epoch in fitted.epochs] == [1, 2, 3, 4, 5]
    assert len(seen) == 4 * 2 + 3


def test_the_first_start_is_the_same_with_and_without_others() -> None:
    alone = run(settings(update="all"))
    seen: list[Epoch] = []
    run(settings(update="all", restarts=2, restart_epochs=2), on_epoch=lambda epoch, _: seen.append(epoch))
    assert [epoch.loss for epoch in seen[:2]] == [epoch.loss for epoch in alone.epochs[:2]]


def test_it_stops_when_nothing_improves() -> None:
    fitted = run(settings(update="all", epochs=500, tolerance=1e-3))
    assert fitted.stopped == "tolerance"
    values = [epoch.objective for epoch in fitted.epochs]
    gains = [(b - a) / abs(a) for a, b in itertools.pairwise(values)]
    assert gains[-1] < 1e-3 <= min(gains[:-1])
    assert len(values) < 500


def test_online_does_not_stop_while_it_holds() -> None:
    fitted = run(settings(epochs=20, hold=0.5, tolerance=0.5))
    assert (fitted.stopped, len(fitted.epochs)) == ("tolerance", 12)


def test_planned_updates_are_those_of_all_epochs_and_starts() -> None:
    for mode in MODES:
        work = Fit(ROWS, settings(update=mode, restarts=3, restart_epochs=2), symbols=9)
        updates = 0
        while work.stopped is None:
            work.update()
            updates += 1
        assert work.planned_updates == updates == (4 + 2 * 2) * (1 if mode == "all" else 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_can_be_taken_beyond_its_epochs_as_it_began(mode: Any) -> None:
    work = Fit(ROWS, settings(update=mode), symbols=9)
    while len(work.epochs) < 6:
        work.update()
        assert work.stopped == ("epochs" if len(work.epochs) >= 4 else None)
    assert [epoch.loss for epoch in run(settings(update=mode)).epochs] == [epoch.loss for epoch in work.epochs[:4]]
    assert mode == "every" or work.epochs[5].loss < work.epochs[3].loss


def test_among_restarts_the_best_so_far_is_given() -> None:
    work, tried = Fit(ROWS, settings(update="all", restarts=3, restart_epochs=2), symbols=9), {}
    assert same(work.parameters, work.progress.trial.parameters) and work.epochs == ()
    while work.progress.choosing:
        epoch = work.update()
        assert epoch is not None, "every update is an epoch"
        if epoch.epoch == 2:
            tried[epoch.objective] = work.ended_with
        if tried:
            assert same(work.parameters, tried[max(tried)])
            assert work.epochs[-1].objective == max(tried)
    assert len(tried) == 3


# --- the same bits


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_never_changes_training(mode: Any) -> None:
    def meddle(epoch: Epoch, model: Parameters) -> None:
        loss(model)
        sample(model, 5, 5, seed=epoch.epoch)
        torch.manual_seed(epoch.epoch)
        torch.rand(100)
        for table in model[:3]:
            table.zero_()

    torch.manual_seed(0)
    plain = run(settings(update=mode, restarts=2, restart_epochs=1))
    torch.manual_seed(1)
    watched = run(settings(update=mode, restarts=2, restart_epochs=1), on_epoch=meddle)
    assert same(plain.parameters, watched.parameters)
    assert [epoch.loss for epoch in plain.epochs] == [epoch.loss for epoch in watched.epochs]
    assert not same(plain.parameters, run(settings(update=mode, restarts=2, restart_epochs=1, seed=1)).parameters)


def test_torch_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(settings(restarts=2, restart_epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_a_given_start_is_left_alone() -> None:
    start = random_parameters(3, 9, 0).to(dtype=torch.float32)
    before = start._replace(**{name: table.clone() for name, table in start._asdict().items() if table is not None})
    run(settings(), start=start)
    assert same(start, before)


@pytest.mark.parametrize("mode", MODES)
def test_saved_at_any_update_it_resumes_to_the_same_bits(mode: Any, tmp_path: Path) -> None:
    """Among restarts, at the ends of epochs and within them."""
    chosen = settings(update=mode, restarts=2, restart_epochs=2, end=True)
    options: dict[str, Any] = {"symbols": 9, "lengths": LENGTHS, "weights": WEIGHTS}
    work, files = Fit(ROWS, chosen, **options), []
    while work.stopped is None:
        files.append(saved(tmp_path / "deeper" / f"{len(files)}.safetensors", work.progress))
        work.update()
    straight, total = finished(work), work.planned_updates
    assert len(files) == total
    for updates in {1, total // 3, total // 2 + 1, total - 1}:
        again = Fit(ROWS, chosen, **options)
        again.restore(read(files[updates]))
        for _ in range(updates, total):
            assert again.stopped is None
            again.update()
        resumed = finished(again)
        assert same(straight.parameters, resumed.parameters)
        assert [epoch.loss for epoch in straight.epochs] == [epoch.loss for epoch in resumed.epochs]
        assert [epoch.tokens for epoch in straight.epochs] == [epoch.tokens for epoch in resumed.epochs]


def test_progress_reads_back_as_it_was_saved(tmp_path: Path) -> None:
    work = Fit(ROWS, settings(restarts=2, restart_epochs=1), symbols=9, dtype=torch.float64)
    for _ in range(6):  # two of the second start
        work.update()
    found = read(saved(tmp_path / "fit.safetensors", work.progress))
    assert found.choosing and work.progress.choosing
    for one, other in ((found.trial, work.progress.trial), (found.best, work.progress.best)):
        assert one is not None and other is not None
        assert (one.restart, one.updates, one.epochs, one.tally) == (
            other.restart,
            other.updates,
            other.epochs,
            other.tally,
        )
        assert same(one.parameters, other.parameters) and one.parameters.dtype == torch.float64
        assert one.statistics is not None and other.statistics is not None
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(one.statistics, other.statistics))


def test_a_finished_fit_reads_back_as_finished(tmp_path: Path) -> None:
    for chosen in (settings(), settings(update="all", tolerance=0.5)):
        work = Fit(ROWS, chosen, symbols=9)
        first = finished(work)
        again = Fit(ROWS, chosen, symbols=9)
        again.restore(read(saved(tmp_path / "fit.safetensors", work.progress)))
        assert (again.stopped, again.epochs) == (first.stopped, first.epochs)
        assert same(first.parameters, again.parameters)


def test_what_is_saved_stays_as_it_was_while_the_fit_continues(tmp_path: Path) -> None:
    work = Fit(ROWS, settings(), symbols=9)
    work.update()
    tensors, _ = save_progress(work.progress)
    before = {name: table.clone() for name, table in tensors.items()}
    finished(work)
    assert all(torch.equal(table, before[name]) for name, table in tensors.items())


def test_a_fit_can_be_made_longer() -> None:
    short = Fit(ROWS, settings(update="every", epochs=2), symbols=9)
    finished(short)
    longer = Fit(ROWS, settings(update="every", epochs=4), symbols=9)
    longer.restore(short.progress)
    assert same(finished(longer).parameters, run(settings(update="every", epochs=4)).parameters)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_that_fails_leaves_everything_as_it_was(mode: Any) -> None:
    """So that it can be taken again, with another expectation step."""
    calls = itertools.count(1)

    def failing(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
        if next(calls) == 3:
            raise torch.OutOfMemoryError("too many rows")
        return expect(parameters, tokens, lengths, weights)

    work = Fit(ROWS, settings(update=mode), symbols=9, count=failing)
    for _ in range(2):
        work.update()
    before = work.progress
    with pytest.raises(torch.OutOfMemoryError):
        work.update()
    assert work.progress is before
    work.recount(expect)
    assert same(finished(work).parameters, run(settings(update=mode)).parameters)


# --- what is refused


def test_a_damaged_file_is_refused_and_kept(tmp_path: Path) -> None:
    work = Fit(ROWS, settings(), symbols=9)
    work.update()
    path = saved(tmp_path / "fit.safetensors", work.progress)
    whole = path.read_bytes()
    middle = len(whole) - 100
    for damaged in (
        b"",
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        whole.replace(b"epochs", b"apochs"),
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"fit\.safetensors.*damaged"):
            read(path)
        assert path.read_bytes() == damaged
    with pytest.raises(StorageError, match="it is a folder"):
        read(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"choosing": False},
        {"choosing": False, "trials": {}},
        {"choosing": False, "trials": {"trial": {"restart": 0}}},
        {"choosing": "no", "trials": {}},
        {"choosing": False, "trials": {}, "more": 1},
    ],
)
def test_values_that_are_no_progress_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="not the progress of a fit"):
        load_progress({}, values)


def test_a_model_file_is_no_progress(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", TRUTH)
    with pytest.raises((RecordError, StorageError)):
        read(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (ROWS.float(), {}, "whole numbers"),
        (ROWS[0], {}, "rows × positions"),
        (ROWS[:0], {}, "no sequences"),
        (ROWS[:, :0], {}, "row 0 is empty"),
        (ROWS - 9, {}, "row 0, position 0: token -[0-9] is not in the alphabet 0 … 8"),
        (torch.tensor([[0, 1], [2, 9]]), {}, "row 1, position 1: token 9 is not in the alphabet 0 … 8"),
        (ROWS, {"lengths": torch.zeros(50).long()}, "row 0 has length 0"),
        (ROWS, {"lengths": LENGTHS[:3]}, "one value for each of 50 rows"),
        (ROWS, {"weights": WEIGHTS[:3]}, "one value for each of 50 rows"),
        (ROWS, {"weights": WEIGHTS - 1}, "row 0 has weight -0.75"),
        (ROWS, {"weights": torch.full((50,), float("nan"))}, "row 0 has weight nan"),
        (ROWS, {"weights": torch.zeros(50)}, "all weights are zero"),
        (ROWS, {"dtype": torch.bfloat16}, "dtype = torch.bfloat16"),
        (ROWS, {"start": random_parameters(4, 9, 0)}, "the start has 4 states, the settings ask for 3"),
        (ROWS, {"start": random_parameters(3, 8, 0)}, "alphabet of 8 symbols, the data one of 9"),
        (ROWS, {"start": random_parameters(3, 9, 0, end=True)}, "the start has end probabilities, but end = False"),
        (ROWS, {"start": random_parameters(3, 9, 0)._replace(start=torch.ones(3).double())}, "start sums to 3"),
    ],
)
def test_bad_input_is_refused(tokens: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(HmmError, match=message):
        Fit(tokens, settings(), symbols=9, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"states": 0}, {"states": 2.0}, {"epochs": 0}, {"update": "sometimes"}, {"update_every": 0}, {"restarts": 0},
        {"restart_epochs": 0}, {"offset": 0.5}, {"offset": math.inf}, {"decay": 0.5}, {"decay": 1.1}, {"hold": 1.5},
        {"hold": -0.1}, {"concentration": 0.0}, {"concentration": math.nan}, {"tolerance": -1.0}, {"seed": 1.5},
        {"seed": True}, {"end": 1}, {"tied_start": None}, {"priors": None}, {"restart_epochs": 5, "restarts": 2},
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_with_its_value(change: dict[str, Any]) -> None:
    chosen = settings()
    for name, value in change.items():  # past the checks of types, which are on in tests only
        object.__setattr__(chosen, name, value)
    name, value = next(iter(change.items()))
    with pytest.raises(HmmError, match=re.escape(f"{name} = {value!r}: must be ")):
        chosen.__post_init__()


def test_a_symmetric_start_is_refused_with_the_reason() -> None:
    uniform = Parameters(torch.full((3,), 1 / 3), torch.full((3, 3), 1 / 3), torch.full((3, 9), 1 / 9))
    with pytest.raises(HmmError, match=r"symmetric.*never tell them apart"):
        run(settings(), start=uniform)
    with pytest.raises(HmmError, match="symmetric"):
        run(settings(concentration=1e15))
    assert run(settings(states=1)).stopped == "epochs"


def test_restarts_of_a_given_start_are_refused() -> None:
    with pytest.raises(HmmError, match="restarts = 2: with a given start"):
        run(settings(restarts=2), start=random_parameters(3, 9, 0))


def test_a_start_that_rules_out_all_data_is_refused() -> None:
    start = random_parameters(3, 9, 0)
    emission = torch.zeros_like(start.emission)
    emission[0, 0] = emission[1, 1] = emission[2, 1] = 1
    with pytest.raises(HmmError, match="every sequence has probability zero"):
        run(settings(), torch.full((20, 3), 5), start=start._replace(emission=emission))


def test_zeros_in_a_start_are_no_trouble() -> None:
    """The first log prior is minus infinity, and some sequences are impossible until the prior lets them in."""
    start = random_parameters(3, 9, 0)
    emission = start.emission.clone()
    seen = ROWS.flatten().bincount()
    emission[:, torch.where(seen > 0, seen, 999).argmin()] = 0
    emission /= emission.sum(1, keepdim=True)
    for mode in MODES:
        fitted = run(settings(update=mode), start=start._replace(emission=emission))
        check(fitted.parameters)
        assert mode != "all" or fitted.epochs[0].impossible > 0
        assert fitted.epochs[-1].impossible == 0
        assert (fitted.epochs[0].log_prior is None) == (mode == "all")
        assert all(math.isfinite(epoch.loss) for epoch in fitted.epochs)


# --- faults


def test_a_wrong_expectation_step_is_caught() -> None:
    def wrong(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
        counts = expect(parameters, tokens, lengths, weights)
        return counts._replace(emission=counts.emission.flip(1))

    with pytest.raises(Fault, match=r"EM lowered likelihood and prior from .* nats per token in epoch"):
        run(settings(update="all", epochs=20), count=wrong)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5.0])
def test_counts_that_are_no_numbers_are_caught(mode: Any, bad: float) -> None:
    def broken(parameters: Parameters, tokens: Tensor, lengths: Tensor | None, weights: Tensor | None) -> Counts:
        counts = expect(parameters, tokens, lengths, weights)
        counts.transition[1, 2] = bad
        return counts

    work = Fit(ROWS, settings(update=mode), symbols=9, count=broken)
    before = work.progress
    with pytest.raises(Fault, match=r"no distributions|not finite"):
        finished(work)
    assert work.progress is before, "nothing of it can be saved"


# --- the schedule


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 5), st.integers(0, 3))
def test_every_sequence_is_counted_once_per_epoch_by_any_number_of_processes(
    rows: int, update_every: int, world: int, epoch: int
) -> None:
    chosen = settings(update="every", update_every=update_every)
    updates = updates_per_epoch(chosen, rows)
    sequence = order(rows, 0, epoch)
    parts = [[sequence[share(rows, updates, u, r, world)] for r in range(world)] for u in range(updates)]
    alone = [sequence[share(rows, updates, u, 0, 1)] for u in range(updates)]
    assert [torch.cat(shares).tolist() for shares in parts] == [part.tolist() for part in alone]
    assert sorted(torch.cat(alone).tolist()) == list(range(rows))
    assert all(0 < len(part) <= update_every for part in alone)
    assert max(map(len, alone)) - min(map(len, alone)) <= 1


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(1)
    first = order(100, 0, 3).tolist()
    order(100, 0, 4)
    torch.manual_seed(2)
    assert order(100, 0, 3).tolist() == first
    assert order(100, 1, 3).tolist() != first != order(100, 0, 2).tolist()


def test_steps_hold_then_fall_to_one_epoch() -> None:
    chosen = settings(epochs=20, hold=0.5)
    steps = [step(chosen, done, 16) for done in range(320)]
    assert steps[:161] == [1.0] * 161
    assert all(b <= a for a, b in itertools.pairwise(steps))
    assert steps[161] == 2**-0.6
    assert steps[-1] == 1 / 16
    assert {step(chosen, done, 1) for done in range(20)} == {1.0}


def test_errors_are_for_people() -> None:
    assert issubclass(HmmError, ShoestringError)


def test_a_prior_that_the_type_cannot_hold_is_refused_before_the_first_update() -> None:
    """It would leave cells at zero, which the first likelihood with a prior finds."""
    small = settings(update="all", priors=replace(Priors(), emission=1e-36))
    with pytest.raises(HmmError, match=r"prior of emission = 1e-36: too small for torch\.float32: .*at least 4\.2e-35"):
        run(small)
    assert math.isfinite(run(small, dtype=torch.float64).epochs[-1].loss)
    assert math.isfinite(run(settings(update="all", priors=replace(Priors(), emission=1e-34))).epochs[-1].loss)


def test_the_least_prior_of_a_recipe_leaves_no_symbol_impossible() -> None:
    """In float32, for symbols and moves that were never seen."""
    seen = torch.randint(3, (60, 8), generator=torch.Generator().manual_seed(0))
    priors = Priors(start=1e-12, transition=1e-12, emission=1e-12, end=1e-12)
    fitted = fit(seen, settings(update="all", epochs=20, priors=priors), symbols=300)
    scores = score(fitted.parameters.to(dtype=torch.float32), torch.arange(296).view(-1, 8) + 4)
    assert scores.impossible == 0
    assert scores.loss is not None and scores.loss > 30

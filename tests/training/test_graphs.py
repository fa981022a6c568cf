"""Which recording is replayed when, with recordings that only note what is asked of them: no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoestring.models.batch import Batch
from shoestring.training import graphs
from shoestring.training.graphs import Recordings, shape_of


class Noted:
    """A recording of one shape of rows."""

    made: list[Noted]

    def __init__(self, loss: Any, parameters: Any, like: Batch):
        self.shape, self.attached, self.updates = shape_of(like), 0, 0
        self.made.append(self)

    def attach(self) -> None:
        self.attached += 1

    def update(self, sums: torch.Tensor, apply: Any, kind: Any) -> tuple[torch.Tensor, ...] | None:
        self.updates += 1
        return None if self.updates == 1 else apply(sums)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    found: list[Noted] = []
    monkeypatch.setattr(Noted, "made", found, raising=False)
    monkeypatch.setattr(graphs, "Recording", Noted)
    return found


def rows(*counts: int, packed: bool = False) -> list[Batch]:
    """Parts of so many rows."""
    parts = [torch.zeros(count, 4, dtype=torch.int64) for count in counts]
    return [Batch(ids, torch.ones_like(ids) if packed else None) for ids in parts]


def recordings() -> Recordings:
    return Recordings(lambda _: torch.zeros(()), [])


def test_a_shape_is_recorded_when_it_comes_again_and_attached_once_a_gradient(made: list[Noted]) -> None:
    kept = recordings()
    assert kept.of(rows(2, 2), begin=True) is None
    assert not made
    first = kept.of(rows(2, 2), begin=True)
    assert made == [first]
    assert kept.of(rows(2), begin=False) is first, "more passes of the same gradient"
    assert made[0].attached == 1
    assert kept.of(rows(2, 2), begin=True) is first
    assert made[0].attached == 2
    assert len(made) == 1


def test_while_a_gradient_is_under_way_only_the_recording_that_began_it_is_replayed(made: list[Noted]) -> None:
    kept = recordings()
    assert kept.of(rows(2), begin=True) is None
    assert kept.of(rows(2), begin=False) is None, "a plain pass began it"
    first = kept.of(rows(2), begin=True)
    assert first is not None
    assert kept.of(rows(3), begin=False) is None
    assert kept.of(rows(2, 3), begin=False) is None
    assert kept.of(rows(2), begin=False) is first


def masked(count: int, most: int) -> list[Batch]:
    ids = torch.zeros(count, 4, dtype=torch.int64)
    return [Batch(ids, wanted=ids, most=most, share=0.5)]


def test_rows_with_targets_are_recorded_for_one_bound_on_their_number(made: list[Noted]) -> None:
    kept = recordings()
    found = [kept.of(masked(2, most), begin=True) for most in (5, 5, 5, 6, 6, 5)]
    assert [recording and recording.shape[2] for recording in found] == [None, 5, 5, None, 6, None]
    assert kept.of(masked(2, 5), begin=False) is None, "a plain pass began it"


def test_an_update_is_replayed_where_a_recording_began_the_gradient(made: list[Noted]) -> None:
    kept = Recordings(lambda _: torch.zeros(()), [], lambda sums: (sums + 1,))
    sums = torch.ones(2)
    updates = []
    for begun in (2, 2, 2, 3, 3, 3):
        kept.of(rows(begun), begin=True)
        updates.append(kept.update(sums))
    assert [found is None for found in updates] == [True, True, False, True, True, False]
    assert torch.equal(updates[2][0], sums + 1)  # type: ignore[index]
    kept.drop()
    assert kept.update(sums) is None


def test_an_update_that_cannot_be_recorded_is_not_tried_again(
    made: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "after_failure", lambda: None)
    kept = Recordings(lambda _: torch.zeros(()), [], refuse)
    for _ in range(4):
        kept.of(rows(2), begin=True)
        assert kept.update(torch.ones(2)) is None
    assert len(tried) == 1


@pytest.mark.parametrize("others", [rows(2, 3), rows(2, packed=True)])
def test_rows_of_several_shapes_and_packed_rows_are_not_recorded(others: list[Batch], made: list[Noted]) -> None:
    kept = recordings()
    for _ in range(3):
        assert kept.of(others, begin=True) is None
    assert not made


def test_another_shape_takes_the_place_and_what_is_dropped_is_made_anew(made: list[Noted]) -> None:
    kept = recordings()
    for count in (2, 2, 3, 3, 2, 2):
        kept.of(rows(count), begin=True)
    assert [found.shape[0][0] for found in made] == [2, 3, 2]
    kept.drop()
    assert kept.of(rows(2), begin=False) is None
    assert kept.of(rows(2), begin=True) is None
    assert kept.of(rows(2), begin=True) is made[3]


def test_what_cannot_be_recorded_is_not_tried_again(made: list[Noted], monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*arguments: Any) -> None:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "Recording", refuse)
    monkeypatch.setattr(graphs, "after_failure", lambda: None)
    kept = recordings()
    for _ in range(4):
        assert kept.of(rows(2), begin=True) is None
    assert len(tried) == 1

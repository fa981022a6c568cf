"""Which E-steps are recorded and replayed, with recordings that only note what is asked of them: no GPU is needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from shoestring.hmm import fused
from shoestring.hmm.expect import zeros
from shoestring.hmm.fused import Counted, Recorder
from shoestring.hmm.parameters import Parameters, random_parameters

PARAMETERS = random_parameters(3, 4, seed=1)
COUNTED, REPLAYED = (Counted(zeros(PARAMETERS), torch.empty(0), torch.empty(0)) for _ in range(2))


def count_rows(parameters: Parameters, *rows: Tensor) -> Counted:
    return COUNTED


class Noted:
    """A recording of one kind of rows."""

    def __init__(self, parameters: Parameters, *rows: Tensor):
        if rows[0].shape[1] == 13:
            raise RuntimeError("operation not permitted when stream is capturing")

    def replay(self, parameters: Parameters, *rows: Tensor) -> Counted:
        return REPLAYED


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_Recording", Noted)
    monkeypatch.setattr(fused, "count_rows", count_rows)


def replayed(recorder: Recorder, *sizes: int, length: int = 5, parameters: Parameters = PARAMETERS) -> list[bool]:
    """Whether each of so many rows was."""
    empty = torch.zeros(max(sizes))
    return [recorder(parameters, empty[:n, None].expand(n, length), empty[:n], empty[:n]) is REPLAYED for n in sizes]


def test_rows_of_two_sizes_are_replayed_when_they_come_again() -> None:
    recorder = Recorder()
    assert replayed(recorder, 64, 64, 128, 64, 128) == [False, True, False, True, True]
    assert replayed(recorder, 192, 128, 192, 64) == [False, True, True, False], "the oldest makes room"
    assert replayed(recorder, 64, 64, parameters=random_parameters(4, 4, seed=1)) == [False, True]


def test_what_cannot_be_recorded_is_counted_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    assert replayed(recorder, 64, 64, 64, length=13) == [False] * 3
    monkeypatch.setattr(fused, "RECORDED_BYTES", 64 * 5 * 3 * 8 - 1)
    assert replayed(recorder, 64, 64, 64) == [False] * 3

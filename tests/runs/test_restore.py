"""A session on one GPU reads its checkpoint beside building the model; which device it is makes no difference here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shoestring.runs.reporter import Reporter
from shoestring.runs.restore import build
from shoestring.runs.trainee import Trainee
from shoestring.training.checkpoint import Checkpoints


class Recorded(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class Built:
    """Notes how it is built."""

    group: Any = SimpleNamespace(device=torch.device("cuda"), world=1, on_first=lambda ask, *given: ask(*given))

    def __init__(self) -> None:
        self.fresh: list[bool] = []
        self.warm = 0

    def build(self, fresh: bool, say: object) -> None:
        self.fresh.append(fresh)

    def warm_up(self) -> None:
        self.warm += 1


@pytest.mark.parametrize(
    ("latest", "files", "fresh"),
    [
        ((7, []), True, [False]),
        ((7, ["step 9 is damaged"]), True, [False]),
        ((None, ["step 9 is damaged"]), True, [False, True]),
        ((None, []), False, [True]),
    ],
)
def test_the_model_is_built_as_its_checkpoints_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    latest: tuple[int | None, list[str]],
    files: bool,
    fresh: list[bool],
) -> None:
    checkpoints, trainee, reporter = Checkpoints(tmp_path, keep=1), Built(), Recorded()
    if files:
        checkpoints.path(9).write_bytes(b"")
    asked: list[bool] = []

    def found(keep: bool) -> tuple[int | None, list[str]]:
        asked.append(keep)
        return latest

    monkeypatch.setattr(checkpoints, "latest", found)
    assert build(cast(Trainee, trainee), checkpoints, reporter) == latest[0]
    assert trainee.fresh == fresh and trainee.warm == len(fresh)
    assert asked == [True], "read once, and kept"
    assert reporter.said == [f"left out: {line}" for line in latest[1]]

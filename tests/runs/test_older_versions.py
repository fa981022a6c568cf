"""A run folder that an older version wrote is refused with one line, and left as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from profiles import write_profile
from safetensors.numpy import save_file

from shoestring.core.errors import RecordError, VersionError
from shoestring.core.recipe_file import load
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.hmm.parameters import load as load_model
from shoestring.storage.tensor_file import write_tensors

ADVICE = "; use the version that wrote it, or start again in another folder"
EVALUATION = {
    "schema": "shoestring.evaluation/1",
    "step": 40,
    "rows": 8,
    "tokens": 256,
    "loss": 3.5,
    "perplexity": 33.1,
    "bits_per_byte": None,
    "loss_by_position": [3.5],
    "strategies": {"uniform": 4.6},
    "strategies_by_position": {},
    "entropy_rate": None,
    "entropy_rate_error": None,
}
OUTCOME = {
    "schema": "shoestring.outcome/1",
    "steps": 40,
    "tokens": 5120,
    "seconds": 10.0,
    "segments": 1,
    "tokens_per_second": 512.0,
    "disk_bytes": 1,
    "peak_bytes": None,
    "loss": 3.5,
    "shortened": None,
    "lengthened": None,
}
PLAN = {"schema": "shoestring.plan/1", "binding": "steps", "steps": 40, "tokens": 5120, "effective_batch": 4}
STATE = {"schema": "shoestring.state/1", "data": "0", "course": {"total": 40}, "step": 20, "window_nats": 0.0}
HMM = """
[run]
name = "words"
[budget]
epochs = 2
[data]
source = "stories"
tokenizer = "words:500"
length = 16
documents = 1000
[hmm]
states = 3
"""


def refused(result: subprocess.CompletedProcess[str], file: Path) -> None:
    """With one line that names the file in its folder, and says what to do."""
    assert result.returncode == 2, (result.stdout, result.stderr)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {file}: ") and line.endswith(ADVICE), line
    assert result.stderr.splitlines()[-1] == line
    assert "Traceback" not in result.stderr + result.stdout


def old_run(recipe: Path) -> RunFolder:
    """With its recipe and profile, whose fields have not changed."""
    folder = RunFolder(recipe.parent / RunFolder.of(load(recipe)).path)
    write_profile(recipe)
    folder.claim(load(recipe))
    return folder


def write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("how", ["metadata", "state"])
def test_training_and_evaluation_do_not_begin_anew_beside_old_checkpoints(
    how: str, tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    folder = old_run(tiny)
    checkpoint = folder.checkpoints / "step-000000020.safetensors"
    folder.checkpoints.mkdir()
    state = json.dumps({"recipe": load(tiny).fingerprint, **STATE})
    tensors = {"model/weight": np.zeros(3, np.float32)}
    if how == "metadata":
        save_file(tensors, checkpoint, {"state": state, "check": "0"})
    else:
        write_tensors(checkpoint, tensors, state)
    folder.metrics.write_text('{"step": 20, "loss": 4.0}\n')
    before = {path: path.read_bytes() for path in (checkpoint, folder.metrics)}
    refused(shoestring("train", tiny), checkpoint.relative_to(tmp_path))
    refused(shoestring("evaluate", folder.path), checkpoint)
    assert {path: path.read_bytes() for path in before} == before


def test_a_fit_does_not_begin_anew_beside_an_old_checkpoint(tmp_path: Path, shoestring: Command) -> None:
    recipe = tmp_path / "words.toml"
    recipe.write_text(HMM)
    folder = old_run(recipe)
    checkpoint = folder.checkpoints / "fit.safetensors"
    folder.checkpoints.mkdir()
    save_file({"trial/start": np.zeros(3)}, checkpoint, {"fit": "{}"})
    refused(shoestring("hmm", "fit", recipe), checkpoint.relative_to(tmp_path))
    refused(shoestring("evaluate", folder.path), checkpoint)


def test_the_records_of_an_old_finished_run_are_refused(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    folder = old_run(tiny)
    for path, values in ((folder.evaluation, EVALUATION), (folder.done, OUTCOME), (folder.plan, PLAN)):
        write_json(path, values)
    refused(shoestring("report", folder.path), folder.evaluation)
    refused(shoestring("law", "fit", folder.path), folder.evaluation)
    refused(shoestring("train", tiny), folder.evaluation.relative_to(tmp_path))


def test_an_old_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"start": np.full(2, 0.5)}, path, {"model": "{}"})
    with pytest.raises(VersionError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path}: not written by this version of shoestring{ADVICE}"


def test_a_record_of_another_kind_is_not_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_json(path, OUTCOME)
    with pytest.raises(RecordError, match=r"found shoestring\.outcome/1$") as caught:
        Evaluation.read(path)
    assert not isinstance(caught.value, VersionError)

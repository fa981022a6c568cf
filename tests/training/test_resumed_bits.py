"""A run that resumes ends with the bits of one that did not stop: every family, bias, optimizer and precision."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import resumed_runs
import torch
from conftest import start
from resumed_runs import Case, NoHalf, cases, run_rest, run_whole

from shoestring.core.registry import registry

CASES = cases()


def name_of(case: Case) -> str:
    return "-".join(map(str, case))


def test_every_family_and_optimizer_is_among_the_cases() -> None:
    assert {case.family for case in CASES} == set(registry("family"))
    for family in {case[:2] for case in CASES}:
        own = [case for case in CASES if case[:2] == family]
        assert {case.optimizer for case in own} == set(registry("optimizer")), family
        assert {case.precision for case in own} == {"fp32", "bf16", "fp16"}, family
    assert {case.bias for case in CASES if case.family == "llama"} == {False, True}


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # the next test is about it
def test_a_resumed_run_ends_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    """In processes that have just begun, as far as they can be imitated, on a CPU without half precision."""
    found = []
    for run in (run_whole, run_rest):
        torch.manual_seed(len(found))
        with NoHalf():
            found.append(run(case, tmp_path))
    whole, resumed = found
    assert whole.keys() == resumed.keys()
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_cpu_without_half_precision_says_nothing(precision: str, tmp_path: Path) -> None:
    case = Case("llama", True, "muon", precision)
    with warnings.catch_warnings(record=True) as said, NoHalf() as cpu:
        warnings.simplefilter("always")
        run_whole(case, tmp_path)
    assert not said
    assert cpu.onednn == (precision == "fp32"), "nothing of a run in fp32 is computed in half precision"


REAL = [Case("llama", True, "muon", "fp32"), Case("gpt2", None, "adamw", "bf16")]


@pytest.mark.parametrize("case", REAL, ids=name_of)
def test_processes_of_their_own_end_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    told = []
    for part in ("whole", "rest"):
        process = start(part, tmp_path, *map(str, case), cwd=tmp_path, begin=resumed_runs.main)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        told.append(out)
    assert told[0] == told[1]

"""The numbers of short seeded runs do not change by accident.

On a machine that golden.json knows, weights and metrics are equal to the bit; elsewhere the losses are, up to rounding.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from golden_runs import CASES, RECORD, hardware

KNOWN = json.loads(RECORD.read_text())
BITS = KNOWN["bits"].get(hardware(), {})


@pytest.mark.parametrize("case", CASES)
def test_a_run_comes_out_as_ever(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = CASES[case]()
    finally:
        torch.set_num_threads(threads)
    assert found.pop("losses") == pytest.approx(KNOWN["losses"][case], rel=1e-3)
    if case in BITS:
        assert found == BITS[case]

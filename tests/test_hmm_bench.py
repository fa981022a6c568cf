"""The search for a peer's best batch, the headers of CUTLASS, and the merging of records, in `bench/hmm_em.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    import hmm_em

    return hmm_em


def test_the_batch_is_doubled_until_it_gets_slower_twice(bench: ModuleType) -> None:
    rates = {32: 10.0, 64: 19.0, 128: 18.0, 256: 30.0, 512: 29.0, 1024: 28.0, 2048: 99.0}
    found = bench.search(lambda batch: batch / rates[batch] / 10, 32, 10**6)
    assert (found["batch"], found["sequences_per_second"], found["error"]) == (256, 300.0, None)
    assert list(found["tried"]) == [32, 64, 128, 256, 512, 1024]


def test_the_search_ends_where_memory_does(bench: ModuleType) -> None:
    def work(batch: int) -> float:
        if batch > 100:
            raise MemoryError("too much")
        return 1.0

    found = bench.search(work, 32, 10**6)
    assert (found["batch"], found["error"]) == (64, "batch 128: MemoryError: too much")
    assert bench.search(work, 32, 32)["tried"] == {32: 32.0}
    assert bench.search(work, 128, 10**6)["batch"] is None


@pytest.mark.parametrize("inside", ["include", "cutlass_library/source/include", "cutlass/include"])
def test_the_headers_are_found_where_packages_put_them(inside: str, bench: ModuleType, tmp_path: Path) -> None:
    assert bench.find_cutlass([None, tmp_path]) is None
    header = tmp_path / inside / "cute" / "tensor.hpp"
    header.parent.mkdir(parents=True)
    header.touch()
    assert bench.find_cutlass([None, tmp_path]) == (tmp_path / inside).parent


def part(commit: str = "a", **row: Any) -> dict[str, Any]:
    shape = {"states": 1, "symbols": 2, "length": 3, "sequences": 4, **row}
    return {
        "schema": "s/1",
        "machine": {},
        "commit": commit,
        "command": "python x",
        "date": "2026-11-16",
        "shapes": [shape],
    }


def test_records_of_parts_are_merged_by_shape(bench: ModuleType) -> None:
    parts = [part(ours=5.0), part(peer=2.0), part(states=9, ours=1.0), part() | {"shapes": [], "memory": {"x": 1}}]
    merged = bench.merge(parts)
    assert [row.get("ours") for row in merged["shapes"]] == [5.0, 1.0]
    assert merged["shapes"][0]["peer"] == 2.0
    assert merged["memory"] == {"x": 1}
    assert [one["commit"] for one in bench.merge([part(), part("b")])["parts"]] == ["a", "b"]
    with pytest.raises(SystemExit, match="differ in machine"):
        bench.merge([part(), part() | {"machine": {"device": "cuda"}}])

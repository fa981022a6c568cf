"""Records as a file, or a folder, of any kind with columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


def write_table(path: Path, kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write them, and return what data.source is."""
    if kind == "csv":
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    else:
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(path))
    return f"{kind}:{path}"

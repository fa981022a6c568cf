"""The page of a sweep: one self-contained HTML file with tables that can be sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from shoestring.core.files import write_whole
from shoestring.report.page import drawn, section, table, whole_page

_SORT = """<script>
document.querySelectorAll("table.sortable").forEach(table => {
  table.querySelectorAll("th").forEach((head, column) => {
    head.style.cursor = "pointer";
    head.onclick = () => {
      const body = table.tBodies[0], rows = [...body.rows].slice(1);
      const up = head.dataset.up = head.dataset.up === "1" ? "" : "1";
      const key = row => row.cells[column].textContent.trim();
      const number = text => parseFloat(text.replaceAll(",", ""));
      rows.sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(number(x)) || isNaN(number(y)) ? x.localeCompare(y) : number(x) - number(y);
        return up ? order : -order;
      });
      body.append(...rows);
    };
  });
});
</script>"""
"""Sorts by a column when its head is clicked; what is empty stays last."""


def write_sweep_page(
    path: Path,
    title: str,
    summary: str,
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
    figures: Mapping[str, dict[str, Any]],
) -> None:
    """Write the page: sortable tables by title, each as (head, rows), and figures; the first table comes first."""
    parts = [
        section(name, f"<figure>{table(head, rows, 'sortable')}</figure>") for name, (head, rows) in tables.items()
    ]
    shown = [section(name, f"<figure>{drawn(figure)}</figure>") for name, figure in figures.items()]
    write_whole(path, whole_page(title, escape(summary), [*parts[:1], *shown, *parts[1:], _SORT]))

"""Kernels compiled for a chip that is not here. What came of it is kept in a file, so that it is done once.

A kernel is compiled unless the file knows its text, with all that it calls, its constants and options, the chip, and
the version of Triton. `python tests/ahead.py` compiles all of them again, and writes the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget

KEPT = Path(__file__).parent / "golden" / "kernels.json"
RECORD = "RECORD_KERNELS"
_INSTRUCTION = re.compile(r"^\s*(?:@\S+\s+)?((?:mma|wgmma\.mma_async|ld\.global|st\.global)[\w.:]*)", re.MULTILINE)


class Compiled(NamedTuple):
    """What a compilation gave."""

    shared: int
    """Bytes of shared memory of a program."""
    registers: int
    """Of a thread."""
    stack: int
    """Bytes of a thread's registers that spill."""
    instructions: list[str]
    """Those of the matrix units and of global memory, each kind once."""

    def has(self, pattern: str) -> bool:
        return any(re.match(pattern, each) for each in self.instructions)


def compile_ahead(source: Any, capability: int, **options: Any) -> Compiled:
    """Compile one of Triton's sources for a chip of this capability, unless it is known what comes of it."""
    for function in source.fn.__globals__.values():
        if hasattr(function, "starting_line_number"):
            function.starting_line_number = 0  # where it stands in its file is no part of it
    told = f"{triton.__version__} {source.hash()} {capability} {sorted(options.items())}"
    key = f"{source.fn.__name__} {hashlib.sha256(told.encode()).hexdigest()[:16]}"
    kept = json.loads(KEPT.read_text())
    if key in kept:
        return Compiled(*kept[key])
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    found = Compiled(
        made.metadata.shared, *_used(made.asm["cubin"]), sorted(set(_INSTRUCTION.findall(made.asm["ptx"])))
    )
    if os.environ.get(RECORD):
        lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted((kept | {key: found}).items())]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return found


def _used(code: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes on its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code)
        tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK"))
    assert registers is not None and stack is not None, text
    return int(registers[1]), int(stack[1])


if __name__ == "__main__":
    KEPT.write_text("{}\n")
    os.environ[RECORD] = "1"
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-n", "0", "-k", "for_the_chip"]).returncode)

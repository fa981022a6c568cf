"""`shoestring`, and how its errors end: 2 for a mistake, 1 for a fault, no traceback unless -v asks for it."""

from __future__ import annotations

import json
import os
import sys
import traceback

from shoestring.core.errors import ShoestringError


def main() -> None:
    """Typer ends wrong usage itself, with 2; everything else that goes wrong is explained here."""
    try:
        _run(sys.argv[1:])
    except SystemExit as end:
        _leave(end, well=not end.code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is there", file=sys.stderr)
        _leave(SystemExit(130), well=False)
    except Exception as cause:
        code = cause.exit_code if isinstance(cause, ShoestringError) else 1
        _explain(cause, sys.argv[1:], code)
        _leave(SystemExit(code), well=False)


def _leave(end: SystemExit, well: bool) -> None:
    """End at once where a GPU was used, or other processes are spoken with: everything is on disk.

    To take down a compiler's helpers and a device's memory piece by piece takes seconds, which a budget of minutes does
    not have; and threads that still wait for another process would abort this one, whatever it had to say.
    """
    torch = sys.modules.get("torch")
    together = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    used = torch is not None and torch.cuda.is_initialized()
    if not (together or used) or not isinstance(end.code, int | None):
        raise end
    if torch is not None and together and well:
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code or 0)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["plan"]:  # answers at once: the options of all verbs take longer to make than a plan
        from shoestring.cli import plan

        plan.run(arguments[1:])
    else:
        from shoestring.cli.verbs import app

        app()


def _explain(cause: Exception, arguments: list[str], code: int) -> None:
    known = isinstance(cause, ShoestringError)
    message = str(cause) if known else f"{type(cause).__name__}: {cause}"
    if "-v" in arguments or "--verbose" in arguments:
        traceback.print_exception(cause, file=sys.stderr)
    print(f"error: {message}", file=sys.stderr)
    if not known and "-v" not in arguments:
        print("this is a bug in shoestring; -v shows where", file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))

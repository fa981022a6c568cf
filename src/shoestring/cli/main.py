"""The entry point of `shoestring`: exits with 2 for a mistake and with 1 for a fault; -v shows the traceback."""

from __future__ import annotations

import json
import os
import sys
import traceback

import click

from shoestring.core.errors import ShoestringError
from shoestring.core.text import printable


def main() -> None:
    """Run the command in `sys.argv`, and explain whatever goes wrong."""
    from shoestring.cli.root import root

    arguments = sys.argv[1:]
    try:
        ended = root.main(arguments, prog_name="shoestring", standalone_mode=False)
        _leave(SystemExit(ended if isinstance(ended, int) else 0), well=True)
    except SystemExit as end:
        _leave(end, well=not end.code)
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        raise SystemExit(0) from None
    except click.ClickException as mistake:  # wrong usage
        if (context := getattr(mistake, "ctx", None)) is not None:
            print(context.get_usage(), file=sys.stderr)
        _print_error(mistake.format_message(), 2, arguments)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; the same command continues with what is there", file=sys.stderr)
        _leave(SystemExit(130), well=False)
    except Exception as cause:
        code = cause.exit_code if isinstance(cause, ShoestringError) else 1
        _explain(cause, arguments, code)
        _leave(SystemExit(code), well=False)


def _leave(end: SystemExit, well: bool) -> None:
    """Exit at once after a GPU was used or a process group was joined: everything is on disk.

    An orderly exit stops a compiler's helpers and frees a device's memory piece by piece. That takes seconds, which a
    budget of minutes does not have. And threads that still wait for another process would abort this one.
    """
    torch = sys.modules.get("torch")
    in_group = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    used_gpu = torch is not None and torch.cuda.is_initialized()
    if not (in_group or used_gpu) or not isinstance(end.code, int | None):
        raise end
    if torch is not None and in_group and well:
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code or 0)


def _explain(cause: Exception, arguments: list[str], code: int) -> None:
    known = isinstance(cause, ShoestringError)
    verbose = "-v" in arguments or "--verbose" in arguments
    if verbose:
        print(printable("".join(traceback.format_exception(cause))), file=sys.stderr, end="")
    _print_error(str(cause) if known else f"{type(cause).__name__}: {cause}", code, arguments)
    if not known and not verbose:
        print("this is a bug in shoestring; -v shows where", file=sys.stderr)


def _print_error(message: str, code: int, arguments: list[str]) -> None:
    print(printable(f"error: {message}"), file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))

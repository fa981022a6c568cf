"""The entry point of `shoestring`: exits with 2 for a mistake and with 1 for a fault; -v shows the traceback."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
import traceback

import click

from shoestring.core.errors import Fault, ShoestringError, storage_error
from shoestring.core.host import is_out_of_memory, keep_freed_memory
from shoestring.core.text import printable


def start() -> None:
    """As `main`, in a process of its own, which ends at once after a command that went well.

    To take the thousand modules of torch apart takes most of a second, for nothing: everything is on disk.
    """
    try:
        main()
    except SystemExit as end:
        watched = sys.getprofile() is not None or sys.gettrace() is not None  # by one who wants to see the end
        if end.code or "torch" not in sys.modules or watched:
            raise
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Run the command in `sys.argv`, and explain whatever goes wrong."""
    arguments = sys.argv[1:]
    _open_streams()
    _import_as_here()
    keep_freed_memory()
    try:
        from shoestring.cli.root import root

        ended = root.main(arguments, prog_name="shoestring", standalone_mode=False)
        sys.stdout.flush()
        _leave(SystemExit(ended if isinstance(ended, int) else 0), well=True)
    except SystemExit as end:
        _leave(end, well=not end.code)
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        raise SystemExit(0) from None
    except click.ClickException as mistake:  # wrong usage
        if (context := getattr(mistake, "ctx", None)) is not None:
            print(context.get_usage(), file=sys.stderr)
        _print_error(mistake.format_message(), 2, arguments, type(mistake).__name__)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; the same command continues with what is there", file=sys.stderr)
        _leave(SystemExit(130), well=False)
    except Exception as cause:
        error = _of_system(cause)
        if isinstance(cause, BrokenPipeError):  # who reads the output has enough, as in `| head`
            _drop_output()
            _leave(SystemExit(1), well=False)
        code = error.exit_code if isinstance(error, ShoestringError) else 1
        _explain(error, arguments, code)
        _leave(SystemExit(code), well=False)


def _open_streams() -> None:
    """Replace streams that the caller has closed (`>&-`), so that writing to them is no error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def _drop_output() -> None:
    """Drop what is left for a stream that can no longer be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _of_system(cause: Exception) -> Exception:
    """The error for people where the system refused a call, as for a path that is too long; else `cause` itself.

    Files that are written have names in their errors: an error without one is of standard output.
    """
    if is_out_of_memory(cause) and not isinstance(cause, ShoestringError):
        said = str(cause).partition("\n")[0] or type(cause).__name__
        full = Fault(f"the memory ran out; take a smaller model or data.length, or more memory ({said})")
        full.__cause__ = cause
        return full
    if not isinstance(cause, OSError) or cause.errno is None:
        return cause
    is_named = isinstance(cause.filename, (str, bytes))
    doing, what = ("use", os.fsdecode(cause.filename)) if is_named else ("write", "the output")
    error = storage_error(doing, what, cause)
    error.__cause__ = cause
    return error


def _import_as_here() -> None:
    """Keep child processes from importing modules of the current folder, unless this process does so itself.

    The folder may be a stranger's: `python -m`, as children are started, looks there before anywhere else.
    """
    if not {"", os.getcwd()} & set(sys.path):
        os.environ.setdefault("PYTHONSAFEPATH", "1")


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
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(end.code or 0)


def _explain(cause: Exception, arguments: list[str], code: int) -> None:
    known = isinstance(cause, ShoestringError)
    verbose = "-v" in arguments or "--verbose" in arguments
    if verbose:
        print(printable("".join(traceback.format_exception(cause))), file=sys.stderr, end="")
    kind = type(cause).__name__
    _print_error(str(cause) if known else f"{kind}: {cause}", code, arguments, kind)
    if not known and not verbose:
        print("this is a bug in shoestring; -v shows where", file=sys.stderr)


_LONG = re.compile(r"\S{400,}")
"""A word that fills a screen: a path or a number out of all measure."""


def _ends(word: re.Match[str]) -> str:
    return f"{word[0][:120]}…{word[0][-120:]}"


def _print_error(message: str, code: int, arguments: list[str], kind: str) -> None:
    """Say what is wrong wherever it can still be said; `kind` is the name of the error, for programs."""
    with contextlib.suppress(OSError):
        print(_LONG.sub(_ends, printable(f"error: {message}")), file=sys.stderr)
    with contextlib.suppress(OSError):
        if "--json" in arguments:
            print(json.dumps({"error": message, "exit_code": code, "kind": kind}))
    _drop_output()

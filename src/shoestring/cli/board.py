"""`shoestring board`."""

from __future__ import annotations

import getpass
import secrets
import socket
from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@click.argument("folder", type=options.PATH, default="runs")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: the first free one from 8642 on; 0: any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others can reach 0.0.0.0.")
@options.output
def board(folder: Path, port: int | None, host: str, terminal: options.Terminal) -> options.Result:
    """Show the runs of a folder on a live page.

    The page is read from the run folders alone, while they train and afterwards. It is for this machine, and for
    whoever has the token in the printed address. Ctrl-C ends it; no run notices.
    """
    from shoestring.core.errors import MissingExtra, RunError, UserError
    from shoestring.core.schema import show

    try:
        from shoestring.board.server import listen, make_app, serve
    except ImportError as cause:
        raise MissingExtra("shoestring board", "starlette and uvicorn", "board") from cause
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; name the one that holds run folders")
    if not host:
        raise UserError("--host: empty; 127.0.0.1 is this machine alone, and 0.0.0.0 lets others reach it")
    try:
        listening = listen(host, port)
    except (OSError, UnicodeError) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise UserError(f"--host {show(host)}, --port {port}: {why}; choose another one") from cause
    token, number = secrets.token_urlsafe(16), listening.getsockname()[1]
    here = host in ("127.0.0.1", "localhost", "::1")
    shown = f"[{host}]" if ":" in host else (host if here else socket.gethostname())
    terminal.say(f"board: http://{shown}:{number}/?token={token}")
    if here:
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        terminal.say(f"over ssh: ssh -N -L {number}:{shown}:{number} {who}   (there; then open the same address)")
    terminal.say("Ctrl-C ends it")
    serve(make_app(folder, token), listening)
    return {}

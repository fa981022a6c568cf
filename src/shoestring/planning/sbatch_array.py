"""Slurm scripts of a sweep: rows are prepared, then arrays have a task for each run, then a job reports.

A script has all that it needs in it: it may be read, edited, and written anew while its job waits.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoestring.core.errors import UserError
from shoestring.planning.sbatch import AFTER_SECONDS, SIGNAL_SECONDS, STARTED, process_bytes, quoted, slurm_time

_OURS = (
    "array", "dependency", "gpus-per-node", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output",
    "parsable", "requeue", "signal",
)  # fmt: skip
"""Options that a sweep sets."""
_OPTION = re.compile(r"(?:--)?([a-z][a-z-]*)(?:=(.*))?", re.DOTALL)
_FIRST_PORT, _PORTS = 20_000, 20_000


@dataclass(frozen=True, kw_only=True)
class Sweeping:
    """What all scripts of a sweep share."""

    name: str
    folder: str
    """Of the sweep."""
    working_folder: str
    python: str
    on_gpu: bool
    threads: int
    """Of each process."""
    nodes: int = 1
    """Of each run."""
    processes: int = 1
    """Of each run on each node; on GPUs, one for each."""
    options: Mapping[str, str | None] = field(default_factory=dict)
    """More options of sbatch, or others in place of those that come from the plans."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """Runs of similar needs: one task for each."""

    runs: tuple[str, ...]
    at_once: int | None
    """Tasks at a time; None: as many as Slurm likes."""
    seconds: float
    """The longest time of a run."""
    peak_bytes: int | None
    """The largest peak of a process on a CPU; None: not known."""


def parse_options(texts: Sequence[str]) -> dict[str, str | None]:
    """Options of sbatch by name, from texts such as "partition=long"."""
    found: dict[str, str | None] = {}
    for text in texts:
        match = _OPTION.fullmatch(text.strip())
        if match is None:
            raise UserError(f"--slurm-option {text!r}: write NAME=VALUE as for sbatch, for example partition=long")
        if match[1] in _OURS:
            raise UserError(f"--slurm-option {text!r}: the sweep sets {match[1]} itself; leave it out")
        found[match[1]] = match[2]
    return found


def array_script(sweep: Sweeping, array: Array) -> str:
    """The script of an array. A run that the time limit stops is requeued, and continues; a cancelled one is not."""
    limit = "" if array.at_once is None else f"%{array.at_once}"
    needs: dict[str, str | None] = {
        "array": f"0-{len(array.runs) - 1}{limit}",
        "time": slurm_time(array.seconds + AFTER_SECONDS),
        "nodes": str(sweep.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(sweep.threads * sweep.processes),
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{SIGNAL_SECONDS}",
    }
    if sweep.on_gpu:
        needs["gpus-per-node"] = str(sweep.processes)
    elif array.peak_bytes is not None:
        needs["mem"] = f"{math.ceil(process_bytes(array.peak_bytes) * sweep.processes / 2**20)}M"
    folder = shlex.quote(sweep.folder)
    return _script(
        sweep,
        sweep.name,
        "%A_%a",
        needs,
        [
            "set -uo pipefail",
            f"export OMP_NUM_THREADS={sweep.threads}",
            STARTED,
            f"runs=({' '.join(map(shlex.quote, array.runs))})",
            "run=${runs[$SLURM_ARRAY_TASK_ID]}",
            f"said={folder}/logs/$run.json",
            f"export python={shlex.quote(sweep.python)} recipe={folder}/recipes/$run.toml",
            *_launch(sweep),
            "child=$!",
            "cancelled=",
            f"trap 'kill -{_told(sweep)} $child' USR1 # before the limit: the run saves and stops",
            "trap 'cancelled=1; kill -TERM $child' TERM",
            "wait $child; code=$?",
            "while kill -0 $child 2> /dev/null; do wait $child; code=$?; done # a signal ends a wait",
            "# what the limit stopped goes on in the same task; what fails or is cancelled does not",
            """if [ -z "$cancelled" ] && { [ $code = 138 ] || grep -q '"kind": "Stopped"' "$said"; }; then""",
            '  exec scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
            "fi",
            "exit $code",
        ],
    )


def _launch(sweep: Sweeping) -> list[str]:
    """Start the run in the background."""
    train = '-m shoestring train "$recipe" --json'
    torchrun = f'"$python" -m torch.distributed.run --nproc-per-node={sweep.processes}'
    if sweep.nodes == 1:
        started = f"{torchrun} --standalone" if sweep.processes > 1 else '"$python"'
        return [f'{started} {train} > "$said" &']
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export address=$(scontrol show node \"$head\" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')",
        f"export port=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
        "# torchrun on each node; srun passes USR1 on to it, but would answer TERM by killing",
        "srun --kill-on-bad-exit=0 bash -c '",
        f'  {torchrun} --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \\',
        f'    --master-addr="$address" --master-port="$port" {train} &',
        "  child=$!",
        '  trap "kill -TERM $child" USR1',
        "  wait $child; code=$?",
        "  while kill -0 $child 2> /dev/null; do wait $child; code=$?; done",
        "  exit $code",
        '\' > "$said" &',
    ]


def _told(sweep: Sweeping) -> str:
    """The signal by which what was started lets the run save: torchrun knows only TERM."""
    return "TERM" if sweep.nodes == 1 and sweep.processes > 1 else "USR1"


def prepare_script(sweep: Sweeping, recipes: Mapping[str, str], seconds: float) -> str:
    """The script that prepares rows before any run needs them: for each recipe what its plan, a file, needs."""
    commands = [
        shlex.join([sweep.python, "-m", "shoestring", "prepare", recipe, "--plan", plan])
        for recipe, plan in recipes.items()
    ]
    needs = {"time": slurm_time(seconds), "ntasks": "1", "cpus-per-task": str(sweep.threads)}
    return _script(sweep, f"{sweep.name}-prepare", "%j", needs, ["set -euo pipefail", *commands])


def report_script(sweep: Sweeping) -> str:
    """The script of the job that reports a sweep after its arrays."""
    command = shlex.join([sweep.python, "-m", "shoestring", "sweep", "report", sweep.folder])
    needs: dict[str, str | None] = {"time": slurm_time(600), "ntasks": "1"}
    return _script(sweep, f"{sweep.name}-report", "%j", needs, [f"exec {command}"], own=("partition", "account", "qos"))


def _script(
    sweep: Sweeping,
    name: str,
    number: str,
    needs: Mapping[str, str | None],
    lines: Sequence[str],
    own: Sequence[str] | None = None,
) -> str:
    """A script with options; `own` are the names of the user's options that count for it, None for all of them."""
    given = {key: value for key, value in sweep.options.items() if own is None or key in own}
    options = {
        "job-name": name,
        **needs,
        "output": f"{sweep.folder.replace('%', '%%')}/logs/slurm-{number}.out",
        **given,
    }
    told = [f"#SBATCH {quoted(f'--{key}' + ('' if value is None else f'={value}'))}" for key, value in options.items()]
    return "\n".join(["#!/bin/bash", *told, "", f"cd {shlex.quote(sweep.working_folder)}", *lines, ""])


def submit_script(
    arrays: Mapping[str, Sequence[str]], chains: Sequence[int], report: str, jobs: str, prepare: str | None
) -> str:
    """The script that submits all, and adds their numbers to a file, by which they are looked for and cancelled.

    `arrays` are the runs of each script; those with one number in `chains` come one after the other.
    """
    lines = [
        "#!/bin/bash",
        "set -euo pipefail",
        'submit() { sbatch --parsable "$@" | cut -d ";" -f 1; }',
        f"""note() {{ printf '{{"job": %s, "kind": "%s", "runs": %s}}\\n' "$@" >> {shlex.quote(jobs)}; }}""",
    ]
    if prepare is not None:
        lines += [f"prepare=$(submit {shlex.quote(prepare)})", 'note "$prepare" prepare "[]"']
    last: dict[int, str] = {}
    for number, ((script, runs), chain) in enumerate(zip(arrays.items(), chains)):
        before = last.get(chain) or (None if prepare is None else "$prepare")
        after = "" if before is None else f'--dependency="afterany:{before}" '
        lines += [
            f"array{number}=$(submit {after}{shlex.quote(script)})",
            f'note "$array{number}" array {shlex.quote(json.dumps(list(runs)))}',
        ]
        last[chain] = f"$array{number}"
    every = ":".join(f"$array{number}" for number in range(len(arrays)))
    lines += [
        f'report=$(submit --dependency="afterany:{every}" {shlex.quote(report)})',
        'note "$report" report "[]"',
        f'echo "submitted: {"prepare $prepare, " if prepare is not None else ""}arrays {every.replace(":", ", ")}, '
        'report $report"',
        "",
    ]
    return "\n".join(lines)

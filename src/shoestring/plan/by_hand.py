"""A plan from figures given by hand: for another machine, or before there is one.

The figures are facts (equations hold between them) and budgets (each a limit). The facts are solved first; then every
budget is followed through the equations by itself, and the one that allows the smallest run binds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.facts import Line, Plan
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds
from shoestring.plan.figures import BUDGETS, FIGURES, MARGIN, QUANTITIES, Relation, relations

CHINCHILLA = 20.0
"""Tokens a parameter near the optimum of Hoffmann et al. 2022."""
_SAME = 1e-6
"""Two ways to one quantity agree when they differ by less than this share."""
_LIMITED = {"time": "seconds", "disk": "stored", "tokens_per_parameter": "tokens"}
"""The quantity that a budget limits, where it has another name."""
_WHOLE = ("per_device", "accumulate", "devices", "batch")
_RUN = ("steps", "samples", "tokens", "seconds", "flops", "epochs", "stored")
"""Quantities that grow with the run."""

_FIELDS = {name: name for name in (*_RUN[:-1], "per_device", "accumulate", "devices", "entries", "gigabytes")} | {
    "batch": "effective_batch",
    "speed": "tokens_per_second",
    "stored": "disk_bytes",
}
"""Quantities that a plan has a field for, with its name."""
_FRACTIONAL = {"seconds", "flops", "epochs", "gigabytes", "tokens_per_second"}


class _Known(NamedTuple):
    value: Interval
    reason: str
    """"" where it was given."""


_Values = Mapping[str, _Known]


def plan_by_hand(figures: Mapping[str, Interval | float]) -> Plan:
    """Everything that follows from the figures, which have the names in `FIGURES`.

    An `Interval` is known to lie between two values; seconds, bytes and FLOPs are plain numbers, and a density is for
    10⁹ bytes of text. Raises PlanError when the figures contradict each other or say nothing.
    """
    assert figures.keys() <= FIGURES.keys(), figures.keys() - FIGURES.keys()
    given = {n: v if isinstance(v, Interval) else Interval.exactly(float(v)) for n, v in figures.items()}
    _check(given)
    equations = relations(latents="latents" in given, corpus=bool({"corpus", "corpus_tokens"} & given.keys()))
    facts = _facts(given, equations)
    budgets = _budgets(given, facts)
    runs = {name: _solve({**facts, _LIMITED.get(name, name): known}, equations) for name, known in budgets.items()}
    if "params" in facts and not any("tokens" in run for run in runs.values()):
        target = _target(facts["params"].value, Interval.exactly(CHINCHILLA), "near the optimum of Chinchilla's law")
        runs["tokens_per_parameter"] = _solve({**facts, "tokens": target}, equations)
    binding, looser = _tightest(runs)
    values: dict[str, _Known] = dict(facts)
    for name in binding:
        values |= _whole_steps(name, runs[name], given, facts, equations)
    if "seconds" in values and "tokens" in values and "speed" not in values:
        values["speed"] = _Known(values["tokens"].value.over(values["seconds"].value), "needed: tokens ÷ time")
    return _plan(given, values, binding, looser, runs)


def _check(given: Mapping[str, Interval]) -> None:
    for name, value in given.items():
        for end in value:
            if not (math.isfinite(end) and end > 0):
                raise PlanError(f"{option(name)} = {end:g}: must be above zero")
    margin = given.get(MARGIN)
    if margin is not None and margin.low < 1:
        raise PlanError(f"--margin = {margin.low:g}: must be at least 1; 1.25 is a quarter more than needed")
    latents, length = given.get("latents"), given.get("length")
    if latents is not None and length is not None and latents.expected > length.expected:
        raise PlanError(
            f"--latents {latents.expected:g} and --length {length.expected:g}: a row has no more latents than tokens"
        )


def option(name: str) -> str:
    """A figure's name on the command line."""
    return f"--{name.replace('_', '-')}"


def _facts(given: Mapping[str, Interval], equations: Sequence[Relation]) -> dict[str, _Known]:
    """The facts and all that follows from them without a budget."""
    facts = {name: _Known(value, "") for name, value in given.items() if name not in (*BUDGETS, "checkpoints", MARGIN)}
    facts = _solve(facts, equations)
    one = _Known(Interval.exactly(1.0), "")
    if not {"batch", "per_device", "accumulate"} <= facts.keys():
        facts.setdefault("devices", one)
    if "batch" not in facts and {"per_device", "accumulate"} & facts.keys():
        facts = {"per_device": one, "accumulate": one} | facts
    facts = _solve(facts, equations)
    for name in _WHOLE:
        if name in facts and not _is_whole(facts[name].value.expected):
            shown, reason = facts[name].value.expected, facts[name].reason
            raise PlanError(f"{QUANTITIES[name].label}: {reason} = {shown:g}, which must be a whole number")
    _check_split(facts)
    return facts


def _check_split(facts: _Values) -> None:
    """That the rows of a batch divide over the devices, and those at a time fit the memory."""
    count = {name: facts[name].value.expected for name in ("batch", "devices", "per_device") if name in facts}
    if count.get("batch", 0.0) % count.get("devices", 1.0):
        raise PlanError(
            f"--batch {count['batch']:g} and --devices {count['devices']:g}: a batch divides over its devices"
        )
    room = facts.get("rows_in_memory")
    if room is not None and count.get("per_device", 0.0) > room.value.high:
        raise PlanError(
            f"--per-device {count['per_device']:g} does not fit the memory: {room.reason} = "
            f"{_with_unit('rows_in_memory', room.value)}"
        )


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) <= _SAME * value and round(value) >= 1


def _budgets(given: Mapping[str, Interval], facts: _Values) -> dict[str, _Known]:
    """Each budget as a limit of one quantity."""
    found = {name: _Known(given[name], "") for name in BUDGETS if name in given}
    if "disk" in found and "checkpoints" in given:
        disk, kept = given["disk"], given["checkpoints"]
        if kept.expected >= disk.expected:
            room, taken = (str(Bytes(round(size.expected))) for size in (disk, kept))
            raise PlanError(f"--disk {room} holds nothing beside --checkpoints {taken}; raise --disk above that")
        found["disk"] = _Known(Interval.exactly(disk.expected - kept.expected), "")
    if (ratio := given.get("tokens_per_parameter")) is not None:
        if "params" not in facts:
            raise PlanError(
                f"--tokens-per-parameter {ratio.expected:g}: of how many parameters? give --params, as in --params 100M"
            )
        found["tokens_per_parameter"] = _target(facts["params"].value, ratio, "as asked for")
    return found


def _target(params: Interval, ratio: Interval, why: str) -> _Known:
    shown = f"{_with_unit('params', params)} × {ratio.expected:g} tokens a parameter, {why}"
    return _Known(params.times(ratio), shown)


def _solve(known: _Values, equations: Sequence[Relation]) -> dict[str, _Known]:
    """All that follows; an equation whose members are all known must hold."""
    values, before = dict(known), -1
    while before != len(values):
        before = len(values)
        for equation in equations:
            members = (equation.result, *equation.factors, *equation.divisors)
            unknown = [name for name in members if name not in values]
            if not unknown:
                _agree(equation, values)
            elif len(unknown) == 1:
                values[unknown[0]] = _solved(equation, unknown[0], values)
    return values


def _solved(equation: Relation, wanted: str, values: _Values) -> _Known:
    """`wanted` from an equation in which all else is known."""
    left, right, constant = (equation.result, *equation.divisors), equation.factors, equation.constant
    if wanted in right:
        left, right, constant = right, left, 1 / constant
    ups, downs = right, tuple(name for name in left if name != wanted)
    value = Interval.exactly(constant)
    for name in ups:
        value = value.times(values[name].value)
    for name in downs:
        value = value.over(values[name].value)
    return _Known(value, _product(constant, ups, downs, values))


def _product(constant: float, ups: Sequence[str], downs: Sequence[str], values: _Values) -> str:
    """As "5d × 2.5k tokens/s"; factors of one and changes of unit are left out."""
    factor, divisor = (constant, 1.0) if constant >= 1 else (1.0, 1 / constant)
    plain = [f"{factor:g}"] if round(factor) not in (1, 10**9) else []
    single = {name for name in (*ups, *downs) if name == "devices" and values[name].value.expected == 1}
    many = len(ups) + len(downs) > 1
    plain += [_shown(name, values) for name in ups if not (many and name in single)]
    text = " × ".join(plain)
    text += "".join(f" ÷ {_shown(name, values)}" for name in downs if name not in single)
    return text if round(divisor) in (1, 10**9) else f"{text} ÷ {divisor:g}"


def _shown(name: str, values: _Values) -> str:
    return _with_unit(name, values[name].value)


def _with_unit(name: str, value: Interval) -> str:
    quantity = QUANTITIES[name]
    return f"{value.show(quantity.show)} {quantity.unit}".rstrip()


def _agree(equation: Relation, values: _Values) -> None:
    computed = _solved(equation, equation.result, values)
    stated = values[equation.result]
    if not math.isclose(computed.value.expected, stated.value.expected, rel_tol=_SAME):
        name = equation.result
        first, second = (_with_unit(name, known.value) for known in (stated, computed))
        told = f"{first} = {stated.reason}" if stated.reason else f"{first} as given"
        raise PlanError(
            f"these figures contradict each other: the {QUANTITIES[name].label} is {told}, and also "
            f"{second} = {computed.reason}; leave one of them out"
        )


def _tightest(runs: Mapping[str, _Values]) -> tuple[list[str], dict[str, str]]:
    """The budgets that bind, and every other one with the budget that is tighter than it.

    One binds, unless nothing that is given connects two of them, as steps and a time do without a speed.
    """
    binding: list[str] = []
    looser: dict[str, str] = {}
    for name, run in runs.items():
        for index, other in enumerate(binding):
            shared = next((q for q in _RUN if q in run and q in runs[other]), None)
            if shared is None:
                continue
            if run[shared].value.expected < runs[other][shared].value.expected:
                looser |= {other: name} | {old: name for old, tighter in looser.items() if tighter == other}
                binding[index] = name
            else:
                looser[name] = other
            break
        else:
            binding.append(name)
    return binding, looser


def _whole_steps(
    budget: str, run: dict[str, _Known], given: Mapping[str, Interval], facts: _Values, equations: Sequence[Relation]
) -> dict[str, _Known]:
    """The run cut to whole steps, or else rows or tokens, and everything else of it computed from those again."""
    name = next((name for name in ("steps", "samples", "tokens") if name in run), None)
    if name is None:
        return run
    value, reason = run[name]
    if value.expected * (1 + _SAME) < 1:
        raise PlanError(_too_small(budget, given, name, value.expected, run))
    low, middle, high = (max(1.0, float(math.floor(round(end, 6)))) for end in value)
    cut = _solve({**facts, name: _Known(Interval(low, middle, high), reason)}, equations)
    # the way that led from the budget to whole steps is the one to tell, not the way back
    cut = {each: _Known(known.value, run[each].reason if each in run else known.reason) for each, known in cut.items()}
    limited = _LIMITED.get(budget, budget)
    if limited in ("seconds", "flops", "epochs", "stored"):  # what binds is what was given, not what is left of it
        cut[limited] = run[limited]
    return cut


_KINDS: Mapping[str, Callable[[int], object]] = {"time": Seconds, "flops": Flops, "disk": Bytes}


def _too_small(budget: str, given: Mapping[str, Interval], name: str, value: float, run: _Values) -> str:
    """Why there is not one step, row or token, and the least budget that has one."""
    limit = given[budget].expected if budget in given else CHINCHILLA
    least = limit / value
    if budget in ("epochs", "tokens_per_parameter"):
        asked = f"{math.ceil(least * 1e4) / 1e4:g}"
    else:
        asked = str(_KINDS.get(budget, Count)(math.ceil(least)))
    one = {"steps": "step", "samples": "row", "tokens": "token"}[name]
    size = f" of {_shown('batch_tokens', run)}" if name == "steps" and "batch_tokens" in run else ""
    return (
        f"nothing fits: {option(budget)} {limit:g} is {value:.2g} of one {one}{size}; the least that fits is "
        f"{option(budget)} {asked}"
    )


def _plan(
    given: Mapping[str, Interval],
    values: dict[str, _Known],
    binding: Sequence[str],
    looser: Mapping[str, str],
    runs: Mapping[str, _Values],
) -> Plan:
    if MARGIN in given:
        _with_margin(values, given[MARGIN])
    kept = given.get("checkpoints", Interval.exactly(0.0))
    if "stored" in values and kept.expected:
        known = values["stored"]
        total = Interval(*(end + kept.expected for end in known.value))
        values["stored"] = _Known(total, known.reason and f"{known.reason}, and the checkpoints")
    if "speed" in values and values["devices"].value.expected > 1 and "tokens_per_second" in values:
        speed = values["speed"]
        values["speed"] = speed._replace(reason=f"{speed.reason}; what they tell each other is not counted")
    lines = [
        Line(quantity=label, value=values[name].value.show(show), reason=values[name].reason)
        for name, (label, show, _) in QUANTITIES.items()
        if name in values and values[name].reason and not (name == "speed" and _of_one(values))
    ]
    if "stored" in values:
        why = "rows that are computed as they are read (data.stream) are never stored"
        lines.append(Line(quantity="disk of a stream", value="none", reason=why))
    if not lines:
        raise PlanError(
            "nothing follows from these figures; give a recipe, or for example --time 5d --tokens-per-second 2500, "
            "or --per-device 4 --accumulate 4 --steps 1000"
        )
    lines += _budget_lines(given, binding, looser, runs)
    found = {field: values[name].value for name, field in _FIELDS.items() if name in values}
    numbers: dict[str, Any] = {field: value.expected for field, value in found.items()}
    for name in numbers.keys() - _FRACTIONAL:
        upward = math.ceil if name == "entries" else int
        numbers[name] = upward(round(numbers[name], 6))
    ranges = {field: (value.low, value.high) for field, value in found.items() if not value.is_exact}
    return Plan(binding=" and ".join(binding) or "none", **numbers, intervals=ranges, lines=tuple(lines))


def _of_one(values: _Values) -> bool:
    """Whether the speed is that of the only device, which was given."""
    return values["devices"].value.expected == 1 and "tokens_per_second" in values


def _with_margin(values: dict[str, _Known], margin: Interval) -> None:
    """More data than is needed: text and its entries, or a row an entry where nothing is known of the text."""
    shown = f" × {margin.expected:g} margin"
    if "gigabytes" in values:
        for name in ("gigabytes", "entries"):
            if name in values:
                values[name] = _Known(values[name].value.times(margin), values[name].reason + shown)
    elif "samples" in values:
        samples = values["samples"].value
        values["entries"] = _Known(samples.times(margin), _with_unit("samples", samples) + shown)


def _budget_lines(
    given: Mapping[str, Interval], binding: Sequence[str], looser: Mapping[str, str], runs: Mapping[str, _Values]
) -> list[Line]:
    """What binds, and what the other budgets would take."""
    if not binding:
        return []
    names = [f"{option(name)} {_limit(name, given)}" for name in binding]
    if len(binding) == 1:
        lines = [Line(quantity="binding", value=binding[0], reason=names[0])]
    else:
        why = f"nothing given connects {' and '.join(names)}, as a speed, a batch or --length would"
        lines = [Line(quantity="binding", value=" and ".join(binding), reason=why)]
    for name, tighter in looser.items():
        quantity = _LIMITED.get(tighter, tighter)
        shown = f"it would take {_shown(quantity, runs[name])}" if quantity in runs[name] else "it would take more"
        reason = f"{option(tighter)} {_limit(tighter, given)} is reached first; {shown}"
        lines.append(Line(quantity=f"{name} not reached", value=_limit(name, given), reason=reason))
    return lines


def _limit(budget: str, given: Mapping[str, Interval]) -> str:
    """A budget as it was given."""
    quantity = budget if budget in QUANTITIES else _LIMITED[budget]
    return QUANTITIES[quantity].show(given[budget].expected if budget in given else CHINCHILLA)

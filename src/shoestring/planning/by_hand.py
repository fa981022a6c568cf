"""A plan from figures given by hand: for another machine, or before there is one.

The figures are facts, which must satisfy the equations, and budgets, each of which is a limit. The facts are solved
first. Then the run that each budget allows is solved on its own, and the budget with the smallest run binds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.records import Line, Plan
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds, with_name
from shoestring.planning.figures import BUDGETS, FIGURES, MARGIN, QUANTITIES, Relation, relations
from shoestring.planning.lines import repetition_lines

CHINCHILLA = 20.0
"""Tokens per parameter near the optimum of Hoffmann et al. 2022."""
_SAME = 1e-6
"""Relative difference below which two derivations of a quantity agree."""
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
"""Quantities with a field in a plan, and the name of the field."""
_FRACTIONAL = {"seconds", "flops", "epochs", "gigabytes", "tokens_per_second"}


class _Known(NamedTuple):
    value: Interval
    reason: str
    """Empty for a given figure."""


_Values = Mapping[str, _Known]


def plan_by_hand(figures: Mapping[str, Interval | float]) -> Plan:
    """Everything that follows from the figures, which have the names in `FIGURES`.

    Seconds, bytes and FLOPs are plain numbers, and densities are per 10⁹ bytes of text. Raises PlanError if the figures
    contradict each other or nothing follows from them.
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
    _add_corpus_text(values)
    lines = _lines(given, values)
    if "epochs" in values:
        lines += repetition_lines(values["epochs"].value.expected, _full_epochs(values))
    if binding:
        lines += _budget_lines(given, binding, looser, runs)
    found = {field: values[name].value for name, field in _FIELDS.items() if name in values}
    numbers: dict[str, Any] = {field: value.expected for field, value in found.items()}
    for name in numbers.keys() - _FRACTIONAL:
        to_whole = math.ceil if name == "entries" else int
        numbers[name] = to_whole(round(numbers[name], 6))
    ranges = {field: (value.low, value.high) for field, value in found.items() if value.low != value.high}
    return Plan(binding=" and ".join(binding) or "none", **numbers, intervals=ranges, lines=tuple(lines))


def _check(given: Mapping[str, Interval]) -> None:
    for name, value in given.items():
        for end in value:
            if not (math.isfinite(end) and end > 0):
                raise PlanError(f"{option(name)} = {end:g}: must be above zero")
    margin, latents, length = (given.get(name) for name in (MARGIN, "latents", "length"))
    if margin is not None and margin.low < 1:
        raise PlanError(f"--margin = {margin.low:g}: must be at least 1; 1.25 is a quarter more than needed")
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
    count = {name: facts[name].value.expected for name in _WHOLE if name in facts}
    for name, value in count.items():
        if round(value) < 1 or abs(value - round(value)) > _SAME * value:
            raise PlanError(f"{QUANTITIES[name].label}: {facts[name].reason} = {value:g}, which must be a whole number")
    if count.get("batch", 0.0) % count.get("devices", 1.0):
        raise PlanError(
            f"--batch {count['batch']:g} and --devices {count['devices']:g}: a batch divides over its devices"
        )
    room = facts.get("rows_in_memory")
    if room is not None and count.get("per_device", 0.0) > room.value.high:
        raise PlanError(
            f"--per-device {count['per_device']:g} does not fit the memory: {room.reason} = "
            f"{_shown('rows_in_memory', facts)}"
        )
    return facts


def _budgets(given: Mapping[str, Interval], facts: _Values) -> dict[str, _Known]:
    """Each budget as the limit of one quantity."""
    found = {name: _Known(given[name], "") for name in BUDGETS if name in given}
    if "disk" in found and "checkpoints" in given:
        disk, kept = given["disk"].expected, given["checkpoints"].expected
        if kept >= disk:
            raise PlanError(
                f"--disk {Bytes(round(disk))} holds nothing beside --checkpoints {Bytes(round(kept))}; "
                "raise --disk above that"
            )
        found["disk"] = _Known(Interval.exactly(disk - kept), "")
    if (ratio := given.get("tokens_per_parameter")) is not None:
        if "params" not in facts:
            raise PlanError(
                f"--tokens-per-parameter {ratio.expected:g}: of how many parameters? give --params, as in --params 100M"
            )
        found["tokens_per_parameter"] = _target(facts["params"].value, ratio, "as given")
    return found


def _target(params: Interval, ratio: Interval, why: str) -> _Known:
    shown = f"{_with_unit('params', params)} × {ratio.expected:g} tokens per parameter, {why}"
    return _Known(params.times(ratio), shown)


def _solve(known: _Values, equations: Sequence[Relation]) -> dict[str, _Known]:
    """All that follows; raises PlanError where an equation between known quantities does not hold."""
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


def _solved(equation: Relation, name: str, values: _Values) -> _Known:
    """The quantity `name` from an equation in which all others are known."""
    left, right, constant = (equation.result, *equation.divisors), equation.factors, equation.constant
    if name in right:
        left, right, constant = right, left, 1 / constant
    ups, downs = right, tuple(other for other in left if other != name)
    value = Interval.exactly(constant)
    for factor in ups:
        value = value.times(values[factor].value)
    for divisor in downs:
        value = value.over(values[divisor].value)
    return _Known(value, _product(constant, ups, downs, values))


def _product(constant: float, ups: Sequence[str], downs: Sequence[str], values: _Values) -> str:
    """A product as text, "5d × 2.5k tokens/s", without factors of one and changes of unit."""
    factor, divisor = (constant, 1.0) if constant >= 1 else (1.0, 1 / constant)
    single = {name for name in (*ups, *downs) if name == "devices" and values[name].value.expected == 1}
    many = len(ups) + len(downs) > 1
    plain = [f"{factor:g}"] if round(factor) not in (1, 10**9) else []
    plain += [_shown(name, values) for name in ups if not (many and name in single)]
    text = " × ".join(plain)
    text += "".join(f" ÷ {_shown(name, values)}" for name in downs if name not in single)
    return text if round(divisor) in (1, 10**9) else f"{text} ÷ {divisor:g}"


def _shown(name: str, values: _Values) -> str:
    return _with_unit(name, values[name].value)


def _with_unit(name: str, value: Interval) -> str:
    quantity = QUANTITIES[name]
    return with_name(value.show(quantity.show), quantity.unit)


def _agree(equation: Relation, values: _Values) -> None:
    name = equation.result
    stated, computed = values[name], _solved(equation, name, values)
    if not math.isclose(computed.value.expected, stated.value.expected, rel_tol=_SAME):
        first, second = (_with_unit(name, known.value) for known in (stated, computed))
        origin = f" = {stated.reason}" if stated.reason else " as given"
        raise PlanError(
            f"these figures contradict each other: the {QUANTITIES[name].label} is {first}{origin}, and also "
            f"{second} = {computed.reason}; leave one of them out"
        )


def _tightest(runs: Mapping[str, _Values]) -> tuple[list[str], dict[str, str]]:
    """The budgets that bind, and for every other budget the one that is tighter.

    One binds, unless no figure connects two of them, such as steps and a time without a speed.
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
    """The run cut to whole steps, or else rows or tokens, with all its other quantities computed from those."""
    name = next((name for name in ("steps", "samples", "tokens") if name in run), None)
    if name is None:
        return run
    value, reason = run[name]
    if value.expected * (1 + _SAME) < 1:
        raise PlanError(_too_small(budget, given, name, value.expected, run))
    low, middle, high = (max(1.0, float(math.floor(round(end, 6)))) for end in value)
    cut = _solve({**facts, name: _Known(Interval(low, middle, high), reason)}, equations)
    # the reasons are those from the budget to the steps, not back from the steps
    cut = {each: _Known(known.value, run[each].reason if each in run else known.reason) for each, known in cut.items()}
    limited = _LIMITED.get(budget, budget)
    if limited in ("seconds", "flops", "epochs", "stored"):  # shown as given, not rounded down to whole steps
        cut[limited] = run[limited]
    return cut


_KINDS: Mapping[str, Callable[[int], object]] = {"time": Seconds, "flops": Flops, "disk": Bytes}


def _too_small(budget: str, given: Mapping[str, Interval], name: str, value: float, run: _Values) -> str:
    """The message for a budget below one step, row or token, with the least budget that allows one."""
    limit = given[budget].expected if budget in given else CHINCHILLA
    least = limit / value
    if budget in ("epochs", "tokens_per_parameter"):
        enough = f"{math.ceil(least * 1e4) / 1e4:g}"
    else:
        enough = str(_KINDS.get(budget, Count)(math.ceil(least)))
    one = {"steps": "step", "samples": "row", "tokens": "token"}[name]
    size = f" of {_shown('batch_tokens', run)}" if name == "steps" and "batch_tokens" in run else ""
    return (
        f"nothing fits: {option(budget)} {limit:g} is {value:.2g} of one {one}{size}; the least that fits is "
        f"{option(budget)} {enough}"
    )


def _lines(given: Mapping[str, Interval], values: dict[str, _Known]) -> list[Line]:
    """A line per derived quantity; adds the margin and the checkpoints to `values`."""
    if MARGIN in given:
        _add_margin(values, given[MARGIN])
    if "stored" in values and "checkpoints" in given:
        value, reason = values["stored"]
        total = Interval(*(end + given["checkpoints"].expected for end in value))
        values["stored"] = _Known(total, reason and f"{reason}, and the checkpoints")
    hidden = set()
    if "speed" in values and "tokens_per_second" in values:
        value, reason = values["speed"]
        if values["devices"].value.expected > 1:
            values["speed"] = _Known(value, f"{reason}; communication is not counted")
        else:  # the given speed of the only device
            hidden = {"speed"}
    lines = [
        Line(quantity=label, value=values[name].value.show(show), reason=values[name].reason)
        for name, (label, show, _) in QUANTITIES.items()
        if name in values and values[name].reason and name not in hidden
    ]
    if "stored" in values:
        reason = "rows of a stream (data.stream) are computed as they are read, and never stored"
        lines.append(Line(quantity="disk of a stream", value="none", reason=reason))
    if not lines:
        raise PlanError(
            "nothing follows from these figures; give a recipe, or for example --time 5d --tokens-per-second 2500, "
            "or --per-device 4 --accumulate 4 --steps 1000"
        )
    return lines


def _full_epochs(values: _Values) -> float:
    """Epochs that predict every position once."""
    return values["latent_epochs"].value.expected if "latent_epochs" in values else 1.0


def _add_corpus_text(values: dict[str, _Known]) -> None:
    """The text and entries of an available corpus that the run reads: all of it from one epoch on."""
    if not {"corpus", "epochs"} <= values.keys() or "gigabytes" in values:
        return
    corpus, epochs = values["corpus"].value, values["epochs"].value
    share = Interval(*(min(1.0, end) for end in epochs))
    part = "" if share.low == 1 else f" × {_with_unit('epochs', share)}"
    text = Interval.exactly(1e-9).times(corpus).times(share)
    values["gigabytes"] = _Known(text, f"of the corpus: {_with_unit('corpus', corpus)}{part}")
    if "entries_per_gb" in values:
        entries = text.times(values["entries_per_gb"].value)
        reason = f"{_shown('gigabytes', values)} × {_shown('entries_per_gb', values)}"
        values["entries"] = _Known(entries, reason)


def _add_margin(values: dict[str, _Known], margin: Interval) -> None:
    """More data than needed: text and its entries, or one entry per row where the text is unknown."""
    shown = f" × {margin.expected:g} margin"
    if "corpus" in values:  # there is no more text to get
        return
    if "gigabytes" in values:
        for name in {"gigabytes", "entries"} & values.keys():
            values[name] = _Known(values[name].value.times(margin), values[name].reason + shown)
    elif "samples" in values:
        values["entries"] = _Known(values["samples"].value.times(margin), _shown("samples", values) + shown)


def _budget_lines(
    given: Mapping[str, Interval], binding: Sequence[str], looser: Mapping[str, str], runs: Mapping[str, _Values]
) -> list[Line]:
    """What binds, and what the other budgets would take."""

    def limit(budget: str) -> str:
        quantity = budget if budget in QUANTITIES else _LIMITED[budget]
        return QUANTITIES[quantity].show(given[budget].expected if budget in given else CHINCHILLA)

    reason = " and ".join(f"{option(name)} {limit(name)}" for name in binding)
    if len(binding) > 1:
        reason = f"nothing given connects {reason}, as a speed, a batch or --length would"
    lines = [Line(quantity="binding", value=" and ".join(binding), reason=reason)]
    for name, tighter in looser.items():
        quantity = _LIMITED.get(tighter, tighter)
        shown = f"it would take {_shown(quantity, runs[name])}" if quantity in runs[name] else "it would take more"
        reason = f"{option(tighter)} {limit(tighter)} is reached first; {shown}"
        lines.append(Line(quantity=f"{name} not reached", value=limit(name), reason=reason))
    return lines

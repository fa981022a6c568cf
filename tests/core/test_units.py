"""Quantities: what is read, what is refused, exact text and rounded text."""

import re
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoestring.core.units import Bytes, Count, Flops, Seconds, counted, rate, with_name

unhurried = settings(deadline=None)

HUGE = 10**300
wholes = st.integers(min_value=0, max_value=HUGE) | st.integers(min_value=0, max_value=10**7)
amounts = st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**9).map(float)
scaled = st.builds(lambda n, unit: n * unit, st.integers(1, 10**6), st.sampled_from([1, 10**3, 2**10, 10**9, 2**40]))
EXAMPLE = {Seconds: "90s", Bytes: "500GB", Count: "200M", Flops: "1e21"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5d", 432_000),
        ("36h", 129_600),
        ("90s", 90),
        ("2h30m", 9_000),
        ("2h 30m", 9_000),
        ("1d2h3m4s", 93_784),
        ("250ms", 0.25),
        ("1.5h", 5_400),
        ("10min", 600),
        ("20us", 0.00002),
        ("1e3s", 1_000),
        (" 5 d ", 432_000),
        ("1_000s", 1_000),
        ("1-12:00:00", 129_600),
        ("1-12:00", 129_600),
        ("12:00:00", 43_200),
        ("01:02:03", 3_723),
        ("90:30", 5_430),
    ],
)
def test_times_are_read(text: str, seconds: float) -> None:
    value = Seconds.parse(text)
    assert isinstance(value, Seconds)
    assert value == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500GB", 500_000_000_000),
        ("1GiB", 1_073_741_824),
        ("1.5TB", 1_500_000_000_000),
        ("2KiB", 2_048),
        ("2kB", 2_000),
        ("2KB", 2_000),
        ("3PB", 3 * 10**15),
        ("7B", 7),
        ("0.5 MiB", 524_288),
        ("0B", 0),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    value = Bytes.parse(text)
    assert isinstance(value, Bytes)
    assert value == size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("200M", 200_000_000),
        ("2.4B", 2_400_000_000),
        ("2.4G", 2_400_000_000),
        ("1e21", 10**21),
        ("64k", 64_000),
        ("64K", 64_000),
        ("64Ki", 65_536),
        ("1Mi", 1_048_576),
        ("1T", 10**12),
        ("12", 12),
        ("1_000", 1_000),
        ("12.5e1", 125),
        ("0", 0),
    ],
)
def test_counts_are_read(text: str, count: int) -> None:
    value = Count.parse(text)
    assert isinstance(value, Count)
    assert value == count


@pytest.mark.parametrize(
    ("text", "flops"),
    [("1e21", 1e21), ("3.5P", 3.5e15), ("2.1e18 FLOP", 2.1e18), ("7 TFLOPs", 7e12), ("1Z", 1e21), ("5", 5.0)],
)
def test_computation_is_read(text: str, flops: float) -> None:
    value = Flops.parse(text)
    assert isinstance(value, Flops)
    assert value == flops


@unhurried
@given(amounts)
@example(1e-300)
@example(5e-324)
@example(1.7976931348623157e308)
@example(59.99999999999999)
@example(86400.0)
@example(0.1)
def test_text_of_a_time_reads_back_to_the_same_time(value: float) -> None:
    assert Seconds.parse(str(Seconds(value))) == value


@unhurried
@given(amounts)
@example(1e100)
@example(1e-100)
@example(1.7976931348623157e308)
@example(5e-324)
def test_text_of_computation_reads_back_to_the_same_amount(value: float) -> None:
    assert Flops.parse(str(Flops(value))) == value


@unhurried
@given(wholes | scaled)
@example(1023)
@example(10**15 + 1)
def test_text_of_a_size_reads_back_to_the_same_size(value: int) -> None:
    assert Bytes.parse(str(Bytes(value))) == value


@unhurried
@given(wholes | scaled)
@example(1_230_000)
@example(1_234_000)
@example(99_999)
def test_text_of_a_count_reads_back_to_the_same_count(value: int) -> None:
    assert Count.parse(str(Count(value))) == value


@pytest.mark.parametrize("kind", [Seconds, Bytes, Count, Flops])
@pytest.mark.parametrize(
    "text", ["", " ", "-5", "-5s", "-1GB", "nan", "inf", "-inf", "five", "1,5", "1..5", "s", "+5s"]
)
def test_what_is_no_quantity_is_refused_with_an_example(kind: type, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(EXAMPLE[kind])):
        kind.parse(text)


@pytest.mark.parametrize("kind", [Seconds, Bytes])
@pytest.mark.parametrize("text", ["120", "1e3", "0"])
def test_times_and_sizes_without_a_unit_are_refused_with_an_example(kind: type, text: str) -> None:
    with pytest.raises(ValueError, match=f"no unit.*{EXAMPLE[kind]}"):
        kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "text", "units"),
    [
        (Seconds, "5y", "d, h, m, s"),
        (Seconds, "2h30x", "d, h, m, s"),
        (Seconds, "5D", "d, h, m, s"),
        (Bytes, "5Gb", "GB, MB"),
        (Bytes, "5G", "GB, MB"),
        (Count, "5x", "T, B, M, k"),
        (Count, "5m", "T, B, M, k"),
        (Flops, "5Q", "Z, E, P"),
    ],
)
def test_an_unknown_unit_is_refused_with_the_units_there_are(kind: type, text: str, units: str) -> None:
    with pytest.raises(ValueError, match=f"unknown unit.*{units}"):
        kind.parse(text)


@pytest.mark.parametrize("kind", [Seconds, Bytes, Count, Flops])
@pytest.mark.parametrize("unit", ["", "s", "B", "M"])
def test_an_exponent_beyond_all_bounds_is_refused_and_never_computed(kind: type, unit: str) -> None:
    with pytest.raises(ValueError, match="1e999999999"):
        kind.parse(f"1e999999999{unit}")


@pytest.mark.parametrize(("kind", "unit"), [(Seconds, "s"), (Seconds, ":00:00"), (Flops, ""), (Flops, "Z")])
def test_more_digits_than_a_float_holds_are_refused(kind: type, unit: str) -> None:
    with pytest.raises(ValueError, match="000"):
        kind.parse("1" + "0" * 400 + unit)


@pytest.mark.parametrize(("kind", "unit"), [(Bytes, "B"), (Count, "")])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_whole_number_is_refused_or_can_be_shown(kind: type, unit: str, digits: int) -> None:
    try:
        value = kind.parse("9" * digits + unit)
    except ValueError:
        return
    assert kind.parse(str(value)) == value
    assert value.short()


@pytest.mark.parametrize(("kind", "text"), [(Count, "1.5"), (Count, "1e-3"), (Bytes, "0.5B"), (Bytes, "1.0001kB")])
def test_a_fraction_of_a_whole_thing_is_refused(kind: type, text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        kind.parse(text)


SCALES = {
    Seconds: {"d": "86400", "h": "3600", "m": "60", "s": "1", "ms": "1e-3", "us": "1e-6"},
    Bytes: {"PB": "1e15", "TB": "1e12", "GB": "1e9", "MB": "1e6", "kB": "1e3", "B": "1"},
    Count: {"T": "1e12", "B": "1e9", "M": "1e6", "k": "1e3", "": "1"},
    Flops: {"Z": "1e21", "E": "1e18", "P": "1e15", "T": "1e12", "G": "1e9", "M": "1e6", "k": "1e3", "": "1"},
}
PART = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?) ?([A-Za-z]*)")


def shown(kind: type, text: str) -> Decimal:
    """What a reader takes the short text for; independent of the package's parser."""
    parts = text.removesuffix("FLOP").strip().split(" ") if kind is Seconds else [text.removesuffix("FLOP").strip()]
    total = Decimal(0)
    for part in parts:
        match = PART.fullmatch(part)
        assert match, text
        total += Decimal(match[1].replace(",", "")) * Decimal(SCALES[kind][match[2]])
    return total


def within_half_a_percent(kind: type, value: float) -> bool:
    exact = Decimal(value)
    return abs(shown(kind, kind(value).short()) - exact) <= exact * Decimal("0.00500000001")


@unhurried
@given(wholes | scaled)
@example(999_499)
@example(999_500)
@example(99_999)
@example(0)
def test_short_counts_are_within_half_a_percent(value: int) -> None:
    assert within_half_a_percent(Count, value)


@unhurried
@given(wholes | scaled)
@example(999)
@example(10**15 - 1)
@example(0)
def test_short_sizes_are_within_half_a_percent(value: int) -> None:
    assert within_half_a_percent(Bytes, value)


@unhurried
@given(amounts)
@example(999.9996)
@example(1e21)
@example(1e308)
def test_short_computation_is_within_half_a_percent(value: float) -> None:
    assert within_half_a_percent(Flops, value)


@unhurried
@given(st.floats(1e-6, 60) | st.floats(1e-6, 1e-3))
@example(0.0001234)
@example(0.9995)
@example(59.95)
def test_short_times_below_a_minute_are_within_half_a_percent(value: float) -> None:
    assert within_half_a_percent(Seconds, value)


@unhurried
@given(st.floats(60, 1e12))
@example(3599.5)
@example(86399.9)
@example(86400 * 2 - 1.0)
def test_short_times_from_a_minute_up_name_two_units_and_are_right_to_half_of_the_smaller(value: float) -> None:
    text = Seconds(value).short()
    smaller = 3600 if value >= 86400 else 60 if value >= 3600 else 1
    assert len(text.split()) <= 2
    assert abs(shown(Seconds, text) - Decimal(value)) <= Decimal(smaller) / 2 + Decimal("0.5")


@unhurried
@given(amounts)
@example(5e-324)
@example(1.7976931348623157e308)
def test_any_time_and_any_rate_can_be_shown(value: float) -> None:
    assert re.fullmatch(r"[0-9][0-9.,]*[a-z]+( [0-9]+[a-z]+)?", Seconds(value).short())
    assert rate(value, "tokens/s").endswith(" tokens/s")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Seconds(100_800), "1d 4h"),
        (Seconds(125), "2m 5s"),
        (Seconds(1.4), "1.4s"),
        (Seconds(0.012), "12ms"),
        (Seconds(0), "0s"),
        (Bytes(1_230_000_000), "1.23 GB"),
        (Count(12_345), "12,345"),
        (Count(1_234_567), "1.23M"),
        (Flops(2.1e18), "2.1 EFLOP"),
    ],
)
def test_short_text_looks_as_documented(value: Seconds | Bytes | Count | Flops, text: str) -> None:
    assert value.short() == text


def test_a_rate_is_shown_with_three_digits() -> None:
    assert rate(15_234, "tokens/s") == "15.2k tokens/s"


@pytest.mark.parametrize(
    ("number", "names", "shown"),
    [("1", "epochs", "1 epoch"), ("1.5", "epochs", "1.5 epochs"), ("1", "passes", "1 pass"), ("0", "rows", "0 rows"),
     ("1", "rows per micro-batch", "1 row per micro-batch"), ("1", "entries", "1 entry"), ("3", "", "3")],
)  # fmt: skip
def test_one_is_singular(number: str, names: str, shown: str) -> None:
    assert with_name(number, names) == shown
    assert [counted(n, "entry", "entries") for n in (0, 1, 2048)] == ["0 entries", "1 entry", "2,048 entries"]


@pytest.mark.parametrize(
    ("number", "shown"), [(100264 * 1024, "102.670336MB"), (2**29, "512MiB"), (103 * 10**6, "103MB")]
)
def test_a_size_is_printed_as_people_write_it_and_read_back(number: int, shown: str) -> None:
    assert str(Bytes(number)) == shown
    assert Bytes.parse(shown) == number

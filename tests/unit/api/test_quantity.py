"""Quantities are those that Kubernetes' own parser takes: the corpus follows its tests and its documented grammar."""

import time
from decimal import Decimal

import pytest

from caphv.api.quantity import LARGEST, quantity

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-0", 0), ("0Ki", 0), ("12", 12), ("+12", 12), ("-12", -12), (".5", Decimal("0.5")), ("5.", 5),
        ("0.5Gi", 512 * 1024**2), ("4Gi", 4 * 1024**3), ("1.5k", 1500), ("1E", 10**18), ("1e3", 1000), ("1E3", 1000),
        ("1E+3", 1000), ("1e-3", Decimal("0.001")), ("100m", Decimal("0.1")), ("1n", Decimal("1e-9")),
        ("1e-400", Decimal("1e-9")), ("-1e-400", Decimal("-1e-9")), ("0e400", 0),
        ("8Ei", LARGEST), ("1e400", LARGEST), ("-1e400", -LARGEST), ("9" * 65, LARGEST), ("1e" + "9" * 60, LARGEST),
        (0, 0), (7, 7), (10**30, LARGEST), (-(10**4000), -LARGEST),
    ],
)  # fmt: skip
def test_quantities_of_the_parser(text: str | int, number: int | Decimal) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "+", ".", "Ki", "1e", "1e+", "4e1.5", "1e.5", "1ki", "1K", "1.1.1", "1 Gi", " 1", "1\n", "0x10",
     "1_000", "1GiB", "8GB", "1Mi5", "--1", "1,5", "\u0661Gi", "NaN", "inf", True, None, 1.5, [], "1" * 5000],
)  # fmt: skip
def test_what_is_not_a_quantity(text: object) -> None:
    assert quantity(text) is None


def test_hostile_quantities_take_no_time() -> None:
    started = time.process_time()
    for text in ("9" * 4096, "." + "0" * 4000 + "1", "1e" + "9" * 4000, "1" * 10**6):
        quantity(text)
    quantity(10**100_000)
    assert time.process_time() - started < 1

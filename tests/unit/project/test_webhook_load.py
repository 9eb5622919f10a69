"""The webhook benchmark sends all reviews, whatever the numbers of clients and processes are."""

import pytest

from tools.bench.webhook import share_load, split_evenly

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [(8, 4, [2, 2, 2, 2]), (10, 4, [3, 3, 2, 2]), (2, 3, [1, 1, 0]), (0, 2, [0, 0])],
)
def test_parts_differ_by_at_most_one(total: int, parts: int, expected: list[int]) -> None:
    assert split_evenly(total, parts) == expected


@pytest.mark.parametrize(
    ("clients", "reviews", "generators"),
    [(1, 10_000, 4), (8, 10_001, 3), (64, 10_000, 1), (2, 5, 2)],
)
def test_all_reviews_are_sent(clients: int, reviews: int, generators: int) -> None:
    shares = share_load(clients, reviews, generators)

    assert sum(client_count for client_count, _ in shares) == clients
    assert sum(review_count for _, review_count in shares) == reviews
    assert all(client_count for client_count, _ in shares)

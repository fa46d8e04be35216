"""Divisors of a length: the numbers of equal parts that it can be cut into."""

import math


def divisors(n: int) -> list[int]:
    """All divisors of a number but 1, in order.

    Found in pairs, up to the root: a batch may have a billion rows.
    """
    low = [c for c in range(1, math.isqrt(n) + 1) if n % c == 0]
    return sorted({*low, *(n // c for c in low)} - {1})

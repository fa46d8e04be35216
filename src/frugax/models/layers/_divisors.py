"""Check that one setting of a layer divides another."""

from frugax.models.graph import Layer


def check_divides(layer: Layer, name: str, of: str) -> None:
    """Check that one field divides another; the error lists divisors that are close."""
    part, total = getattr(layer, name), getattr(layer, of)
    if part is not None and total is not None and total % part:
        near = [n for n in range(1, total + 1) if total % n == 0]
        near.sort(key=lambda n: abs(n - part))
        close = ", ".join(map(str, sorted(near[:4])))
        raise ValueError(
            f"{type(layer).__name__}.{name}={part} does not divide {of}={total}; of "
            f"the numbers that do, {close} are the closest."
        )

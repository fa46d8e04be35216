"""Refuse weights that were rounded to integers before: their steps must stay exact.

Files of quantised models hold integers beside the steps that they count in. The
integers are random bits, which no codec shortens, so all of a budget would be met by
rounding the steps, and with them every weight. Names of the pairs are those of AutoGPTQ
and AutoAWQ (`qweight`, `scales`), bitsandbytes (`weight`, `weight.absmax` or `SCB`),
AQLM (`codes`, `scales`), compressed-tensors (`weight_packed`, `weight_scale`), float8
checkpoints (`weight`, `weight_scale_inv`) and MXFP4 (`gate_up_proj_blocks`,
`gate_up_proj_scales`).
"""

from collections.abc import Iterable, Iterator

from frugax.errors import UnsupportedFileError

# Not of 64 bits: those are indices, beside such scales as Swin's `logit_scale`.
_INTEGERS = tuple(f"{u}int{bits}" for bits in (4, 8, 16, 32) for u in ("", "u"))
_SMALL_FLOATS = ("float8", "float4")
_STEPS = ("scale", "absmax", "scb")


def refuse_rounded(tensors: Iterable[tuple[str, str, int]]) -> None:
    """Raise if a matrix of integers stands beside its steps.

    Args:
        tensors: the name, dtype and number of axes of each.

    Raises:
        UnsupportedFileError: a tensor was rounded before.
    """
    tensors = tuple(tensors)
    steps: dict[str, str] = {}  # by what they may be the steps of
    for name, _, _ in tensors:
        if any(word in name.rpartition(".")[2].lower() for word in _STEPS):
            for owner in _owners(name):
                steps.setdefault(owner, name)
    for name, dtype, axes in tensors:
        if axes < 2 or not (dtype in _INTEGERS or dtype.startswith(_SMALL_FLOATS)):
            continue
        for found in filter(None, map(steps.get, (name, *_owners(name)))):
            if found != name:
                raise UnsupportedFileError(
                    f"the weights {name!r} ({dtype}) were rounded before, and "
                    f"{found!r} are their steps, which another rounding would ruin: "
                    "take the weights that they were made from, or compress these with "
                    "max_abs=0, which keeps every bit."
                )


def _owners(name: str) -> Iterator[str]:
    """Yield the module of a tensor, and its name without the last word."""
    for mark in "._":
        if owner := name.rpartition(mark)[0]:
            yield owner

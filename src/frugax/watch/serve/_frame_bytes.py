"""A frame as the page reads it: a header of JSON and raw numbers.

A browser reads a frame of a million numbers into a typed array without parsing it.
"""

import json

import numpy as np
from jaxtyping import Shaped

_MAX_PIXELS = 2**21  # of larger frames every n-th row and column is sent


def encode_frame(number: int, step: int, array: Shaped[np.ndarray, "..."]) -> bytes:
    """Encode a frame: its JSON header, padded to 8 bytes, then its numbers."""
    shape = list(array.shape)
    every = 1
    if array.ndim >= 2:
        while array[..., ::every, ::every].size > _MAX_PIXELS:
            every += 1
        if array.ndim > 2 and array.shape[-1] <= 4:  # it may hold colour channels
            array = array[..., ::every, ::every, :]
        else:
            array = array[..., ::every, ::every]
    kind = array.dtype.kind
    if kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.itemsize == 8 or kind not in "iuf" or array.dtype == np.float16:
        # JavaScript has no typed arrays for these that charts can use.
        array = array.astype(np.float32)
    about = {
        "number": number,
        "step": step,
        "shape": list(array.shape),
        "of": shape,
        "every": every,
        "dtype": array.dtype.newbyteorder("<").str,
        "bool": kind == "b",
        "whole": kind in "iub",
    }
    head = json.dumps(about).encode()
    # JavaScript views an ArrayBuffer as a typed array only at a multiple of the item
    # size; 8 suits all of them.
    head += b" " * (-(len(head) + 4) % 8)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return len(head).to_bytes(4, "little") + head + data

"""What checks types at run time while the tests run; see addopts in pyproject.toml.

Only packages that say the shapes and dtypes of arrays are checked: a quarter of the
tests' time went into checking the others, which pyright does as well.
"""

import beartype

typechecked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

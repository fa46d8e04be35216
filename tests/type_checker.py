"""What checks types at run time in `make thorough`; see TYPED in the Makefile.

It takes a third of the time of tests that compute much, so once a day must do. Only
packages that say the shapes and dtypes of arrays are checked, pyrefly checks the rest.
"""

import beartype

typechecked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

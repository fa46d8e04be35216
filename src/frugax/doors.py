"""Front doors whose rooms are entered only when somebody asks for what is in them.

A module's own `__getattr__` (PEP 562) is called for names that it does not have yet. So
a package can list what it offers and import none of it. Type checkers are told by
imports under `if TYPE_CHECKING`.
"""

import importlib
import sys
from collections.abc import Mapping


def open_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """What a package offers under a name; imported now.

    The package has it from then on, so the next look-up does not come here.

    Args:
        package: its name.
        homes: for each name the module inside of the package that has it; a name that
            is its own home is a module itself.
        name: what is asked for.

    Raises:
        AttributeError: it offers no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = importlib.import_module(f"{package}.{homes[name]}")
    value: object = home if homes[name] == name else getattr(home, name)
    setattr(sys.modules[package], name, value)
    return value

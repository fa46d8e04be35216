"""The nets in frugax."""

from .contestant import Contestant
from .nets import Net


def contestants(net: Net) -> dict[str, Contestant]:
    return {}

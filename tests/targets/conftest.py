"""Skip tests whose compiler is not installed, with the reason."""

import pytest

from frugax.targets import installed_compilers


def _compiler(platform: str) -> None:
    compiler = next(c for c in installed_compilers() if c.platform == platform)
    if compiler.problem:
        pytest.skip(compiler.problem)


@pytest.fixture
def gpu_compiler():
    _compiler("gpu")


@pytest.fixture
def tpu_compiler():
    _compiler("tpu")

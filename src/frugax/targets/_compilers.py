"""Find and load XLA's compilers for GPUs and TPUs without a GPU or a TPU."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax

from frugax.errors import MissingExtraError

# Kept off Python's path until a target is compiled for: a plug-in on the path makes
# every start of JAX look for a GPU and log that it found no driver.
_FOLDER = Path(sys.prefix) / "compilers"
# libtpu asks the cloud's metadata server for all of this where it is not set.
_TPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Without it a lock file refuses a second process.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_CUDA_SETTINGS = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_loading = threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetCompiler:
    """One of XLA's compilers, as it is installed here.

    Attributes:
        platform: the devices it compiles for.
        version: of its package; None if it is missing.
        problem: why it cannot be used, with the remedy; empty if it can.
    """

    platform: Literal["gpu", "tpu"]
    version: str | None
    problem: str


def installed_compilers() -> tuple[TargetCompiler, ...]:
    """The compilers for GPUs and TPUs, found but not loaded."""
    found: list[TargetCompiler] = []
    platforms: tuple[Literal["gpu", "tpu"], ...] = ("gpu", "tpu")
    for platform in platforms:
        versions = {name: _version(name) for name in _packages(platform)}
        problem = _find_problem(platform, versions)
        version = next(iter(versions.values()))
        found.append(
            TargetCompiler(platform=platform, version=version, problem=problem)
        )
    return tuple(found)


def load_compiler(platform: str) -> str:
    """Load the compiler for a platform; return its version."""
    compiler = next(c for c in installed_compilers() if c.platform == platform)
    if compiler.problem:
        raise MissingExtraError(compiler.problem)
    with _loading:
        _load(platform)
    return str(compiler.version)


def compiler_options(platform: str) -> dict[str, Any]:
    """Options without which this compiler asks for a device."""
    if platform != "gpu":
        return {}
    # Autotuning runs candidates of each matrix product on the device.
    options: dict[str, Any] = {"xla_gpu_autotune_level": "0"}
    cuda = _find_cuda()
    for root in _search_path():
        folder = root / "nvidia" / cuda.nvcc_folder
        if (folder / "bin" / "ptxas").is_file():
            options["xla_gpu_cuda_data_dir"] = str(folder)
            break
    return options


@dataclasses.dataclass(frozen=True, slots=True)
class _Cuda:
    """One generation of CUDA, by the names of its packages.

    Attributes:
        plugin: JAX's plug-in; its modules are called so, with underscores.
        packages: that hold ptxas and libdevice.
        nvcc_folder: where these packages put them, under `nvidia`.
        extra: of frugax, which installs all of it.
    """

    plugin: str
    packages: tuple[str, ...]
    nvcc_folder: str
    extra: str

    @property
    def needs(self) -> tuple[str, ...]:
        """All packages, that of the version first."""
        pjrt = self.plugin.replace("-plugin", "-pjrt")
        return (self.plugin, pjrt, *self.packages)


_CUDAS = (
    _Cuda("jax-cuda12-plugin", ("nvidia-cuda-nvcc-cu12",), "cuda_nvcc", "cuda-targets"),
    _Cuda(
        "jax-cuda13-plugin",
        ("nvidia-cuda-nvcc", "nvidia-nvvm"),
        "cu13",
        "cuda13-targets",
    ),
)


def _find_cuda() -> _Cuda:
    """The generation whose plug-in is installed; the first where none is."""
    found = (cuda for cuda in _CUDAS if _version(cuda.plugin) is not None)
    return next(found, _CUDAS[0])


def _packages(platform: str) -> tuple[str, ...]:
    if platform == "gpu":
        return _find_cuda().needs
    return ("libtpu",)


def _find_problem(platform: str, versions: dict[str, str | None]) -> str:
    extra = _find_cuda().extra if platform == "gpu" else "tpu-targets"
    install = f'pip install "frugax[{extra}]"'
    if missing := [name for name, version in versions.items() if version is None]:
        return (
            f"compiling for {platform.upper()}s needs {' and '.join(missing)}: "
            f"{install}"
        )
    for name, version in versions.items():
        if name.startswith("jax-") and version != jax.__version__:
            return (
                f"{name} {version} does not belong to jax {jax.__version__}: "
                f'pip install "{name}=={jax.__version__}"'
            )
    return ""


def _search_path() -> list[Path]:
    return [Path(p) for p in sys.path if p] + [_FOLDER]


def _version(package: str) -> str | None:
    places = [str(p) for p in _search_path()]
    found = importlib.metadata.distributions(name=package, path=places)
    return next((d.version for d in found), None)


@functools.cache
def _load(platform: str) -> None:
    # JAX chooses its default backend first, so that the plug-in is never one of them.
    jax.devices()
    if platform == "tpu":
        places = [p / "libtpu" / "libtpu.so" for p in _search_path()]
        library = next(str(p) for p in places if p.is_file())
        with _settings({**_TPU_SETTINGS, "TPU_LIBRARY_PATH": library}), _no_stderr():
            from jax.experimental import topologies

            # The settings are read when the library is loaded, so it is loaded here.
            topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
        return
    # The compiler warns on stderr that a program is too large, beside our own answer.
    # JAX sets "1"; another value is the user's, or that of a command's --verbose. It is
    # read at the first message.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with _on_path(_FOLDER), _settings(_CUDA_SETTINGS), _no_stderr():
        _initialise_cuda()


def _initialise_cuda() -> None:
    from jax.experimental import topologies

    package = _find_cuda().plugin.replace("-", "_")
    name = _find_cuda().plugin.removeprefix("jax-").removesuffix("-plugin")
    plugin = f"jax_plugins.xla_{name}"
    for module in (package, plugin):
        # The commands hide both from JAX where there is no device.
        if getattr(sys.modules.get(module), "__file__", None) is None:
            sys.modules.pop(module, None)
    try:  # where there is a GPU, JAX has registered the plug-in itself
        topologies.get_topology_desc("", "cuda")
    except NotImplementedError:
        importlib.import_module(plugin).initialize()
    except Exception:  # a topology needs more arguments, but the plug-in is there
        return
    # jaxlib has looked for these modules as it was imported, before the folder was on
    # the path. Solvers and sparse products are custom calls that they register.
    for name in ("_solver", "_hybrid", "_linalg", "_prng", "_rnn", "_sparse"):
        module = importlib.import_module(f"{package}.{name}")
        for call, handler in module.registrations().items():
            # Those without the ending belong to an interface that JAX no longer uses.
            if call.endswith("_ffi") or name == "_hybrid":
                with contextlib.suppress(Exception):  # registered by jaxlib already
                    jax.ffi.register_ffi_target(call, handler, platform="CUDA")


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Import from a folder for a while.

    Processes that `multiprocessing` starts, such as a data loader's, get this one's
    path, and JAX would look for a GPU in each.
    """
    if str(folder) in sys.path:
        yield
        return
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextlib.contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables while a library is loaded; the user's own win."""
    added = {k: v for k, v in values.items() if k not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard the output of C++: the libraries log that there is no device."""
    sys.stderr.flush()
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)

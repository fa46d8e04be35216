"""Build the release and try it as a user would: in clean environments, elsewhere.

    python scripts/release_check.py            # build, check and test everything
    python scripts/release_check.py --quick    # without the contract tests

Needs the programs of `scripts/tools release`, whose folder is $RELEASE_TOOLS, and uv.
Writes the wheel, the source distribution, the SBOM (CycloneDX) and a summary to dist/.
The exit status is 1 if any check failed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
# Files that a wheel must have besides its modules: without them frugax imports, and
# then fails at a user's first report, plan or campaign.
DATA_FILES = (
    "frugax/py.typed",
    "frugax/__init__.pyi",
    "frugax/causal/surrogate/default.fxz",
    "frugax/report/static/page.css",
    "frugax/run/schemas/receipt.json",
    "frugax/watch/serve/static/index.html",
)
# A stranger's first minute; it runs in an empty folder.
FIRST_MINUTE = """
import pathlib, jax, jax.numpy as jnp, frugax as fx
assert "site-packages" in fx.__file__, fx.__file__
weights = [jnp.eye(64) for _ in range(12)]
x = jnp.ones((512, 64))
def loss(weights, x):
    for w in weights:
        x = x + jax.nn.gelu(x @ w)
    return jnp.mean(x**2)
plan = fx.remat.plan(loss, fx.MemoryBudget("1.5MiB"), example_args=(weights, x))
step = fx.remat.apply(loss, plan)
report = step.report(weights, x)
assert report.verdict == "kept", report
tree = {"w": jax.random.normal(jax.random.key(0), (256, 256))}
saved = fx.compress.save("model.fxz", tree, fx.SizeBudget(ratio=6))
assert pathlib.Path("model.fxz").stat().st_size <= 256 * 256 * 4 / 6
with fx.compress.open("model.fxz") as file:
    assert file["w"].shape == (256, 256)
print(report)
"""


def main() -> None:
    """Run every check and exit."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--quick", action="store_true", help="no contract tests")
    quick = ask.parse_args().quick
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = settings["project"]["version"]
    rows: list[tuple[str, ...]] = []

    def show(*row: str) -> None:
        # At once, as the whole takes minutes.
        rows.append(row)
        print("{:19}  {:11}  {}".format(*row), flush=True)

    wheel, sdist = build(version)
    show(*check_contents(wheel, sdist))
    show(*check_metadata(wheel, sdist))
    with tempfile.TemporaryDirectory(prefix="frugax-release-") as folder:
        found = find_pythons()
        for short in PYTHONS:
            if short not in found:
                show(f"Python {short}", "not checked", "not on this machine")
                continue
            for artefact in (wheel, sdist):
                home = Path(folder) / f"{short}-{artefact.suffix[1:]}"
                contracts = artefact == wheel and not quick
                show(*try_out(found[short], artefact, home, contracts=contracts))
        python = next(iter(found.values()))
        show(*check_targets_extra(python, wheel, Path(folder) / "targets"))
        show(*write_sbom(Path(folder), version, found))
    show(*compare_with_last_tag())
    summary = [dict(zip(("check", "verdict", "detail"), r, strict=True)) for r in rows]
    (DIST / "release.json").write_text(json.dumps(summary, indent=1) + "\n")
    raise SystemExit(any(verdict == "failed" for _, verdict, _ in rows))


def program(name: str) -> str:
    """The path of a tool of the release's environment."""
    return str(
        Path(os.environ.get("RELEASE_TOOLS", Path(sys.executable).parent)) / name
    )


def find_uv() -> str:
    """The path of uv."""
    return shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")


def call(*command: str | Path, cwd: Path | None = None) -> tuple[int, str]:
    """Run a command outside of this checkout's settings; its status and its output."""
    # PYTHONPATH would put the source tree before the installed package.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"UV_SYSTEM_CERTS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd or ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def build(version: str) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it."""
    for old in DIST.glob("frugax-*"):
        old.unlink()
    code, out = call(program("pyproject-build"), "--installer", "uv", "--outdir", DIST)
    if code:
        raise SystemExit(f"the build failed:\n{out}")
    wheel = DIST / f"frugax-{version}-py3-none-any.whl"
    return wheel, DIST / f"frugax-{version}.tar.gz"


def check_contents(wheel: Path, sdist: Path) -> tuple[str, str, str]:
    """The wheel holds each module and data file of the source, and nothing else."""
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "frugax").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {"frugax/errors.md"}  # from docs/, for `frugax explain-error`
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        licences = [n for n in archive.namelist() if n.endswith("licenses/LICENSE")]
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wrong = sorted(source ^ names)[:3] or sorted(set(DATA_FILES) - names)
    wrong += [n for n in ("tests/conftest.py", "docs/index.md") if n not in packed]
    wrong += ["the licence"] * (not licences)
    detail = f"{len(names)} files, {wheel.stat().st_size / 1e6:.2f} MB"
    if wrong:
        return "contents", "failed", f"missing or too many: {', '.join(wrong)}"
    return "contents", "passed", detail


def check_metadata(wheel: Path, sdist: Path) -> tuple[str, str, str]:
    """`twine check --strict`: the index would accept metadata and README."""
    code, out = call(program("twine"), "check", "--strict", wheel, sdist)
    if code:
        return "twine check", "failed", last_line(out)
    return "twine check", "passed", "metadata and README of both files"


def find_pythons() -> dict[str, Path]:
    """The interpreters on this machine, by short version; shims are asked to run."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for short in PYTHONS:
        name = f"python{short}"
        here = [Path(p) for p in [shutil.which(name)] if p]
        for candidate in [*here, *sorted(pyenv.glob(f"{short}*/bin/{name}"))]:
            if call(candidate, "-c", "import venv")[0] == 0:
                found.setdefault(short, candidate)
    return found


def try_out(
    python: Path, artefact: Path, home: Path, *, contracts: bool
) -> tuple[str, str, str]:
    """Install into an empty environment, then use it in an empty folder."""
    kind = "wheel" if artefact.suffix == ".whl" else "sdist"
    name = f"Python {python.name.removeprefix('python')}, {kind}"
    env, work = home / "env", home / "work"
    work.mkdir(parents=True)
    call(find_uv(), "venv", "-q", "--python", python, env)
    into = (find_uv(), "pip", "install", "-q", "--python", env)
    run = env / "bin" / "python"
    started = time.perf_counter()
    code, out = call(*into, artefact)
    seconds = time.perf_counter() - started
    if code:
        return name, "failed", f"install: {last_line(out)}"
    steps: list[tuple[str, tuple[str | Path, ...]]] = [
        ("dependencies", (find_uv(), "pip", "check", "--python", env)),
        ("frugax --help", (env / "bin" / "frugax", "--help")),
        ("frugax doctor", (env / "bin" / "frugax", "doctor")),
        ("first minute", (run, "-c", FIRST_MINUTE)),
    ]
    if contracts:
        # Installed after the checks above, so that these see the bare dependencies.
        shutil.copytree(ROOT / "tests" / "contracts", work / "contracts")
        shutil.copy(ROOT / "tests" / "refusals.py", work)  # which they import
        options = ("-q", "-p", "no:cacheprovider", "-W", "ignore")
        pytest = (run, "-m", "pytest", *options, "--import-mode=importlib")
        steps += [
            ("installing pytest", (*into, "pytest")),
            ("contract tests", (*pytest, "contracts")),
        ]
    for step, command in steps:
        code, out = call(*command, cwd=work)
        if code:
            (DIST / "failure.txt").write_text(out)
            return name, "failed", f"{step}: {last_line(out)} (dist/failure.txt)"
    tests = f", {last_line(out)}" if contracts else ""
    return name, "passed", f"installed in {seconds:.1f} s{tests}"


def check_targets_extra(python: Path, wheel: Path, home: Path) -> tuple[str, ...]:
    """Without a GPU, the compilers for GPUs add nothing to what the commands print."""
    name = "cuda-targets"
    home.mkdir()
    env = home / "env"
    call(find_uv(), "venv", "-q", "--python", python, env)
    into = (find_uv(), "pip", "install", "-q", "--python", env)
    code, out = call(*into, f"{wheel}[cuda-targets]")
    if code:
        return name, "failed", f"install: {last_line(out)}"
    frugax, example = env / "bin" / "frugax", ROOT / "examples" / "plan_llama.py"
    for command in (
        ("doctor",),
        ("plan", f"{example}:small", "--target", "h100,l4"),
    ):
        code, out = call(frugax, *command, cwd=home)
        # JAX's tracebacks and XLA's log lines.
        noise = [x for x in ("Traceback", "Jax plugin", "absl::") if x in out]
        if code or noise:
            (DIST / "failure.txt").write_text(out)
            return name, "failed", f"frugax {command[0]} (dist/failure.txt)"
    return name, "passed", "doctor, and a plan for two targets"


def write_sbom(
    folder: Path, version: str, found: dict[str, Path]
) -> tuple[str, str, str]:
    """A software bill of materials of the core install, as a user receives it."""
    target = DIST / f"frugax-{version}.cdx.json"
    env = folder / "sbom"
    python = found.get("3.11") or next(iter(found.values()))
    call(find_uv(), "venv", "-q", "--python", python, env)
    wheel = DIST / f"frugax-{version}-py3-none-any.whl"
    call(find_uv(), "pip", "install", "-q", "--python", env / "bin" / "python", wheel)
    code, out = call(
        *(program("cyclonedx-py"), "environment", "--mc-type", "library"),
        *("--pyproject", ROOT / "pyproject.toml", "--output-reproducible"),
        *("-o", target, env / "bin" / "python"),
    )
    if code:
        return "SBOM", "failed", last_line(out)
    components = json.loads(target.read_text())["components"]
    return "SBOM", "passed", f"{len(components)} components in {target.name}"


def compare_with_last_tag() -> tuple[str, str, str]:
    """Names and arguments that disappeared since the last release (griffe)."""
    tags = call("git", "tag", "--list", "v*", "--sort=-v:refname")[1].split()
    if not tags:
        return "API", "not checked", "no release tag yet: nothing to compare with"
    code, out = call(program("griffe"), "check", "frugax", "-s", "src", "-a", tags[0])
    if not code:
        return "API", "passed", f"nothing removed since {tags[0]}"
    (DIST / "api-changes.txt").write_text(out)
    # A break needs its news fragment, not a red release: the reader decides.
    listed = list(ROOT.glob("changes/*.breaking.md"))
    verdict = "passed" if listed else "failed"
    detail = f"{len(out.splitlines())} changes since {tags[0]} (dist/api-changes.txt)"
    return "API", verdict, f"{detail}, {len(listed)} breaking news fragments"


if __name__ == "__main__":
    main()

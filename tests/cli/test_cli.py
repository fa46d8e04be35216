"""The command: help with examples, one line for each mistake, and honest exit codes."""

import errno
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from safetensors.numpy import save_file

import forked
from forked import inline as frugax
from frugax import compress
from frugax.cli._jax_settings import split_verbose

COMMANDS = ["run", "plan", "compress", "decompress", "verify", "inspect", "doctor"]


def doctor(**env):
    return subprocess.run(
        [sys.executable, "-c", "from frugax.cli import main; main()", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300", **env},
    )


def test_the_version_is_printed():
    done = frugax("--version")
    assert (done.returncode, done.stdout) == (0, f"frugax {version('frugax')}\n")


_LOUD = "import sys\nsys.stderr.write('no driver\\n')\n"


@pytest.mark.thorough  # as scripts: capture/test_exec.py
@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia*"))), reason="has a GPU")
def test_a_plugin_of_jax_without_its_gpu_is_silent(tmp_path):
    plugin = tmp_path / "jax_plugins" / "xla_cuda12"
    library = tmp_path / "jax_cuda12_plugin"
    for folder in (plugin, library):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f"{_LOUD}def initialize(): 1 / 0\n")
    (library / "_solver.py").write_text(_LOUD)
    done = doctor(PYTHONPATH=str(tmp_path))
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "is_verbose", "rest"),
    [
        ("plan a.yaml --verbose", True, "plan a.yaml"),
        ("--verbose exec a.py --verbose", True, "exec a.py --verbose"),
        ("exec a.py --verbose", False, "exec a.py --verbose"),
        ("launch -n 2 -- a.py --verbose", False, "launch -n 2 -- a.py --verbose"),
    ],
)
def test_verbose_is_an_option_of_every_command(args, is_verbose, rest):
    assert split_verbose(args.split()) == (is_verbose, rest.split())


def assert_one_line(done, *parts):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("frugax: ")
    for part in parts:
        assert part in lines[0], lines[0]


@pytest.mark.parametrize("command", [*COMMANDS, "watch serve", "causal run"])
def test_help_is_a_screen_with_an_example(command):
    done = frugax(*command.split(), "--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert f"\nFor example: frugax {command}" in done.stdout
    assert "None" not in done.stdout


def test_help_names_every_option_once():
    shown = frugax("plan", "--help").stdout
    assert "--memory, --budget SIZE" in shown
    assert "--kind temp|total" in shown
    assert "--port NUMBER" in frugax("watch", "serve", "--help").stdout
    shown = frugax("export", "--help").stdout
    assert "-o, --to FILE" in shown
    assert "(required)" in shown
    assert "(default: 8)" in shown
    assert "--rel-error NUMBER" in shown  # of the group that several commands share


@pytest.mark.parametrize("group", [[], ["watch"], ["causal"]])
def test_the_list_of_commands_fits_a_screen(group):
    lines = frugax(*group, "--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    if not group:
        listed = {line.split()[0] for line in lines if line.startswith("  ")}
        assert listed >= {*COMMANDS, "watch", "causal"}


def test_jax_that_does_not_start_is_one_line(monkeypatch):
    import jax

    monkeypatch.setenv("JAX_PLATFORMS", "none")
    monkeypatch.setattr("frugax.cli._commands.doctor", lambda: jax.devices("none"))
    done = frugax("doctor")
    assert done.returncode == 2
    assert "JAX does not start with" in done.stderr
    assert "JAX_PLATFORMS=none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_arguments_show_the_help():
    assert frugax().stdout == frugax("--help").stdout


def test_an_error_is_explained_by_the_code_in_its_message():
    (code,) = re.findall(r"explain-error ([a-z-]+)\]", frugax("run", "no.yaml").stderr)
    shown = frugax("explain-error", code)
    assert shown.returncode == 0
    assert "ConfigError" in shown.stdout
    assert code in frugax("explain-error").stdout.split()
    unknown = frugax("explain-error", "unknown-code")
    assert unknown.returncode == 2
    assert "'unknown-code'" in unknown.stderr


def test_a_mistyped_option_names_the_right_one():
    done = frugax("run", "x.yaml", "--resum", "y")
    assert_one_line(done, "'--resum'. Did you mean '--resume'?", "frugax run --help")
    assert_one_line(frugax("causal", "nope"), "nope", "run, report", "causal --help")
    assert_one_line(frugax("plan"), "required", "MODULE:FUNCTION|CONFIG", "plan --help")


@pytest.fixture
def small(tmp_path):
    """A run that takes a second."""
    (tmp_path / "cli_task.py").write_text(
        "import jax.numpy as jnp, numpy as np\n"
        "def task(number=1.0):\n"
        "    x = np.full((32, 16), number, 'float32')\n"
        "    init = lambda key: {'w': jnp.ones((16, 64)), 'v': jnp.ones((64, 1))}\n"
        "    loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['w']) @ p['v']) ** 2)\n"
        "    return init, loss, [x]\n"
    )
    (tmp_path / "c.yaml").write_text(
        "name: small\ntask: cli_task:task\ntrain: {steps: 5}\nbudgets: {}\n"
    )
    return tmp_path


def test_a_run_and_its_second_go_to_folders_of_their_own(small):
    first, second = (
        frugax("run", "c.yaml", cwd=small),
        frugax("run", "c.yaml", cwd=small),
    )
    assert first.returncode == second.returncode == 0, first.stderr
    assert "No budget was stated" in first.stdout
    assert sorted(os.listdir(small / "runs")) == ["small", "small-2"]


@pytest.mark.thorough
def test_an_undecided_budget_is_exit_code_one_unless_allowed(small):
    task = (small / "cli_task.py").read_text()
    (small / "cli_task.py").write_text(
        task.replace("[x]\n", "[x], lambda p: {'accuracy': np.nan}\n")
    )
    args = ["run", "c.yaml", "--set", "budgets.size=2x", "budgets.accuracy_drop=0.5"]
    done = frugax(*args, cwd=small)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot tell" in done.stdout
    receipt = (small / "runs" / "small" / "receipt.json").read_text()
    assert "evaluate returns nan as accuracy" in receipt
    assert frugax(*args, "--allow-broken", cwd=small).returncode == 0


def test_watching_alone_does_not_fail_a_run(small):
    # Five steps in which watching may cost nothing: that cannot be shown to be kept.
    done = frugax("run", "c.yaml", "--set", "budgets.overhead=0%", cwd=small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken" in done.stdout or "cannot tell" in done.stdout
    assert "time spent watching does not count" in done.stdout
    docs = Path(__file__).parents[2] / "docs"
    pages = [docs / "run.md", docs / "tutorials" / "first_run.md"]
    for text in (
        frugax("run", "--help", cwd=small).stdout,
        *map(Path.read_text, pages),
    ):
        assert re.search(r"does\s+not\s+count", text)


@pytest.mark.parametrize("first", [["--set", "train.stepz=1"], ["--set=train.stepz=1"]])
def test_each_set_counts_not_only_the_last(small, first):
    done = frugax("plan", "c.yaml", *first, "--set", "budgets.size=2x", cwd=small)
    assert_one_line(done, "stepz")


def test_planning_does_not_write_files(small):
    done = frugax("plan", "c.yaml", "--set", "budgets.size=2x", cwd=small)
    assert done.returncode == 0, done.stderr
    assert "model file" in done.stdout
    assert "memory of one step" in done.stdout
    assert not (small / "runs").exists()


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["rnu", "c.yaml"], ["unknown command 'rnu'. Did you mean 'run'?"]),
        (["rnu", "--help"], ["unknown command 'rnu'. Did you mean 'run'?"]),
        (["watch", "srve"], ["unknown command 'srve'. Did you mean 'serve'?"]),
        (["run"], ["give either a config file"]),
        (["run", "none.yaml"], ["none.yaml: there is no such file"]),
        (["run", "c.yaml", "--resume", "runs/x"], ["give either a config file"]),
        (["run", "--resume", "runs/none"], ["runs/none: this folder has no run"]),
        (
            ["run", "c.yaml", "--set", "train.stepz=1"],
            ["override 'train.stepz=1': train.stepz", "'steps'"],
        ),
        (["run", "c.yaml", "--set", "task=a:b"], ["module 'a' was not found"]),
        (
            ["run", "c.yaml", "--set", "budgets.size=500x"],
            ["budgets.size", "write size"],
        ),
        (["run", "c.yaml", "--set", "budgets.memory=1%"], ["write memory: ", "%, or"]),
        (["run", "c.yaml", "--set", "budgets.memory=1B"], ["write memory: ", "B, or"]),
        (["run", "c.yaml", "--set", "options.numbr=1"], ["Did you mean 'number'"]),
        (["run", "c.yaml", "--set", f"train.steps={10**30}"], ["steps: must be < 2"]),
        (
            ["run", "c.yaml", "--set", "train.weight_decay=.nan"],
            ["finite number >= 0, got nan"],
        ),
        (["run", "c.yaml", "--set", "train.optimizer=adm"], ["Did you mean 'adam'"]),
        (["run", "c.yaml", "--set", f"name={'[' * 20_000}"], ["nested too deep"]),
        (["run", "c.yaml", "--runs", "c.yaml"], ["cannot write c.yaml", "choose"]),
        (["plan", "c.yaml", "--set", "budgets.memory=x"], ["budgets.memory"]),
        (["plan", "c.yaml", "--set", "budgets.memory=-4MiB"], ["must be positive"]),
        (["compress", "none.npz", "--ratio", "2"], ["none.npz"]),
        (["compress", "c.yaml", "--ratio", "2"], ["c.yaml"]),
        (["verify", "c.yaml"], ["c.yaml"]),
        (["decompress", "c.yaml"], ["c.yaml"]),
    ],
)
def test_an_error_is_one_line_and_leaves_no_files(small, args, parts):
    before = sorted(os.listdir(small))
    assert_one_line(frugax(*args, cwd=small), *parts)
    left = set(os.listdir(small)) - set(before) - {"__pycache__"}
    assert not left or not any((small / "runs").iterdir())


def test_a_loss_that_is_not_finite_is_reported_in_one_line(small):
    done = frugax("run", "c.yaml", "--set", "options={number: .nan}", cwd=small)
    assert_one_line(done, "the loss of step 0", "is nan", "checkpoint of step 0")


def test_an_error_in_user_code_is_one_line_with_its_place(small):
    done = frugax("run", "c.yaml", "--set", "options={number: text}", cwd=small)
    assert_one_line(done, "ValueError at cli_task.py:3", "could not convert string")
    assert not (small / "runs").exists()


def test_a_damaged_checkpoint_is_reported_in_one_line(small):
    done = frugax("run", "c.yaml", cwd=small)
    assert done.returncode == 0, done.stderr
    folder = small / "runs" / "small"
    (folder / "receipt.json").unlink()  # as if it had been stopped before the end
    for file in (folder / "checkpoints").rglob("*"):
        if file.is_file() and file.name != "frugax.json":
            file.write_bytes(b"damaged")
    done = frugax("run", "--resume", "runs/small", cwd=small)
    assert_one_line(done, "damaged", "checkpoints")


def test_resuming_skips_a_damaged_checkpoint_and_reports_it(small):
    done = frugax("run", "c.yaml", "--set", "train.save_every=2", cwd=small)
    assert done.returncode == 0, done.stderr
    folder = small / "runs" / "small"
    whole = (folder / "model.fxz").read_bytes()
    (folder / "receipt.json").unlink()
    newest = folder / "checkpoints" / "frugax-5"
    for file in newest.rglob("*"):
        if file.is_file() and file.name != "frugax.json":
            file.write_bytes(b"damaged")
    done = frugax("run", "--resume", "runs/small", cwd=small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The checkpoint of step 5 is damaged" in done.stdout
    assert "resuming after step 4" in done.stdout
    assert (folder / "model.fxz").read_bytes() == whole


def test_compress_verify_and_decompress_a_file(tmp_path):
    weights = {"w": np.random.default_rng(0).normal(size=(200, 100)).astype("float32")}
    save_file(weights, tmp_path / "m.safetensors", {"format": "np"})
    done = frugax("compress", "m.safetensors", "--ratio", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "m.fxz").stat().st_size <= 80_000 / 5
    against = ["--against", "m.safetensors"]
    assert frugax("verify", "m.fxz", *against, cwd=tmp_path).returncode == 0
    done = frugax("decompress", "m.fxz", "--to", "back.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert compress.load_metadata(tmp_path / "back.safetensors") == {"format": "np"}
    # Decoded weights are not originals: the comparison would be empty.
    done = frugax("verify", "m.fxz", "--against", "back.safetensors", cwd=tmp_path)
    assert_one_line(done, "not the original weights")
    weights["w"] = weights["w"] + 1
    save_file(weights, tmp_path / "other.safetensors")
    done = frugax("verify", "m.fxz", "--against", "other.safetensors", cwd=tmp_path)
    assert done.returncode == 1
    data = bytearray((tmp_path / "m.fxz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.fxz").write_bytes(data)
    # Not in this process, whose type checker would read the damaged tensors.
    assert_one_line(forked.frugax("verify", "m.fxz", cwd=tmp_path), "m.fxz")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "give one size (--ratio 8"),
        (["--ratio", "2", "--size", "1KiB"], "give one size"),
        (["--ratio", "0"], "--ratio 0: ratio must be > 0"),
        (["--max-abs", "abc"], "argument --max-abs: invalid float value: 'abc'"),
        (["--bytes", "100"], "needs at least"),
        (["--bytes", "1.5"], "--size (or --bytes) 1.5: bytes are whole"),
        (["--bytes", "0"], "--size (or --bytes) 0: bytes must be > 0, got 0"),
        (["--bytes", "9x", "--ratio", "9"], "give one size"),
        (["--ratio", "2", "--to", "m.safetensors"], "the original is never replaced"),
        (["--ratio", "2", "--to", "m.zip"], "ends in .fxz"),
        (["--ratio", "2", "--to", "there.fxz"], "exists already; choose another"),
    ],
)
def test_an_error_of_compress_is_one_line(tmp_path, args, part):
    path = tmp_path / "m.safetensors"
    save_file({"w": np.ones(300, "float32")}, path)
    (tmp_path / "there.fxz").write_bytes(b"mine")
    before = path.read_bytes()
    assert_one_line(frugax("compress", "m.safetensors", *args, cwd=tmp_path), part)
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "there.fxz"]
    assert path.read_bytes() == before
    assert (tmp_path / "there.fxz").read_bytes() == b"mine"


def test_a_file_that_is_compressed_already_needs_another_name(tmp_path):
    (tmp_path / "m.fxz").write_bytes(b"")
    done = frugax("compress", "m.fxz", "--size", "6x", cwd=tmp_path)
    assert_one_line(done, "m.fxz: these weights are compressed already; name a new")


@pytest.fixture
def packed(tmp_path):
    weights = {"w<&>": np.random.default_rng(0).normal(size=(64, 64)), "b": np.ones(9)}
    save_file(weights, tmp_path / "m.safetensors")
    args = ["--bytes", "6000", "-o", "p.fxz"]
    done = frugax("compress", "m.safetensors", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "p.fxz").stat().st_size <= 6000
    return tmp_path


def test_inspect_shows_each_tensor_and_draws_it(packed):
    done = frugax("inspect", "p.fxz", "--plot", "p.svg", cwd=packed)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("w<&>"))
    assert " dB" in row
    size = (packed / "p.fxz").stat().st_size
    assert f"file: {size:,} bytes" in done.stdout
    title, *dots = [
        node.text
        for node in ET.parse(packed / "p.svg").iter()
        if node.tag.endswith("title")
    ]
    assert title == "p.fxz"
    assert any(str(dot).startswith("w<&>: ") for dot in dots)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["none.fxz"], "none.fxz: there is no such file"),
        (["m.safetensors"], "not a .fxz file"),
        (["p.fxz", "--plot", "p.png"], "must end in .svg"),
        (["p.fxz", "--plot", "there.svg"], "choose another with --plot"),
    ],
)
def test_an_error_of_inspect_is_one_line(packed, args, part):
    (packed / "there.svg").write_bytes(b"mine")
    before = sorted(os.listdir(packed))
    assert_one_line(frugax("inspect", *args, cwd=packed), part)
    assert sorted(os.listdir(packed)) == before
    assert (packed / "there.svg").read_bytes() == b"mine"


def test_only_force_replaces_a_file(packed):
    again = ["compress", "m.safetensors", "--bytes", "5000", "-o", "p.fxz"]
    assert_one_line(frugax(*again, cwd=packed), "--force")
    assert frugax(*again, "--force", cwd=packed).returncode == 0
    assert (packed / "p.fxz").stat().st_size <= 5000


@pytest.mark.parametrize(
    ("redirected", "status"),
    [("| head -c 1", None), (">&-", 0), ("> /dev/full", 2), ("> /dev/full 2>&-", 2)],
)
def test_an_output_that_takes_nothing_is_no_traceback(redirected, status):
    run = "from frugax.cli import main; main()"
    done = subprocess.run(
        f'{sys.executable} -u -c "{run}" run --help {redirected}',
        shell=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    if status is not None:
        assert done.returncode == status
    if status and done.stderr:
        assert "No space left" in done.stderr


def test_a_full_disk_is_said_of_the_file_that_does_not_fit(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "model.fxz")

    monkeypatch.setattr("frugax.cli._main.say", fail)
    assert_one_line(frugax("--version"), "model.fxz", "No space left")


def test_resuming_a_finished_run_does_not_change_it(small):
    first = frugax("run", "c.yaml", "--set", "budgets.size=2x", cwd=small)
    assert first.returncode == 0, first.stderr
    folder = small / "runs" / "small"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    again = frugax("run", "--resume", "runs/small", cwd=small)
    assert again.returncode == 0, again.stderr
    assert "this run is finished" in again.stdout
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.thorough
def test_a_size_may_be_changed_when_going_on(small):
    done = frugax("run", "c.yaml", cwd=small)
    assert done.returncode == 0, done.stderr
    change = ["--set", "budgets.size=2x"]
    done = frugax("run", "--resume", "runs/small", *change, cwd=small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"name": "file"' in (small / "runs" / "small" / "receipt.json").read_text()
    refused = frugax("run", "--resume", "runs/small", "--set", "seed=1", cwd=small)
    assert_one_line(refused, "keeps its numbers", "budgets.size")


def test_doctor_reports_a_broken_jax(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "raise RuntimeError('no such [chip]')"
    )
    done = doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "JAX does not start: no such [chip]" in done.stdout
    assert "First: JAX does not start: no such [chip]" in done.stdout


def test_doctor_lists_installed_and_missing_packages(tmp_path):
    done = doctor(XDG_CACHE_HOME=str(tmp_path), PATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "apt-get install chromium" in done.stdout
    assert "Everything that frugax needs is here" in done.stdout
    assert "decodes the bits that NumPy does" in done.stdout
    assert str(tmp_path / "frugax" / "xla") in done.stdout


@pytest.fixture
def mounted(tmp_path):
    """Make a small disk of a given kind; skips where that is not allowed."""
    disk = tmp_path / "disk"

    def mount(options):
        disk.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)],
            capture_output=True,
        )
        if done.returncode:
            pytest.skip("may not mount here")
        return disk

    if shutil.which("mount") is None:
        pytest.skip("no mount here")
    yield mount
    subprocess.run(["umount", str(disk)], capture_output=True)


def test_a_full_disk_is_reported(small, mounted):
    disk = mounted("size=64k")
    (disk / "filler").write_bytes(b"x" * 50_000)
    # In its own process, because Orbax leaves threads behind.
    done = forked.frugax("run", "c.yaml", "--runs", disk, cwd=small)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot write" in done.stderr


def test_a_read_only_disk_is_reported_in_one_line(small, mounted):
    done = frugax("run", "c.yaml", "--runs", mounted("ro"), cwd=small)
    assert_one_line(done, "cannot write", "not read-only")


@pytest.fixture
def exact(tmp_path):
    """Compresses arrays into m.fxz without loss, by way of an .npz file."""

    def made(**arrays):
        np.savez(tmp_path / "m.npz", **arrays)
        done = frugax("compress", "m.npz", "--max-abs", "0", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return tmp_path

    return made


def test_a_name_reserved_by_safetensors_is_refused(exact):
    folder = exact(__metadata__=np.ones(3))
    done = frugax("decompress", "m.fxz", cwd=folder)
    assert_one_line(done, "cannot hold a tensor named '__metadata__': rename it")
    assert sorted(os.listdir(folder)) == ["m.fxz", "m.npz"]


def test_arrays_that_safetensors_cannot_hold_go_into_an_npz_file(exact):
    arrays = {"c": np.array([1j, 2]), "a/b": np.arange(3), "n": np.float32(2)}
    folder = exact(**arrays)
    done = frugax("decompress", "m.fxz", cwd=folder)
    assert_one_line(done, "'c' has dtype complex128")
    assert_one_line(done, "write an .npz file")
    done = frugax("decompress", "m.fxz", "-o", "back.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "back.npz") as back:
        assert sorted(back.files) == sorted(arrays)
        for name, array in arrays.items():
            assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(back[name], array)


def test_wrong_original_weights_are_reported_in_one_line(exact):
    folder = exact(w=np.ones(3))
    np.savez(folder / "other.npz", v=np.ones(3))
    done = frugax("verify", "m.fxz", "--against", "other.npz", cwd=folder)
    assert_one_line(done, "these are other weights: 'v' is missing in the file")
    assert_one_line(done, "other.npz")


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"s": np.array(["x"])}, "m.npz: array 's' has dtype <U1"),
        ({}, "m.npz: this file has no weights"),
    ],
)
def test_files_without_weights_are_one_line(tmp_path, arrays, part):
    np.savez(tmp_path / "m.npz", **arrays)
    assert_one_line(frugax("compress", "m.npz", "--ratio", "2", cwd=tmp_path), part)
    assert os.listdir(tmp_path) == ["m.npz"]

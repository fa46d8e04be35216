"""`frugax plan ... --target`: answers, pictures, and mistakes in one line."""

import json
import re

import pytest

from forked import inline
from frugax.targets import Target

PROGRAMS = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

f32 = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
SHAPES = ([f32(32, 32)] * 4, f32(256, 32))


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def small():
    return loss, SHAPES


def vector():
    return (lambda w, x: jnp.mean((x @ w) ** 2, -1)), (f32(8, 8), f32(16, 8))


def step():
    def train(ws, x):
        return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws, x))
    return train, SHAPES


def step_in_dict():
    fn, args = step()
    return {"fn": fn, "args": args}


def integers():
    floats = lambda x: x.astype(jnp.float32).sum()
    return floats, (jax.ShapeDtypeStruct((8,), jnp.int32),)


def closure():
    return loss, ([jnp.tanh], f32(8, 8))


def raises():
    return 1 / 0


def boom():
    raise ValueError("no")


def in_loss():
    return (lambda x: undefined(x)), (f32(8),)


def no_arguments():
    return (lambda: 1.0), ()


def bad_tree():
    return {"fn": loss, "args": SHAPES, "specs": (P(), P(), P())}


def bad_axes():
    return {"fn": loss, "args": SHAPES, "specs": (P(), P("data")), "axes": "data"}


def bad_layout():
    return {"fn": loss, "args": SHAPES, "layout": "fsdp"}


def unknown_key():
    return {"fn": loss, "args": SHAPES, "spec": P()}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAMS)

    def run(function, *options, target="cpu"):
        where = () if target is None else ("--target", target)
        command = ["plan", f"mine.py{function}", *where, *options]
        done = inline(*command, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_table_a_picture_and_a_file(plan, tmp_path):
    code, out, _ = plan(
        ":small", "--budget", "1MiB", "--why", "--picture", "a.svg", "--json", "a.json"
    )
    assert code == 0
    assert "total: arguments, results and temporaries" in out
    assert "plain total  planned total" in out
    assert "everything else" in out
    assert (
        "4 KiB · f32[32,32] · argument · args[0][3]" in (tmp_path / "a.svg").read_text()
    )
    assert json.loads((tmp_path / "a.json").read_text())


def test_answers_of_a_search_are_printed_before_the_table(plan):
    code, out, err = plan(":small", "--budget", "1MiB", "--search", "layout,remat")
    assert code == 0
    rows = [line for line in err.splitlines() if ": fits" in line]
    assert len(rows) == 3
    assert "tensor" in rows[1]
    assert "fits" in out


def test_a_share_is_one_of_the_program(plan):
    """A hundredth of the memory of any device is more than this program needs."""
    code, out, _ = plan(":small", "--budget", "1%")
    assert code == 1
    assert "does not fit" in out
    code, _, err = plan(":small", "--budget", "50% of nothing")
    assert code == 2
    assert "50% of nothing" in err


CONFIG = """
name: digits
seed: 0
data: {name: digits, batch: 16}
model: {name: mlp, width: 8, depth: 1}
train: {steps: 2, learning_rate: 2e-3, optimizer: sgd}
budgets: {memory: BUDGET}
"""


@pytest.mark.parametrize(
    ("stated", "option", "fits"),
    [("1KiB", (), False), ("1KiB", ("--budget", "1GiB"), True)],
)
def test_a_config_states_its_own_budget(tmp_path, stated, option, fits):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("BUDGET", stated))
    done = inline("plan", "run.yaml", "--target", "cpu", *option, cwd=tmp_path)
    assert done.returncode == int(not fits), done.stdout
    assert ("does not fit" in done.stdout) is not fits


def test_the_gradient_of_a_step_is_planned(plan):
    code, out, _ = plan(":step", "--budget", "80%", "--why")
    assert code == 0
    assert re.search(r"fits (at|in)", out)
    assert "saved for backward" in out
    code, out, _ = plan(":vector", "--budget", "1%")
    assert code == 1
    assert "it takes no gradient" in out


def test_a_step_is_planned_for_the_devices_here_without_a_target(plan):
    for program in ("step", "step_in_dict"):
        code, out, err = plan(f":{program}", "--budget", "80%", target=None)
        assert code == 0, err
        assert re.search(r"fits (at|in)", out)
    code, _, err = plan(":step", "--budget", "80%", "--headroom", "5%", target=None)
    assert code == 2
    assert "--headroom" in err


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("integers", (), "int32.*no gradient"),
        ("boom", (), "mine.py:boom"),
        ("closure", (), r"the program raised TypeError at mine.py:\d+: .*PjitFunction"),
        ("raises", (), r"the function raised ZeroDivisionError at mine.py:\d+"),
        ("in_loss", (), r"the program raised NameError at mine.py:\d+"),
        ("no_arguments", (), "no arguments: there is nothing to plan"),
        ("bad_tree", (), "specs do not fit the arguments"),
        ("unknown_key", (), "returned an unknown 'spec'"),
        ("bad_axes", (), "axes must map names to numbers of devices, .* got 'data'"),
        ("bad_layout", (), "layout must be one of data, .* got 'fsdp'"),
        ("small_", (), "Did you mean 'small'"),
        ("small", ("--price", "cpu=inf"), "a price must be finite and >= 0"),
        ("small", ("--json", "no/a.json"), "--json no/a.json: there is no folder no"),
        ("small", ("--price", "cpu=1,b300=3"), "names 'b300', but the targets are cpu"),
        ("small", ("--picture", "a.png"), "must end in .svg"),
        ("small", ("--budget", "0"), "--budget: '0' has no unit"),
        ("small", ("--budget", "1GiB 2GiB"), "--budget must be one number"),
        ("small", ("--search", "mesh"), "cannot search over 'mesh'"),
    ],
)
def test_an_error_is_one_line_with_its_place(plan, function, options, message):
    code, out, err = plan(f":{function}", *options)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert re.search(message, err), err


def test_a_file_without_a_function_is_not_taken_for_a_config(plan):
    code, _, err = plan("")
    assert code == 2
    assert "mine.py:make" in err


def test_a_description_may_start_from_a_known_device(plan, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nlike: h100\nmemory_bytes: 15000000000\n"
    )
    target = Target(str(tmp_path / "mine.yaml"))
    assert (target.name, target.memory_bytes) == ("mine", 15_000_000_000)
    (tmp_path / "mine.yaml").write_text("name: mine\nlike: h10\n")
    code, _, err = plan(":small", target="mine.yaml")
    assert code == 2
    assert "like must name a GPU, such as h100" in err
    (tmp_path / "mine.yaml").write_text("name: h100\nlike: h100\nbandwidth: .inf\n")
    _, _, err = plan(":small", target="mine.yaml")
    assert "bandwidth must be a finite number > 0" in err
    (tmp_path / "mine.yaml").write_text("name: h100\nlike: h100\n")
    _, _, err = plan(":small", target="h100,mine.yaml")
    assert "two targets are named h100" in err
    _, _, err = plan(":small", target=",")
    assert "--target names no device" in err
    _, _, err = plan(":small", target="0 x 2 l4")
    assert "has no devices" in err
    code, _, err = plan(":small", target="nosuch.yaml")
    assert code == 2
    assert "nosuch.yaml: there is no such file." in err

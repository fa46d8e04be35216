"""`frugax plan module:function`: a user's own loss, planned from the command line."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from forked import inline
from frugax import remat

OWN = """
import jax
import jax.numpy as jnp


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def shapes():
    f32 = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    return [f32(64, 64)] * 8, f32(512, 64)


def pair():
    return loss, shapes()


def step():
    from frugax import remat

    def build(value_and_grad):
        def one(ws, x):
            value, grads = value_and_grad(loss)(ws, x)
            return jax.tree.map(lambda w, g: w - g, ws, grads), value

        return one

    whole = remat.EnclosingProgram(build=build, args=shapes(), donate_argnums=(0,))
    return {"loss": loss, "example_args": shapes(), "within": whole}


def three():
    return loss, shapes(), 3


def half():
    return {"loss": loss}


def swapped():
    return shapes(), loss


def broken_loss():
    return lambda ws, x: 1 / 0, shapes()


def broken():
    return 1 / 0
"""


@pytest.fixture
def here(tmp_path):
    """A folder with the user's module, under another name in each test."""
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.fixture
def frugax(here):
    def command(*args):
        done = inline("plan", *args, cwd=here)
        return done.returncode, done.stdout, done.stderr

    return command


def test_the_plan_and_its_picture_are_shown_and_written(frugax, here):
    code, out, err = frugax(
        "own.py:pair", "--budget", "800KiB", "--picture", "m.svg", "--json", "p.json"
    )
    assert (code, err) == (0, "")  # without a terminal there is no spinner
    assert out.startswith("fits 800 KiB of temp memory: ")
    assert "░ without, 1.125 MiB" in out
    assert max(map(len, out.splitlines())) <= 110
    ET.parse(here / "m.svg")
    plan = remat.RematPlan.from_json((here / "p.json").read_text())
    assert plan.predicted <= 800 * 1024 < plan.unplanned_bytes
    assert json.loads((here / "p.json").read_text())["compiles"] == plan.compiles


def test_a_budget_may_be_a_share_of_the_plain_program(frugax, here):
    code, out, _ = frugax("own.py:pair", "--budget", "60%", "--json", "p.json")
    assert code == 0
    assert out.startswith("fits ")
    plan = remat.RematPlan.from_json((here / "p.json").read_text())
    assert plan.budget.limit_bytes == int(0.6 * plan.unplanned_bytes)
    assert plan.predicted <= plan.budget.limit_bytes


def test_a_dotted_name_is_looked_for_in_the_working_folder(frugax, here):
    (here / "package_of_mine").mkdir()
    (here / "own.py").rename(here / "package_of_mine" / "nets.py")
    code, out, err = frugax("package_of_mine.nets:pair", "--budget", "1GiB")
    assert (code, err) == (0, "")
    assert "everything is kept" in out


def test_a_whole_step_with_headroom(frugax):
    code, out, _ = frugax(
        *("own.py:step", "--budget", "1.5MiB", "--kind", "total", "--headroom", "5%")
    )
    assert code == 0
    assert out.startswith("fits 1.5 MiB of total memory, 5% kept free: ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["none:pair", "--budget", "1MiB"], "module 'none' was not found"),
        (["none.py:pair", "--budget", "1MiB"], "none.py: there is no such file"),
        ([":pair", "--budget", "1MiB"], "does not name a function"),
        (
            ["own.py:pears", "--budget", "1MiB"],
            "Did you mean 'pair'? It has loss, s",
        ),
        (["own.py:three", "--budget", "1MiB"], "returned a tuple of 3: it must return"),
        (["own.py:half", "--budget", "1MiB"], "returned no args: it must return"),
        (["own.py:swapped", "--budget", "1MiB"], "a tuple of 2 and something of type"),
        (["own.py:pair"], "frugax plan own.py:pair --budget 2GiB, or 50% of what"),
        (["own.py:pair", "--budget", "160%"], "share"),
        (["own.py:pair", "--budget", "1"], "has no unit"),
        (["own.py:pair", "--budget", "1KiB"], "needs"),
        (
            ["own.py:pair", "--budget", "1MiB", "--set", "a=b"],
            "--set does not go with a function, but with a config",
        ),
        (
            ["own.py:pair", "--budget", "1MiB", "--picture", "m.png"],
            "m.png: the file must end in .svg or .txt",
        ),
        (["c.yaml", "--budget", "1MiB"], "--budget does not go with a config"),
        (
            ["c.yaml", "--kind", "total"],
            "--kind does not go with a config, but with a f",
        ),
        (["c.yaml"], "c.yaml: there is no such file"),
    ],
)
def test_mistakes_are_one_line(frugax, here, args, said):
    code, out, err = frugax(*args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("frugax: ")
    assert said in err
    assert [f for f in here.iterdir() if f.suffix not in (".py", "")] == []


def test_a_file_does_not_shadow_a_module_of_the_same_name(frugax, here):
    (here / "own.py").rename(here / "random.py")
    assert frugax("random.py:pair", "--budget", "1GiB")[0] == 0
    assert not hasattr(sys.modules["random"], "pair")


@pytest.mark.parametrize("option", [("--budget", "1MiB"), ("--target", "h100")])
@pytest.mark.parametrize("function", ["broken", "broken_loss"])
def test_an_error_in_the_users_code_is_one_line(frugax, function, option):
    code, _, err = frugax(f"own.py:{function}", *option)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"raised ZeroDivisionError at own.py:\d+: division by zero", err)


def test_a_file_with_a_colon_in_its_name_is_a_config(frugax, here):
    (here / "a:b.yaml").write_text("name: x\nnonsense: 1\n")
    code, _, err = frugax(Path("a:b.yaml"))
    assert code == 2
    assert "nonsense" in err


EQUINOX = """
import equinox as eqx
import jax
import jax.numpy as jnp


def make():
    net = eqx.filter_eval_shape(eqx.nn.MLP, 32, 32, 64, 4, key=jax.random.key(0))
    assert callable(net.activation)

    def loss(net, x):
        return jnp.mean(jax.vmap(net)(x) ** 2)

    return loss, (net, jax.ShapeDtypeStruct((512, 32), jnp.float32))
"""


@pytest.mark.parametrize(
    "options", [("--budget", "400KiB"), ("--target", "cpu", "--budget", "600KiB")]
)
def test_a_module_of_equinox_is_planned_as_it_is(tmp_path, options):
    pytest.importorskip("equinox")
    (tmp_path / "net.py").write_text(EQUINOX)
    done = inline("plan", f"{tmp_path / 'net.py'}:make", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fits" in done.stdout

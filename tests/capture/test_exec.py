"""`frugax exec`: a script under python, with its jitted functions planned."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import frugax as fx
from frugax.capture import UnjittedGradients
from frugax.capture._watch_script import ScriptWatch, describe
from frugax.cli import main
from refusals import assert_names
from tiers import mostly_thorough

FRUGAX = [sys.executable, "-m", "frugax.cli"]


def run(command, folder, **options):
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, **options
    )


def write(folder: Path, name: str, code: str) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(code))


def test_a_script_sees_what_it_sees_under_python(tmp_path):
    write(
        tmp_path,
        "script.py",
        """
        import multiprocessing, os, sys
        import __main__

        def child():
            print("child", __name__, sys.path[0], flush=True)
            print(os.environ.get("PYTHONPATH"), flush=True)

        if __name__ == "__main__":
            print(sys.argv, sys.path, __file__, __main__.__spec__, sys.flags)
            print(sorted(os.environ), os.environ.get("PYTHONPATH"), flush=True)
            print(sys.stdin.read(), file=sys.stderr)
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            sys.exit(7)
        """,
    )
    arguments = ["script.py", "--memory", "x", "--", "-m"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "own")}
    options = {"input": "typed", "env": environment}
    expected = run([sys.executable, *arguments], tmp_path, **options)
    found = run([*FRUGAX, "exec", *arguments], tmp_path, **options)
    assert (found.returncode, found.stdout) == (7, expected.stdout)
    assert found.stderr == expected.stderr


def test_a_module_and_the_sitecustomize_of_the_user_run_as_under_python(tmp_path):
    write(tmp_path, "sitecustomize.py", "print('customized')")
    write(tmp_path, "package/__init__.py", "")
    write(
        tmp_path, "package/train.py", "import sys; print(__spec__.name, sys.argv[1:])"
    )
    options = {"env": {**os.environ, "PYTHONPATH": str(tmp_path)}}
    arguments = ["-m", "package.train", "--memory", "3", "-m"]
    expected = run([sys.executable, *arguments], tmp_path, **options)
    ours = ["--memory=60%", "--watch", *arguments]  # what follows is the script's
    found = run([*FRUGAX, "exec", *ours], tmp_path, **options)
    assert found.stdout == "customized\n" * 2 + expected.stdout.split("\n", 1)[1]


def test_errors_and_signals_end_it_as_under_python(tmp_path):
    write(tmp_path, "fails.py", "raise KeyError('of the script')")
    expected = run([sys.executable, "fails.py"], tmp_path)
    found = run([*FRUGAX, "exec", "fails.py"], tmp_path)
    assert (found.returncode, found.stderr) == (1, expected.stderr)
    code = """
        import atexit

        atexit.register(print, "ended")
        raise KeyboardInterrupt
        """
    write(tmp_path, "interrupted.py", code)
    expected = run([sys.executable, "interrupted.py"], tmp_path)
    found = run([*FRUGAX, "exec", "interrupted.py"], tmp_path)
    assert found.returncode == expected.returncode == -signal.SIGINT
    assert (found.stdout, found.stderr) == (expected.stdout, expected.stderr)
    missing = run([*FRUGAX, "exec", "missing.py"], tmp_path)
    assert missing.returncode == 2
    code = """
        import jax, time

        jax.jit(lambda x: x)(1.0)
        print("ready", flush=True)
        time.sleep(600)
        """
    write(tmp_path, "waits.py", code)
    waits = [*FRUGAX, "exec", "--receipt", "receipt.json", "waits.py"]
    with subprocess.Popen(waits, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    (function,) = json.loads((tmp_path / "receipt.json").read_text())["functions"]
    assert function["calls"] == 1


TRAIN = """
    import jax
    import jax.numpy as jnp
    from jax import jit

    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    @jit
    def step(w, x):
        value, grad = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * grad, value

    w, x = jnp.eye(64), jnp.ones((512, 64))
    for rows in (512, 512, 512, 256):
        w, value = step(w, x[:rows])
        print(f"{value:.4f}")
    for _ in range(2):
        jit(lambda x: x + 1)(x)
    """


def test_a_step_is_planned_and_the_receipt_says_what_it_took(tmp_path):
    write(tmp_path, "train.py", TRAIN)
    expected = run([sys.executable, "train.py"], tmp_path)
    options = ["--memory", "60%", "--watch", "--receipt", "receipt.json"]
    found = run([*FRUGAX, "exec", *options, "train.py"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout == expected.stdout
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert receipt["command"] == ["train.py"]
    step, double = receipt["functions"]
    assert (step["name"], step["place"], step["calls"]) == ("step", "train.py:11", 4)
    limit = next(n for n in found.stderr.splitlines() if n.startswith("limit: "))
    assert str(fx.MemoryBudget.share("60%")) in limit
    causes = [c["cause"] for c in step["compiles"]]
    assert causes[1] == "x: float32[512,64] -> float32[256,64]"
    program = step["program"]
    plan = program["plan"]
    assert program["memory"]["temp_bytes"] == plan["predicted"]
    assert plan["predicted"] <= 0.6 * plan["unplanned_bytes"]
    assert double["calls"] == len(double["compiles"]) == 2
    assert 0 < program["step_time"]["low"] < program["step_time"]["high"]
    assert_names(found.stderr, "step", "train.py:11", "kept", causes[1])


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("pass", "did not import JAX"),
        ("import jax; jax.grad(lambda x: x)(1.0)", "nothing was limited"),
        ("import jax; jax.jit(lambda x: x)(1.0)", "takes no gradient"),
    ],
)
def test_a_script_without_anything_to_limit_is_told_so(tmp_path, code, named):
    write(tmp_path, "train.py", code)
    found = run([*FRUGAX, "exec", "--budget", "60%", "train.py"], tmp_path)
    assert found.returncode == 0
    assert_names(found.stderr, named)


def test_gradients_that_no_jitted_function_contains_are_named(tmp_path):
    code = """
        import jax
        import jax.numpy as jnp

        @jax.jit
        def loss(w):
            return jnp.sum(jnp.sin(w) ** 2)

        def body(w):
            return w - jax.grad(loss)(w)

        w = jnp.ones(8)
        step = jax.jit(lambda w: body(w))
        jax.lax.while_loop(lambda w: w[0] > 2, body, step(w))
        body(w)
        jax.value_and_grad(loss)(w)
        """
    write(tmp_path, "train.py", code)
    for command in (["exec", "--memory", "1GiB"], ["explain"]):
        options = ["--receipt", "receipt.json", "train.py"]
        found = run([*FRUGAX, *command, *options], tmp_path)
        assert found.returncode == 0, found.stderr
        lines = json.loads((tmp_path / "receipt.json").read_text())
        assert lines["unjitted_gradients"] == ["train.py:10", "train.py:16"]
        assert_names(found.stderr, "train.py:10", "train.py:16", "outside")


def test_gradients_of_jitted_functions_and_of_frugax_are_not_outside_of_them():
    gradients, w, budget = UnjittedGradients(), jnp.ones(8), fx.MemoryBudget("1GiB")
    with gradients.noting():
        step = lambda w: jax.grad(lambda w: jnp.sum(jnp.sin(w)))(w)
        for memory in (None, "1GiB"):
            fx.jit(lambda w: step(w), memory=memory)(w)
        with fx.planned("1GiB"):
            jax.jit(jax.jit(lambda w: step(w)))(w)
        fx.remat.plan(lambda w: jnp.sum(jnp.sin(w)), example_args=(w,), budget=budget)
    assert not gradients.lines


@pytest.mark.thorough  # in this process: test_jit_report.py
def test_without_a_budget_it_only_watches(tmp_path):
    write(tmp_path, "train.py", TRAIN)
    found = run([*FRUGAX, "exec", "--receipt", "receipt.json", "train.py"], tmp_path)
    assert found.returncode == 0, found.stderr
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    step = next(f for f in receipt["functions"] if f["name"] == "step")
    assert step["program"]["plan"] is None
    assert len(step["compiles"]) == 2
    assert step["program"]["memory"]["temp_bytes"] > 0


def test_functions_of_one_line_are_one_and_only_those_of_a_loop_are_advised_against():
    script = ScriptWatch({"memory": None, "watch": False, "explain": False})

    def make(scale):
        return script.jit(lambda x: scale * x, {})

    make(2)(jnp.ones(8))
    make(3)(jnp.ones(4))
    for _ in range(2):
        make(4)(jnp.ones(2))
    (found,) = script.explanations()
    report = found.report
    *others, last = [c.cause for c in report.compiles]
    assert others == ["the first call"] * 3
    assert "loop" in last
    assert (report.calls, report.programs) == (4, 4)
    assert report.program.memory is not None
    assert report.program.memory.argument_bytes == 32


def test_a_step_that_is_compiled_ahead_of_its_calls_is_named():
    script = ScriptWatch({"memory": None, "watch": False, "explain": False})
    step = script.jit(lambda x: 2 * x, {})
    step.lower(jnp.ones(8)).compile()(jnp.ones(8))
    (found,) = script.explanations()
    assert (found.report.calls, found.report.is_lowered) == (0, True)
    assert_names(describe([found.report], ["train.py"]), "ahead of its calls")


def test_of_a_step_whose_first_call_was_interrupted_nothing_is_claimed():
    script = ScriptWatch({"memory": "60%", "watch": False, "explain": False})

    def step(w):
        raise KeyboardInterrupt  # as while it is traced, planned or compiled

    with pytest.raises(KeyboardInterrupt):
        script.jit(step, {})(jnp.ones(8))
    (found,) = script.explanations()
    told = describe([found.report], ["train.py"], fx.MemoryBudget.share("60%"))
    assert_names(told, "no call has ended", "cannot tell")
    assert "no gradient" not in told


@pytest.mark.parametrize(("depth", "is_told"), [(1, False), (8, True)])
def test_a_search_is_announced_with_its_time_where_there_is_one(capfd, depth, is_told):
    script = ScriptWatch({"memory": "60%", "watch": False, "explain": False})

    def loss(w, x):
        for _ in range(depth):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    script.jit(jax.grad(loss), {})(jnp.eye(8), jnp.ones((1024, 8)))
    told = [n for n in capfd.readouterr().err.splitlines() if "planning" in n]
    assert len(told) == is_told
    if is_told:
        assert_names(told[0], "KiB", "for up to 60 s")


@pytest.mark.parametrize(
    "command",
    mostly_thorough(
        [["exec"], ["exec", "--memory", "99%"], ["explain"]],
        in_ci=lambda command: command == ["explain"],
    ),
)
def test_functions_of_main_are_reported_though_they_and_their_mesh_are_gone(
    tmp_path, command
):
    code = """
        import gc
        import jax
        import jax.numpy as jnp

        def main():
            @jax.jit
            def step(w):
                rows = jax.lax.with_sharding_constraint(jnp.sin(w), jax.P("x"))
                return jax.grad(lambda w: jnp.sum(jnp.sin(w) * rows))(w)

            auto = (jax.sharding.AxisType.Auto,)
            with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=auto)):
                step(jnp.ones(8))

        main()
        gc.collect()
        """
    write(tmp_path, "train.py", code)
    options = ["--receipt", "receipt.json", "train.py"]
    found = run([*FRUGAX, *command, *options], tmp_path)
    assert found.returncode == 0, found.stderr
    (step,) = json.loads((tmp_path / "receipt.json").read_text())["functions"]
    report = step.get("report", step)["program"]
    assert report["problem"] == ""
    assert report["memory"]["output_bytes"] == 32
    assert (report["plan"] is not None) == ("--memory" in command)
    assert (step.get("peak") is not None) == (command == ["explain"])


def test_a_script_is_explained_while_it_runs_as_it_is(tmp_path):
    write(tmp_path, "train.py", TRAIN)
    options = ["--receipt", "memory.json", "train.py", "--", "--lr", "1"]
    found = run([*FRUGAX, "explain", *options], tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("\n") == 4
    document = json.loads((tmp_path / "memory.json").read_text())
    assert document["command"] == ["train.py", "--lr", "1"]
    step = next(f for f in document["functions"] if f["report"]["name"] == "step")
    assert step["donation"] == {"donated": [], "possible": {"w": 64 * 64 * 4}}
    held = {h["name"]: h for h in step["peak"]["held"]}
    assert held["tanh"]["source"].endswith("train.py:8")
    causes = [c["cause"] for c in step["report"]["compiles"]]
    assert len(causes) == 2
    assert_names(found.stderr, "step", "train.py:8", "tanh", causes[1], "w")


@pytest.mark.thorough
def test_lines_are_those_of_the_script_and_not_of_a_cached_program(tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for line, start in ((8, ""), (9, "\n")):
        write(tmp_path, "train.py", start + TRAIN)
        command = [*FRUGAX, "explain", "--receipt", "memory.json", "train.py"]
        found = run(command, tmp_path, env={**os.environ, **cache})
        assert found.returncode == 0, found.stderr
        document = json.loads((tmp_path / "memory.json").read_text())
        step = next(f for f in document["functions"] if f["report"]["name"] == "step")
        held = {h["name"]: h["source"] for h in step["peak"]["held"]}
        assert held["tanh"].endswith(f"train.py:{line}")


def test_an_interrupted_script_is_explained_as_far_as_it_came(tmp_path):
    interrupt = """
        import jax

        @jax.jit
        def step(w):
            raise KeyboardInterrupt

        jax.jit(lambda w: w + 1)(1.0)
        step(1.0)
        """
    write(tmp_path, "train.py", interrupt)
    found = run([*FRUGAX, "explain", "train.py"], tmp_path)
    assert found.returncode == 130
    assert found.stderr.startswith("Interrupted.\n"), found.stderr
    assert ": ;" not in found.stderr
    assert_names(found.stderr, "<lambda>", "step")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--memory", "600", "train.py"], '"60%"'),
        (["--memory", "0%", "train.py"], "0%"),
        (["--receipt", "nowhere/receipt.json", "train.py"], "nowhere"),
        ([], "frugax exec"),
        (["-m"], "frugax exec"),
        (["--memroy", "60%", "train.py"], "--memory"),
        (["nothere.py"], "nothere.py"),
        (["--memory", "60%", "nothere.py"], "nothere.py"),
        (["--memory", "60", "%", "train.py"], "--memory 60%"),
        (["--memory", "40", "GiB", "train.py"], "--memory 40GiB"),
        (["--memory", "90%", "of", "device", "train.py"], '"90% of device"'),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments, named, capsys):
    with pytest.raises(SystemExit) as left:
        main(["exec", *arguments])
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert named in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train.py", "--memory", "60%"], ("--memory", "train.py")),
        (["train.py", "--memory=40GiB"], ("--memory=40GiB", "train.py")),
        (["train.py", "--lr", "1", "--receipt", "r.json"], ("--receipt", "train.py")),
        (["--watch", "-m", "train", "--memory=60%"], ("--memory=60%", "train")),
        (["train.py", "--memory", "all"], ()),
        (["--memory", "60%", "train.py", "--memory", "60%"], ()),
        (["train.py", "--", "--memory", "60%"], ()),
    ],
)
def test_an_option_of_ours_behind_the_script_is_its_own_and_a_note_says_so(
    tmp_path, arguments, named
):
    write(tmp_path, "train.py", "import sys; print(sys.argv[1:])")
    found = run([*FRUGAX, "exec", *arguments], tmp_path)
    assert (
        found.stdout
        == f"{arguments[arguments.index(named[-1] if named else 'train.py') + 1 :]}\n"
    )
    notes = [line for line in found.stderr.splitlines() if "is given to" in line]
    assert len(notes) == bool(named)
    assert_names("".join(notes), *named)


FAILING = """
    import jax
    import jax.numpy as jnp


    def loss(w):
        return layer(w)


    def layer(w):
        return jnp.sum(w) + nothing


    @jax.jit
    def step(w):
        return jax.value_and_grad(loss)(w)


    step(jnp.ones(3))
    """


@pytest.mark.parametrize(
    "commands",
    [
        (["exec", "--memory", "60%"], ["plan"]),
        pytest.param((["exec"], ["explain"]), marks=pytest.mark.thorough),
    ],
)
def test_the_traceback_of_an_error_is_the_one_under_python(tmp_path, commands):
    write(tmp_path, "script.py", FAILING)
    expected = run([sys.executable, "script.py"], tmp_path)
    assert expected.stderr.count("script.py") == 4
    for command in commands:
        found = run([*FRUGAX, *command, "script.py"], tmp_path)
        assert found.stderr.startswith(expected.stderr), found.stderr


@pytest.mark.parametrize(
    "command",
    mostly_thorough(
        [["exec", "--memory", "60%"], ["plan"]],
        in_ci=lambda command: command == ["plan"],
    ),
)
def test_a_library_may_be_what_imports_jax_first(tmp_path, command):
    # JAX is complete then, but the library is not.
    code = """
        import optax
        import jax

        step = jax.jit(jax.grad(lambda w: w**2))
        print(step(optax.adam(0.1).init(1.0)[0].mu))
        """
    write(tmp_path, "script.py", code)
    found = run([*FRUGAX, *command, "script.py"], tmp_path)
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia*"))), reason="has a GPU")
@pytest.mark.parametrize(
    ("command", "is_loud"),
    [
        pytest.param("explain", False, marks=pytest.mark.thorough),
        pytest.param("exec", False, marks=pytest.mark.thorough),
        ("plan", False),
        pytest.param("explain --verbose", True, marks=pytest.mark.thorough),
    ],
)
def test_a_plugin_of_jax_without_its_gpu_is_silent_in_a_script(
    tmp_path, command, is_loud
):
    loud = "import sys; sys.stderr.write('no driver\\n')"
    for name in ("jax_plugins/xla_cuda12", "jax_cuda12_plugin"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path, f"{name}/__init__.py", f"{loud}\ndef initialize(): pass")
    code = "import jax; jax.jit(jax.grad(lambda w: w**2))(1.0)"
    write(tmp_path, "script.py", code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # what the user has set wins
    found = run([*FRUGAX, *command.split(), "script.py"], tmp_path, env=environment)
    assert found.returncode == 0, found.stderr
    assert ("no driver" in found.stderr) == is_loud

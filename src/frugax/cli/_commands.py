"""The commands `frugax` init, run, plan, compare, launch, verify-receipt and doctor.

Nothing heavy is imported until a command runs, so that `frugax --help` is quick. Each
command returns an exit code: 0 if all budgets were kept, 1 if one was not.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from frugax.budget import MemoryBudget, MemoryShare, Receipt, SpendName, Verdict
from frugax.errors import ConfigError, FrugaxError

from ._arguments import Arg, Changes, Folder, OutFile
from ._consoles import console, errors, print_error, say
from ._plan_for_targets import is_step, plan_for_targets, read_workload
from ._plan_options import NO_PLAN_OPTIONS, PlanOptions
from ._plan_script import plan_script
from ._run_view import RunView
from ._user_function import call_function, is_function_name, plan_function

if TYPE_CHECKING:
    from frugax import fit
    from frugax.run import RunConfig, RunFolder

Name = Annotated[str | None, Arg("NAME")]
Number = Annotated[int | None, Arg("NUMBER")]
# As in `frugax.train.distributed`, which not every command has to import.
EXIT_PEER_LOST = 75
# Set by `frugax launch` and its manifests for clusters, by `srun` and by `mpirun`.
_PROCESS_COUNTS = (
    "FRUGAX_PROCESSES",
    "JAX_NUM_PROCESSES",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
)


def init(folder: Path = Path("."), /) -> int:
    """Write a training script and a model with its config.

    For example:

    frugax init

    frugax init spirals

    Args:
        folder: where to write train.py, model.py and model.yaml.

    Raises:
        ConfigError: one of the files exists, or the folder cannot be written.
    """
    from ._init import write_example

    write_example(folder)
    return 0


def run(
    config: Path | None = None,
    /,
    *,
    resume: Annotated[Path | None, Arg("FOLDER")] = None,
    resume_latest: bool = False,
    runs: Folder = Path("runs"),
    set: Changes = (),
    accept_changes: bool = False,
    allow_broken: bool = False,
) -> int:
    """Train, compress and evaluate within budgets; write a report.

    The exit status is 0 if every budget was kept, and 1 if one was broken or could not
    be decided. The share of time spent watching is on the receipt, but does not count:
    in short runs it depends on what else the machine does.

    For example:

    frugax run examples/digits.yaml

    frugax run examples/digits.yaml --set train.steps=50 budgets.memory=40%

    frugax run --resume runs/digits

    frugax launch -n 2 --restarts 3 -- frugax run examples/digits.yaml --resume-latest

    Args:
        config: YAML file with the task and its budgets.
        resume: continue the run in this folder, to the same numbers.
        resume_latest: continue the newest unfinished run of this config; for launchers
            that start a command again, with or without one.
        runs: parent folder of the run's own folder.
        set: replace single values, as key=value with a dotted key; with --resume only
            budgets that do not change the trained numbers.
        accept_changes: with --resume, continue after changes; of the config, code, data
            or versions. The receipt says so.
        allow_broken: exit with 0 even when a budget was not kept.

    Raises:
        ConfigError: neither a config nor a run to resume is given, or both are.
        KeyboardInterrupt: Ctrl-C outside training.
    """
    from frugax import run as package

    if (config is None) == (resume is None):
        raise ConfigError(
            "give either a config file (frugax run examples/digits.yaml) or a run to "
            "resume (frugax run --resume runs/digits)."
        )
    if resume_latest and resume is not None:
        raise ConfigError(
            "--resume names a run, and --resume-latest looks for one: leave one out."
        )
    _join_processes()
    is_resumed = resume is not None
    if resume is not None:
        folder, settings = package.reopen(resume, overrides=set)
        # A changed budget needs another receipt, and a lost model file is made again
        # from the checkpoint; both go on below.
        if folder.receipt.is_file() and folder.model_is_whole() and not set:
            return _print_finished(folder)
        config_folder = folder.config_folder()
    else:
        assert config is not None  # one of the two, by the check above
        settings = package.load_config(config, overrides=set)
        folder, is_resumed = _choose_folder(runs, settings, resume_latest=resume_latest)
        config_folder = config.parent
    ledger = package.start_ledger(settings, resume=is_resumed)
    ledger.on_stuck = lambda error: _leave(error, ledger.discard)
    with ledger.measure(package.Part.STARTING), ledger.deadline("importing JAX"):
        run_config = package.run
    with RunView(console, folder.path) as view:
        try:
            outcome = run_config(
                settings,
                folder,
                config_folder=config_folder,
                resume=is_resumed,
                accept_changes=accept_changes,
                ledger=ledger,
                observer=view,
            )
        except package.InterruptedRunError as e:
            view.stop()
            if not console.quiet:
                say(
                    f"Stopped after step {e.step:,}; a checkpoint is saved. Resume "
                    f"with: frugax run --resume {folder.path}",
                    on=errors,
                )
            # A cluster that takes a node away is to start all of them again.
            return EXIT_PEER_LOST if is_joined() else 130
        except (Exception, KeyboardInterrupt) as e:
            view.stop()
            # A FrugaxError states its own remedy; a mistake in the task, found while
            # training, does not know of the checkpoint.
            is_late = isinstance(e, ConfigError) and not is_resumed
            is_known = isinstance(e, FrugaxError) and not is_late
            if not is_known and folder.checkpoints.is_dir():
                say(
                    "The newest checkpoint is kept. Resume with: frugax run --resume "
                    f"{folder.path}"
                )
            raise
    _print_receipt(outcome.receipt)
    for name, value in outcome.model.after.items():
        before = outcome.model.before[name]
        say(f"{name}: {value:.4g} from the model file, {before:.4g} before compression")
    say(f"time of one step: {outcome.step_time}")
    for note in outcome.notes:
        say(note)
    return _exit_code(folder, outcome.receipt) and int(not allow_broken)


def _join_processes() -> None:
    """Join the other processes of a launched run; all but the first are silent."""
    if all(os.environ.get(variable, "1") == "1" for variable in _PROCESS_COUNTS):
        return  # without importing JAX
    import jax

    from frugax.train import distributed

    try:
        distributed.initialize()
    except (RuntimeError, ValueError) as e:
        raise ConfigError(str(e)) from e
    console.quiet = jax.process_index() > 0


def _choose_folder(
    runs: Path, settings: "RunConfig", *, resume_latest: bool
) -> tuple["RunFolder", bool]:
    """Return the folder of a run, the same in all processes, and whether to resume."""
    from frugax import run as package

    folder = None
    if resume_latest and not console.quiet:
        folder = package.unfinished_folder(runs, settings)
    is_resumed = folder is not None
    folder = folder or package.free_folder(runs, settings.name)
    if is_joined():
        # The first process chooses: another may look only after the folder was made.
        from frugax.train.processes import broadcast_text

        text = broadcast_text(f"{int(is_resumed)}{folder.path}")
        is_resumed, folder = text[0] == "1", package.RunFolder(Path(text[1:]))
    return folder, is_resumed


def is_joined() -> bool:
    """Whether this process has joined others, which wait for it."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave(error: Exception, discard: Callable[[], None] | None) -> None:
    """End the process although its main thread is in a compilation.

    Nothing else can end one, and waiting for it would break the limit of time.
    """
    print_error(error)
    if discard is not None:
        discard()
    sys.stderr.flush()
    os._exit(2)


def plan(
    subject: Annotated[str, Arg("SCRIPT|MODULE:FUNCTION|CONFIG")],
    arguments: Annotated[tuple[str, ...], Arg("-- ARGUMENT ...")] = (),
    /,
    *,
    options: PlanOptions = NO_PLAN_OPTIONS,
) -> int:
    """Plan a script, a run or a loss of your own, without training.

    For example:

    frugax plan train.py --target h100,tpu-v5e:4x4 -- --lr 3e-4

    frugax plan -m package.train --budget 60%

    frugax plan examples/digits.yaml

    frugax plan examples/digits.yaml --set budgets.memory=30%

    frugax plan my_model:loss_and_shapes --budget 2GiB

    frugax plan train/model.py:loss_and_shapes --budget 2GiB --picture memory.svg

    frugax plan train.py:make --target h100x256 --budget 70GiB

    frugax plan train.py:make --target tpu-v5e:4x4,h100,l4 --why

    frugax plan train.py:make --target h100 --largest-batch

    A script runs until it calls a jitted function that takes a gradient. That step is
    planned and not run. Large arrays are not made: their shapes are enough.

    A function is called without arguments. It returns (loss, example_args), or a
    dict of the arguments of frugax.remat.plan: loss, example_args, argnums, has_aux,
    within, block_size. Shapes (jax.ShapeDtypeStruct) can stand in for arrays. It may
    also return (step, args), and with --target a dict with fn, args, specs, axes and
    more (docs/targets.md).

    Args:
        subject: what to plan; a script, a function by its module's name or file, or the
            YAML file of a run.
        arguments: of the script, after two dashes.
        options: how to plan it, and for which devices.

    Raises:
        ConfigError: the subject does not exist, or an option is for the other kind.
    """
    if options.module or subject.endswith(".py"):
        options.check("a script")
        return plan_script([*["-m"] * options.module, subject, *arguments], options)
    if arguments:
        raise ConfigError(
            f"{subject} is not a script: only scripts have arguments after --."
        )
    kind = "a function" if is_function_name(subject) else "a config"
    if options.target is not None:
        options.check(f"{kind} with --target")
        load = lambda: (read_workload(subject, call_function(subject)), None)
        if kind == "a config":
            load = lambda: _workload_of_run(Path(subject), options.set)
        return plan_for_targets(subject, load, options)
    options.check(kind)
    if kind == "a config":
        return _plan_run(Path(subject), options.set)
    result = call_function(subject)
    if is_step(subject, result):
        options.check("a function with --target")
        load = lambda: (read_workload(subject, result), None)
        return plan_for_targets(subject, load, options)
    plan_function(subject, result, options)
    return 0


def _workload_of_run(
    config: Path, changes: tuple[str, ...]
) -> "tuple[fit.Workload, MemoryBudget | MemoryShare | None]":
    """The step of a run, and its memory budget, if it has one."""
    from frugax import fit, run as package

    settings = package.load_config(config, overrides=changes)
    step, args = package.describe_step(settings, config_folder=config.parent)
    layout = settings.train.layout
    where = {} if layout is None else {"layout": layout.kind, "shape": layout.shape}
    return fit.Workload.of(step, args, **where), settings.budgets.memory


def _plan_run(config: Path, changes: tuple[str, ...]) -> int:
    from frugax import run as package

    settings = package.load_config(config, overrides=changes)
    with RunView(console, None) as view:
        made_plan = package.plan(settings, config_folder=config.parent, observer=view)
    say(made_plan)
    return 0


def verify_receipt(
    file: Annotated[Path, Arg("FILE|FOLDER")],
    /,
    *,
    trust_code: bool = False,
    all_figures: Annotated[bool, Arg(name="all")] = False,
) -> int:
    """Derive the figures of somebody's receipt again.

    The first line is the conclusion; it names the verdicts that rest on figures that
    nobody can derive, such as times. Then come the figures that differ, and those that
    were not derived, with the reason. The exit status is 0 if every deterministic
    figure was derived and is the same, 1 otherwise.

    For example:

    frugax verify-receipt runs/digits

    frugax verify-receipt runs/mine/receipt.json --trust-code

    Args:
        file: a receipt.json, with the run's other files beside it; or its folder.
        trust_code: import and run the function that the config names.
        all_figures: also print the table of all figures.
    """
    from frugax import run as package

    with RunView(errors, None) as view:  # the conclusion is the first line of stdout
        found = package.verify_receipt(file, trust_code=trust_code, observer=view)
    say(found)
    if all_figures:
        say(f"\n{found.table()}")
    return int(found.finding != "same")


def _print_finished(folder: "RunFolder") -> int:
    """Show the receipt of a finished run; nothing is written."""
    receipt = Receipt.from_json(folder.receipt.read_text())
    say(f"{folder.path}: this run is finished; nothing is left to resume.")
    _print_receipt(receipt)
    return _exit_code(folder, receipt)


def _print_receipt(receipt: Receipt) -> None:
    say(receipt if receipt.spends else "No budget was stated, so none was checked.")


def _exit_code(folder: "RunFolder", receipt: Receipt) -> int:
    """Name the report; 0 if every budget was kept."""
    say(f"Report: {folder.report}")
    # `cannot tell` fails as well: a script must not take doubt for success. Watching
    # alone is not the run's purpose, so its share does not fail one.
    missed = [s.name for s in receipt.spends if s.verdict is not Verdict.KEPT]
    if missed == [SpendName.WATCHING]:
        say(f"The exit status is 0: {missed[0]} does not count in it.")
        return 0
    return int(bool(missed))


def compare(
    runs: Annotated[tuple[Path, ...], Arg("FOLDER ...")], /, *, page: OutFile = None
) -> int:
    """Compare finished runs: verdicts, figures, configs.

    For example:

    frugax compare runs/digits runs/digits-2

    frugax compare runs/* --page compared.html

    Args:
        runs: folders of finished runs.
        page: also write a page with the curves of all runs.
    """
    from frugax import run as package
    from frugax.fileio import write_whole

    found = package.compare_runs(runs)
    say(found)
    if page is not None:
        write_whole(page, found.to_page())
        say(f"Page: {page}")
    return 0


def launch(
    command: Annotated[tuple[str, ...], Arg("-- COMMAND")],
    /,
    *,
    processes: Annotated[int, Arg("NUMBER", ("-n",))],
    restarts: Number = None,
    devices: Number = None,
    label: bool = False,
    write: Literal["k8s", "slurm"] | None = None,
    image: Name = None,
    gpus: Number = None,
    claim: Name = None,
    name: Name = None,
) -> int:
    """Run a command as several processes, here or on a cluster.

    For example:

    frugax launch -n 2 -- python train.py

    frugax launch -n 2 --restarts 3 --label -- python train.py --steps 1000

    frugax launch -n 4 --gpus 8 --write slurm -- python train.py > train.sbatch

    frugax launch -n 4 --gpus 8 --write k8s --image me/train:1 -- python train.py

    Args:
        command: the program and its arguments, after two dashes.
        processes: number of processes; on a cluster, one on each node.
        restarts: how often all may be restarted; after one has failed. By default 0
            here and 20 on a cluster.
        devices: virtual CPU devices in each process.
        label: begin each line of output with its process; its number.
        write: print a JobSet for Kubernetes or a script for sbatch; nothing is run.
        image: the container's image, for k8s.
        gpus: GPUs of each node, for k8s and slurm.
        claim: a volume claim, mounted at /runs, for k8s; all pods can write to it.
        name: of the job, for k8s and slurm; by default frugax.

    Raises:
        ConfigError: the command is missing, a number is out of range, or an option does
            not belong to the others.
    """
    from frugax.train import distributed

    where = f"--write {write}" if write else "this machine"
    belongs = {None: "", "k8s": "image gpus claim name", "slurm": "gpus name"}[write]
    given = {"image": image, "gpus": gpus, "claim": claim, "name": name}
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if foreign := [option for option in options if option not in belongs.split()]:
        raise ConfigError(f"frugax launch: --{foreign[0]} is not for {where}.")
    if write and (label or devices is not None):
        raise ConfigError(f"frugax launch: --label and --devices are not for {where}.")
    if write == "k8s" and image is None:
        raise ConfigError(
            "frugax launch: --write k8s needs --image, a container with frugax and the "
            "program."
        )
    if restarts is not None:
        options["restarts"] = restarts
    try:
        if write is None:
            return distributed.launch(
                command, processes=processes, devices=devices, label=label, **options
            )
        writers = {
            "k8s": distributed.kubernetes_manifest,
            "slurm": distributed.slurm_script,
        }
        sys.stdout.write(writers[write](command, processes=processes, **options))
        return 0
    # A program that does not exist is an OSError: a mistake of the user, not a bug.
    except (ValueError, OSError) as e:
        raise ConfigError(f"frugax launch: {e}") from e


def doctor() -> int:
    """Check this machine, and say what to do first.

    For example:

    frugax doctor
    """
    from ._doctor import examine

    return examine(console)

"""The files for clusters parse, fit together, and match the arguments of initialize."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from frugax.train import distributed
from frugax.train.distributed import _initialize
from refusals import refuses

CLUSTER = Path(__file__).parents[3] / "examples" / "cluster"
MANIFEST = CLUSTER / "trainjob.yaml"

COMMAND = ["python", "-u", "examples/cluster/train.py", "/runs/my run"]


def assert_known(given, understood, place=""):
    """The schema's classes drop fields that they do not know."""
    for key, value in given.items() if isinstance(given, dict) else enumerate(given):
        inner = f"{place}.{key}"
        assert not isinstance(given, dict) or key in understood, inner
        if isinstance(value, dict | list):
            assert_known(value, understood[key], inner)
        else:
            assert understood[key] == value, inner


def assert_valid(kind, manifest):
    """Check a manifest against the API's own classes, as Kubeflow publishes them."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    known = getattr(models, kind).from_dict(manifest)
    assert_known(manifest, known.to_dict())


def write_jobset(**options):
    settings: dict[str, Any] = {"processes": 4, "image": "example.org/train:1"}
    manifest = distributed.kubernetes_manifest(COMMAND, **settings | options)
    return yaml.safe_load(manifest)


def test_the_jobset_is_kubernetes():
    manifest = write_jobset(gpus=8, claim="runs")
    assert_valid("JobsetV1alpha2JobSet", manifest)
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == COMMAND
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]
    # Pods of an indexed job are found under JOBSET-JOB-0-INDEX.SERVICE.
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["JAX_COORDINATOR_ADDRESS"] == "frugax-node-0-0.frugax:8476"
    assert environment["JAX_NUM_PROCESSES"] == "4" == str(job["completions"])
    assert set(_initialize._VARIABLES[1]) <= set(environment)
    # If one pod fails all are restarted, but not after an error of the program's own.
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["operator"] == "NotIn"
    assert {75, 137, 143} <= set(rule["onExitCodes"]["values"])
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    with pytest.raises(AssertionError, match="backofLimit"):
        assert_valid("JobsetV1alpha2JobSet", manifest)


def test_the_trainjob_is_kubeflows_in_its_schema(documents):
    assert_valid("TrainerV1alpha1TrainJob", documents["TrainJob"])
    # The published classes have no runtime in a namespace, but the same one for all.
    runtime = {**documents["TrainingRuntime"], "kind": "ClusterTrainingRuntime"}
    assert_valid("TrainerV1alpha1ClusterTrainingRuntime", runtime)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"processes": 0}, "processes"),
        ({"gpus": -1}, "gpus"),
        ({"name": "My_Job"}, 40),
        ({"image": ""}, "image"),
    ],
)
def test_wrong_numbers_and_names_are_refused(options, named):
    with refuses(ValueError, named):
        write_jobset(**options)


def test_a_script_is_refused_for_wrong_numbers_and_names():
    with refuses(TypeError, "processes", 2.5):
        distributed.slurm_script(COMMAND, processes=2.5)  # pyrefly: ignore[bad-argument-type]
    with refuses(ValueError, "processes", 0):
        distributed.slurm_script(COMMAND, processes=0)
    with refuses(ValueError, "a b"):
        distributed.slurm_script(COMMAND, processes=2, name="a b")
    with refuses(ValueError, "command"):
        distributed.slurm_script([], processes=2)


@pytest.fixture
def documents():
    found = {d["kind"]: d for d in yaml.safe_load_all(MANIFEST.read_text())}
    assert list(found) == ["PersistentVolumeClaim", "TrainingRuntime", "TrainJob"]
    return found


def test_the_manifest_is_kubeflows(documents):
    job, runtime = documents["TrainJob"], documents["TrainingRuntime"]
    assert job["apiVersion"] == runtime["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    assert all(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", d["metadata"]["name"])
               for d in documents.values())  # fmt: skip
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": runtime["metadata"]["name"],
    }
    # This makes Trainer set the three variables.
    assert runtime["spec"]["mlPolicy"]["jax"] == {}
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert group["name"] == "node"
    labels = group["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"


def test_if_one_pod_fails_all_are_restarted(documents):
    template = documents["TrainingRuntime"]["spec"]["template"]["spec"]
    assert template["failurePolicy"]["maxRestarts"] > 0
    (group,) = template["replicatedJobs"]
    assert group["template"]["spec"]["backoffLimit"] == 0
    assert group["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_checkpoints_lie_on_the_shared_volume(documents):
    claim = documents["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (group,) = documents["TrainingRuntime"]["spec"]["template"]["spec"][
        "replicatedJobs"
    ]
    pod = group["template"]["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mount["name"] == volume["name"]
    folder = documents["TrainJob"]["spec"]["trainer"]["args"][0]
    assert Path(folder).is_relative_to(mount["mountPath"])


@pytest.mark.thorough
def test_the_commands_match_the_example(documents):
    trainer = documents["TrainJob"]["spec"]["trainer"]
    command = [*trainer["command"], *trainer["args"]]
    assert all(isinstance(word, str) for word in command)
    assert command[2].endswith("examples/cluster/train.py")
    told = subprocess.run(
        [sys.executable, CLUSTER / "train.py", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for option in [w for w in command if w.startswith("--")]:
        assert option in told


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.sbatch"
    file.write_text(distributed.slurm_script(COMMAND, processes=4, gpus=8))
    return file


def test_the_script_is_sound_shell(script):
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    options = re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE)
    message = dict(options)
    assert message["ntasks-per-node"] == "1"
    assert (message["nodes"], message["gpus-per-node"]) == ("4", "8")
    assert "requeue" in message
    # Slurm reads options up to the first command only.
    assert text.rindex("#SBATCH") < text.index("set -u")


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (75, 0, True), (137, 3, True), (75, 20, False)],
)
def test_the_script_is_requeued_after_a_temporary_failure(
    tmp_path, script, code, restarts, requeued
):
    for name, body in (
        ("srun", f'echo "$JAX_LOCAL_DEVICE_IDS" "$@" > {tmp_path}/ran; exit {code}'),
        ("scontrol", f"echo $@ > {tmp_path}/asked"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "42",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_GPUS_ON_NODE": "4",
    }
    done = subprocess.run(["bash", script], env=env, check=False)
    assert done.returncode == code
    ran = (tmp_path / "ran").read_text()
    assert ran == f"0,1,2,3 --kill-on-bad-exit=1 {' '.join(COMMAND)}\n"
    assert (tmp_path / "asked").exists() is requeued
    if requeued:
        assert (tmp_path / "asked").read_text() == "requeue 42\n"


@pytest.fixture
def joined(monkeypatch):
    """Record the arguments of JAX's join without joining."""
    asked = []
    nothing = contextlib.nullcontext()
    monkeypatch.setattr(_initialize, "join_peers", lambda _: nothing)

    def initialize(*place, **options):
        asked.append((*place, options["coordinator_bind_address"]))

    monkeypatch.setattr(_initialize.jax.distributed, "initialize", initialize)
    for names in _initialize._VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    return asked


@pytest.mark.parametrize("names", _initialize._VARIABLES, ids=["launch", "kubeflow"])
def test_the_processes_are_read_from_the_environment(joined, monkeypatch, names):
    for name, value in zip(names, ("frugax-node-0-0.frugax:1", "4", "3"), strict=True):
        monkeypatch.setenv(name, value)
    distributed.initialize()
    assert joined == [("frugax-node-0-0.frugax:1", 4, 3, None)]
    monkeypatch.setenv(names[2], "4")
    with refuses(ValueError, "process"):
        distributed.initialize()
    monkeypatch.setenv(names[1], "many")
    with refuses(ValueError, names[1]):
        distributed.initialize()


def test_incomplete_settings_are_refused_or_left_to_jax(joined, monkeypatch):
    with refuses(ValueError, "'10.0.0.1:1'"):
        distributed.initialize("10.0.0.1:1")
    with refuses(ValueError, "leave_s", 0):
        distributed.initialize(leave_s=0)
    # JAX's own variable alone: JAX finds the others, on Slurm for example.
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1")
    distributed.initialize()
    assert joined == [(None, None, None, None)]


def test_on_one_machine_no_port_is_open_to_the_network(joined):
    distributed.initialize("127.0.0.1:99", 2, 0)
    assert joined == [("127.0.0.1:99", 2, 0, "127.0.0.1:99")]


def test_a_run_of_one_process_does_not_join_a_cluster(joined):
    distributed.initialize("127.0.0.1:99", 1, 0)
    assert joined == []


@pytest.mark.thorough
def test_the_example_runs_in_two_processes(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XLA_FLAGS", "")
    command = [sys.executable, str(CLUSTER / "train.py"), str(tmp_path)]
    code = distributed.launch([*command, "--steps", "20"], processes=2)
    assert code == 0, capfd.readouterr().err
    assert re.search(r"^20 steps, loss 0\.\d+$", capfd.readouterr().out, re.M)

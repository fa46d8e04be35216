"""Write the JobSet or the Slurm script that starts a command on a cluster.

The cluster starts and restarts processes; `initialize()` reads from its variables who
takes part. Exit code 75 (`EXIT_PEER_LOST`), and codes above 128 of killed processes,
mean that another attempt may succeed; every other code is the program's own error.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from frugax.options import check_integer

from ..processes import EXIT_PEER_LOST

_PORT = 8476
# Besides 75: 128 and the number of SIGABRT, SIGBUS, SIGKILL, SIGSEGV and SIGTERM. A
# container that needed too much memory ends with 137, too.
_MAY_SUCCEED = sorted([EXIT_PEER_LOST, 134, 135, 137, 139, 143])
# A service's name, which pods find each other by, is a label of DNS (RFC 1123) with
# room for the numbers of the job and the pod.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def kubernetes_manifest(
    command: Sequence[str],
    *,
    processes: int,
    image: str,
    name: str = "frugax",
    gpus: int = 0,
    restarts: int = 20,
    claim: str | None = None,
) -> str:
    """A JobSet that trains in several pods, as YAML.

    Each pod runs one process for all of its GPUs. When one is lost all are started
    again; with checkpoints they resume. An error of the program's own ends the JobSet.

    Args:
        command: the program and its arguments.
        processes: number of pods; >= 1.
        image: the container's image, with frugax and the program.
        name: of the JobSet.
        gpus: of each pod.
        restarts: how often all may be started again.
        claim: a volume that all pods can write to (ReadWriteMany), mounted at `/runs`.

    Raises:
        ValueError: a number is out of its range, the command is empty, or the name is
            no label of DNS.

    Source:
        JobSet `jobset.x-k8s.io/v1alpha2`; Kubernetes' pod failure policies.
    """
    _check(command, processes=processes, gpus=gpus, restarts=restarts)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name must have 1 to 40 of a-z, 0-9 and -, and begin with a letter, got "
            f"{name!r}."
        )
    if not image:
        raise ValueError("image must name a container's image.")
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    container: dict[str, Any] = {
        "name": "node",
        "image": image,
        "command": list(command),
        "ports": [{"containerPort": _PORT}],
        "env": [
            {
                "name": "JAX_COORDINATOR_ADDRESS",
                "value": f"{name}-node-0-0.{name}:{_PORT}",
            },
            {"name": "JAX_NUM_PROCESSES", "value": str(processes)},
            {
                "name": "JAX_PROCESS_ID",
                "valueFrom": {"fieldRef": {"fieldPath": index}},
            },
            {"name": "PYTHONUNBUFFERED", "value": "1"},
        ],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # SIGTERM makes `fit` save and return: time for the checkpoint.
        "terminationGracePeriodSeconds": 120,
        "containers": [container],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    if claim is not None:
        container["volumeMounts"] = [{"name": "runs", "mountPath": "/runs"}]
        volume = {"name": "runs", "persistentVolumeClaim": {"claimName": claim}}
        pod["volumes"] = [volume]
    own_error = {
        "action": "FailJob",
        "onExitCodes": {"operator": "NotIn", "values": _MAY_SUCCEED},
    }
    job = {
        "parallelism": processes,
        "completions": processes,
        "completionMode": "Indexed",
        # No pod comes back alone: the others have ended.
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [own_error]},
        "template": {"spec": pod},
    }
    end = {
        "name": "ownError",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": restarts, "rules": [end]},
            "replicatedJobs": [
                {"name": "node", "replicas": 1, "template": {"spec": job}}
            ],
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False)


def slurm_script(
    command: Sequence[str],
    *,
    processes: int,
    name: str = "frugax",
    gpus: int = 0,
    restarts: int = 20,
) -> str:
    """A script for `sbatch` that trains on several nodes, one process on each.

    After exit code 75, or when a process was killed, the job is queued again; with
    checkpoints it resumes.

    Args:
        command: the program and its arguments.
        processes: number of nodes; >= 1.
        name: of the job.
        gpus: of each node.
        restarts: how often the job may be queued again.

    Raises:
        ValueError: a number is out of its range, the command is empty, or the name has
            spaces.
    """
    _check(command, processes=processes, gpus=gpus, restarts=restarts)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name must be one word, got {name!r}.")
    options = [
        f"--job-name={name}",
        f"--nodes={processes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        "--requeue",
        "--open-mode=append",
    ]
    head = "\n".join(f"#SBATCH {option}" for option in options)
    return _SLURM.format(
        head=head,
        restarts=restarts,
        command=shlex.join(command),
        temporary=EXIT_PEER_LOST,
    )


_SLURM = """\
#!/bin/bash
# One JAX process on each node, all GPUs of a node for its process. Checkpoints must lie
# in a folder that every node can reach. Options of sbatch come before those given here:
#
#   sbatch --time=24:00:00 THIS_FILE
{head}
# Two minutes before the end of the time: fit saves and returns.
#SBATCH --signal=TERM@120
set -u

# JAX takes one GPU for each task unless told which are there.
if [ -n "${{SLURM_GPUS_ON_NODE:-}}" ]; then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi
export PYTHONUNBUFFERED=1

# Where one task fails the others are ended, too.
srun --kill-on-bad-exit=1 {command}
code=$?

# {temporary}: a process was lost, or the time is over. Above 128: one was killed. The
# job goes back into the queue, and on from the last checkpoint. Any other code is an
# error of your own, which the next attempt would meet again.
if [ "$code" -eq {temporary} ] || [ "$code" -gt 128 ]; then
  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
"""


def _check(command: Sequence[str], **numbers: int) -> None:
    if not command:
        raise ValueError("the command is missing: write it after --.")
    for name, value in numbers.items():
        check_integer(name, value, minimum=int(name == "processes"))

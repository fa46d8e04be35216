"""A run on Slurm itself: two nodes of a cluster on this machine, one of them killed."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frugax.train import distributed

TRAIN = Path(__file__).parents[3] / "examples" / "cluster" / "train.py"
DAEMONS = ("munged", "slurmctld", "slurmd")
# Slurm wants names of its own for nodes on one machine, and JAX must find the first:
# these are 127.0.0.1 and 127.0.0.2.
NODES = ("0x7f000001", "0x7f000002")
SETTINGS = """\
ClusterName=frugax
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerType=sched/builtin
SelectType=select/cons_tres
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with two idle nodes, which the commands of Slurm speak to."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is missing: apt-get install slurmctld slurmd munge")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    # Munge trusts no folder that others can write to, such as /tmp.
    folder = Path("/run") / f"frugax-{os.getpid()}"
    (folder / "state").mkdir(parents=True)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    user = pwd.getpwnam("munge")
    for path in (folder, key):
        os.chown(path, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    settings = SETTINGS.format(
        folder=folder, host=socket.gethostname(), nodes=NODES, ports=free_ports(3)
    )
    (folder / "slurm.conf").write_text(settings)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("XLA_FLAGS", "")
    files = [f"--{k}={folder}/munge.{k}" for k in ("socket", "pid-file", "seed-file")]
    munge = ["munged", "-F", f"--key-file={key}", f"--log-file={folder}/log", *files]
    running = [subprocess.Popen(munge, user="munge", group="munge")]
    try:
        wait_for(lambda: (folder / "munge.socket").exists())
        running.append(subprocess.Popen(["slurmctld", "-D"], stderr=subprocess.DEVNULL))
        for node in NODES:
            command = ["slurmd", "-D", "-N", node]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        wait_for(lambda: ask("sinfo", "-h", "-o", "%T") == "idle")
        yield tmp_path
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
        shutil.rmtree(folder)


def ask(*command):
    return subprocess.run(
        command, capture_output=True, text=True, check=False
    ).stdout.strip()


def wait_for(condition, limit=300):
    for _ in range(10 * limit):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("this did not happen in time")


@pytest.mark.thorough
def test_a_run_on_slurm_survives_the_loss_of_a_process(cluster):
    checkpoints, log = cluster / "checkpoints", cluster / "log"
    command = [sys.executable, str(TRAIN), str(checkpoints), "--steps", "1500"]
    script = cluster / "train.sbatch"
    script.write_text(distributed.slurm_script(command, processes=2))
    job = re.findall(r"\d+", ask("sbatch", "--time=30", f"--output={log}", script))[0]
    wait_for(lambda: (checkpoints / "frugax-300").exists())
    # The second process of the step, as the kernel kills what needs too much memory.
    killed = ask("pgrep", "-f", f"^{sys.executable} {TRAIN}").split()[-1]
    os.kill(int(killed), signal.SIGKILL)
    wait_for(lambda: ask("squeue", "-h", "-j", job, "-o", "%T") == "PENDING")
    # Slurm waits two minutes before it starts a job again.
    ask("scontrol", "update", f"job={job}", "StartTime=now")
    wait_for(lambda: "COMPLETED" in ask("scontrol", "show", "job", job))
    told = log.read_text()
    assert "Exited with exit code 75" in told  # the other process, which lost its peer
    assert "Restarts=1" in ask("scontrol", "show", "job", job)
    # The second attempt took the steps since the last checkpoint, not all of them.
    taken = int(re.findall(r"^(\d+) steps, loss", told, re.MULTILINE)[0])
    assert 0 < taken <= 1200

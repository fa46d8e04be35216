"""Four hosts in network namespaces train one model; the cable of one is pulled."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import distributed_worker as worker
from frugax.run import Outcome
from frugax.train.distributed import EXIT_PEER_LOST

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("ip") is None or os.geteuid() != 0,
        reason="needs root and iproute2",
    ),
]
MACHINES = 4
PORT = 8476


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def machines():
    """Hosts with one network card each, at a switch; named by their namespaces."""
    name = f"fx{os.getpid() % 100_000}"
    switch, hosts = f"{name}s", [f"{name}h{i}" for i in range(MACHINES)]
    folders = [Path("/etc/netns") / host for host in hosts]
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for i, host in enumerate(hosts):
            ip("netns", "add", host)
            ip(
                "-n",
                host,
                "link",
                "add",
                "card",
                "type",
                "veth",
                "peer",
                "name",
                f"port{i}",
            )
            ip("-n", host, "link", "set", f"port{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", host, "address", "add", f"10.77.0.{i + 1}/24", "dev", "card")
            ip("-n", host, "link", "set", "card", "up")
            ip("-n", host, "link", "set", "lo", "up")
            # `ip netns exec` shows this file as /etc/hosts. Gloo listens where the
            # name of its host leads.
            folders[i].mkdir(parents=True)
            (folders[i] / "hosts").write_text(
                f"127.0.0.1 localhost\n10.77.0.{i + 1} {socket.gethostname()}\n"
            )
    except subprocess.CalledProcessError as e:
        pytest.skip(f"no network namespaces here: {e.stderr.decode().strip()}")
    else:
        yield switch, hosts
    finally:
        for host in (switch, *hosts):
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def start(hosts, *work, cwd=None):
    """One process on each host, as the script of a scheduler starts them."""
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *map(str, work)],
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            env=os.environ
            | {
                "FRUGAX_COORDINATOR": f"10.77.0.1:{PORT}",
                "FRUGAX_PROCESSES": str(len(hosts)),
                "FRUGAX_PROCESS": str(i),
                "XLA_FLAGS": "",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, host in enumerate(hosts)
    ]


def end(processes, timeout_s=120):
    """Return exit codes and messages."""
    messages = []
    until = time.monotonic() + timeout_s
    try:
        for process in processes:
            left_s = until - time.monotonic()
            messages.append(process.communicate(timeout=max(1, left_s))[1])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [p.returncode for p in processes], "\n".join(messages)


def wait_for_step(saved, step, processes):
    while not (saved.latest_step() or 0) >= step:
        assert all(p.poll() is None for p in processes), end(processes)
        time.sleep(0.1)


def test_the_other_hosts_notice_a_lost_host_and_resume_without_it(machines, tmp_path):
    switch, hosts = machines
    processes = start(hosts, worker.__file__, tmp_path, 100_000)
    saved = worker.train.Checkpoints(tmp_path)
    wait_for_step(saved, 20, processes)
    ip("-n", switch, "link", "set", "port2", "down")
    cut_s = time.monotonic()
    codes, messages = end(processes)
    # All notice by themselves, the one that was cut off as well.
    assert codes == [EXIT_PEER_LOST] * MACHINES, messages
    assert time.monotonic() - cut_s < 60
    last = saved.latest_intact_step()
    assert last is not None
    # The scheduler starts the three that it can still reach.
    steps = last + 30
    codes, messages = end(
        start([*hosts[:2], hosts[3]], worker.__file__, tmp_path, steps)
    )
    assert codes == [0] * 3, messages
    loss, processes_there, _ = (tmp_path / "result").read_text().split()
    assert processes_there == "3"
    alone = worker.train_to(tmp_path / "alone", steps)
    assert float(loss) == pytest.approx(alone.loss, abs=1e-6)


TASK = """
import time, jax, jax.numpy as jnp, numpy as np

def task(pause_s=0.1):
    init = lambda key: {"w": jax.random.normal(key, (4, 1))}
    loss = lambda p, b: jnp.mean((jnp.tanh(b @ p["w"])[:, 0] - b[:, 0]) ** 2)
    def batches(step):
        time.sleep(pause_s)
        return np.random.default_rng(step).normal(size=(12, 4)).astype("float32")
    evaluate = lambda p: {"loss": loss(p, np.eye(4, dtype="float32"))}
    return init, loss, batches, evaluate
"""
CONFIG = """
name: hosts
task: hosts_task:task
train: {steps: 300, learning_rate: 1e-2, save_every: 10}
"""


def test_a_run_on_four_hosts_goes_on_with_three(machines, tmp_path):
    switch, hosts = machines
    (tmp_path / "hosts_task.py").write_text(TASK)
    (tmp_path / "c.yaml").write_text(CONFIG)
    run = ["-m", "frugax.cli", "run", "c.yaml", "--resume-latest"]
    processes = start(hosts, *run, cwd=tmp_path)
    saved = worker.train.Checkpoints(tmp_path / "runs" / "hosts" / "checkpoints")
    wait_for_step(saved, 20, processes)
    ip("-n", switch, "link", "set", "port2", "down")
    codes, messages = end(processes)
    assert codes == [EXIT_PEER_LOST] * MACHINES, messages
    last = saved.latest_intact_step()
    assert last is not None
    assert last < 300
    codes, messages = end(start([*hosts[:2], hosts[3]], *run, cwd=tmp_path), 300)
    assert codes == [0] * 3, messages
    # One process that is never interrupted.
    alone = [sys.executable, *run, "--runs", "alone"]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True)
    there, here = (
        Outcome.from_json((tmp_path / folder / "hosts" / "receipt.json").read_text())
        for folder in ("runs", "alone")
    )
    assert there.steps == here.steps == 300
    assert there.model.after["loss"] == pytest.approx(
        here.model.after["loss"], abs=1e-6
    )

"""A Slurm cluster of two nodes on this machine, for tests and to try things out.

`python -m tests.slurm COMMAND ...` starts one, runs the command with SLURM_CONF set, and ends it.
It needs Debian's package slurm-wlm, and root: slurmd starts jobs as their users.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

NODES = ("n1", "n2")
_START_S = 20.0
# No authentication and no control groups: the cluster is this machine, and its one user root.
_CONF = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2
ReturnToService=2
SlurmdTimeout=5
KillWait=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def installed() -> bool:
    """Return whether a cluster can be started here; slurmd runs as root alone."""
    programs = ("slurmctld", "slurmd", "sbatch")
    return os.geteuid() == 0 and all(map(shutil.which, programs))


class Slurm:
    """A running cluster; `environment` is that of commands that use it."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until both nodes are idle.

        Raises:
            RuntimeError: they do not become so; says what the daemons wrote.
        """
        self.folder = folder
        (folder / "state").mkdir()
        conf = folder / "slurm.conf"
        conf.write_text(_CONF.format(folder=folder, ports=_free_ports(3)), encoding="utf-8")
        self.environment = os.environ | {"SLURM_CONF": str(conf)}
        self._daemons = {"slurmctld": self._start("slurmctld", "-D")}
        for node in NODES:
            self._daemons[node] = self._start("slurmd", "-D", "-N", node)
        deadline = time.monotonic() + _START_S
        while self.states() != dict.fromkeys(NODES, "idle"):
            if time.monotonic() > deadline:
                said = "\n".join(log.read_text(errors="replace") for log in folder.glob("*.log"))
                self.close()
                raise RuntimeError(f"the cluster does not start: {said[-2000:]}")
            time.sleep(0.2)

    def _start(self, *command: str) -> subprocess.Popen:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=self.environment, start_new_session=True, **quiet)

    def states(self) -> Mapping[str, str]:
        """Return the state of each node, as sinfo calls it."""
        command = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
        run = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return dict(line.split() for line in run.stdout.splitlines())

    def jobs(self) -> Mapping[str, str]:
        """Return the node of each running job."""
        command = ["squeue", "--noheader", "--states=R", "--format=%A %N"]
        run = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return dict(line.split() for line in run.stdout.splitlines() if len(line.split()) == 2)

    def kill_node(self, node: str) -> None:
        """Let a node die, with all that runs on it."""
        daemon = self._daemons[node]
        tree = [daemon.pid, *_descendants(daemon.pid), *self._steps(node)]
        for pid in dict.fromkeys([*tree, *(p for step in tree for p in _descendants(step))]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def _steps(self, node: str) -> list[int]:
        """Return the daemons of jobs on a node: they are no children of its slurmd."""
        mine = []
        on_node = [job for job, where in self.jobs().items() if where == node]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                name = words.strip("\0 ")
                if name.startswith("slurmstepd: [") and name[13:].split(".")[0] in on_node:
                    mine.append(int(pid))
        return mine

    def close(self) -> None:
        """Cancel all jobs and end the cluster."""
        cancel = ["scancel", "--quiet", "--state=RUNNING", "--state=PENDING", "--user=root"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(cancel, env=self.environment, capture_output=True, timeout=20)
        deadline = time.monotonic() + 10.0
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.3)
        for node in NODES:
            if self._daemons.get(node) and self._daemons[node].poll() is None:
                self.kill_node(node)
        for daemon in self._daemons.values():
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            for child in map(int, children):
                found += [child, *_descendants(child)]
    return found


@contextlib.contextmanager
def cluster() -> Iterator[Slurm]:
    """Have a cluster while the context is open."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        slurm = Slurm(Path(folder))
        try:
            yield slurm
        finally:
            slurm.close()


def main() -> int:
    """Run a command with a cluster around it; return its exit code."""
    if not installed():
        print("tests.slurm: a cluster needs root and slurm-wlm", file=sys.stderr)
        return 4
    with cluster() as slurm:
        return subprocess.run(sys.argv[1:], env=slurm.environment).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Parsl as the engine of a class: configurations, a worker that dies, a run that is killed.

One class is graded for real, in a run that Ctrl-C ends, one that is killed, and one that goes on.
"""

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import parsl
import pytest
from parsl.executors import HighThroughputExecutor
from parsl.jobs.error_handlers import windowed_error_handler

from classroom import engine, grade_class
from classroom.engine import CourseError, EngineFault, ParslEngine, local_config, read_config
from classroom.grading import Settings
from grader.spec.problem import ROOT
from tests import needs, pods
from tests.harness import PROMPT_S, until
from tests.test_class_killed import Class

SLURM = """
[executor]
max_workers_per_node = 4
available_accelerators = 4
[executor.provider]
type = "SlurmProvider"
partition = "gpu"
nodes_per_block = 1
max_blocks = 2
walltime = "02:00:00"
worker_init = "export PYTHONPATH=/judge"
[executor.provider.launcher]
type = "SrunLauncher"
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="engine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_toml_file_makes_parsls_objects(file):
    (executor,) = read_config(file(SLURM)).executors
    assert isinstance(executor, HighThroughputExecutor) and executor.max_workers_per_node == 4
    assert executor.available_accelerators == ["0", "1", "2", "3"]
    assert isinstance(executor.provider, parsl.providers.SlurmProvider)
    assert (executor.provider.partition, executor.provider.walltime) == ("gpu", "02:00:00")
    assert isinstance(executor.provider.launcher, parsl.launchers.SrunLauncher)


def test_a_python_file_makes_a_config(file):
    text = (
        "from parsl.config import Config\nfrom parsl.executors import ThreadPoolExecutor\n"
        "config = Config(executors=[ThreadPoolExecutor(max_threads=3)])\n"
    )
    (executor,) = read_config(file(text, "engine.py")).executors
    assert executor.max_threads == 3


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("", "engine.yaml", "expected a .py or a .toml file"),
        ("config = 1", "engine.py", "config: got int, expected a parsl.Config"),
        ("", "engine.py", "config: got nothing, expected a parsl.Config"),
        ("1 / 0", "engine.py", "ZeroDivisionError: division by zero"),
        ("def", "engine.py", "SyntaxError"),
        ("[executor", "engine.toml", "not valid TOML"),
        ("[other]", "engine.toml", "got other, expected one table [executor]"),
        ("executor = 1", "engine.toml", "got executor, expected one table"),
        ("[executor]", "engine.toml", "executor.provider: got nothing, expected a table"),
        ("[executor.provider]\na = 1", "engine.toml", "executor.provider: got no type"),
        ("[executor.provider]\ntype = 'os'", "engine.toml", "type: got 'os', expected one of "),
        ("[executor.provider]\ntype = 'LocalProvider'\nx = 1", "engine.toml", "'x'"),
        ("[executor]\nx = 1\n[executor.provider]\ntype = 'LocalProvider'", "engine.toml", "'x'"),
        (SLURM.replace("SrunLauncher", "Nope"), "engine.toml", "launcher.type: got 'Nope'"),
        (SLURM.replace('"gpu"', "7"), "engine.toml", "partition"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_used_says_why(file, text, name, words):
    path = file(text, name)
    with pytest.raises(CourseError) as caught:
        read_config(path)
    assert str(caught.value).startswith("--engine: ") and words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_not_there(tmp_path):
    with pytest.raises(CourseError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")


def test_there_are_as_many_workers_as_cores_and_memory_carry(monkeypatch):
    memory = type("Memory", (), {"available": 100 * 2**30})
    monkeypatch.setattr(engine.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(engine.os, "sched_getaffinity", lambda _: set(range(8)))

    def workers(jobs=None, device="cpu", environment=()):
        (executor,) = local_config(jobs, device, dict(environment)).executors
        return executor.max_workers_per_node, executor.available_accelerators

    assert workers() == (8, [])
    assert workers(3) == (3, [])
    memory.available = 5 * 2**30
    assert workers() == (2, [])
    memory.available = 0
    assert workers() == (1, [])
    memory.available = 100 * 2**30
    monkeypatch.setattr(engine, "_NAME_GPUS", "print('GPU-a GPU-b')")
    assert workers(device="auto") == (2, ["GPU-a", "GPU-b"])
    assert workers(3, "cuda") == (3, ["GPU-a", "GPU-b", "GPU-a"])
    assert workers(device="cuda", environment={"CUDA_VISIBLE_DEVICES": "5,7"})[0] == 2
    parts = ["MIG-x", "MIG-y"]
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(parts)}
    assert workers(device="cuda", environment=environment) == (2, parts)
    for cores, most in ((4, 2), (12, 4), (128, 10)):
        monkeypatch.setattr(engine.os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        number, names = workers(device="auto")
        assert number == most and names.count("GPU-a") == names.count("GPU-b")
    monkeypatch.setattr(engine, "_NAME_GPUS", "raise SystemExit('no torch')")
    assert workers(device="auto") == (50, [])


TORCH = """
import types
cuda = types.SimpleNamespace(
    device_count=lambda: 2,
    get_device_properties=lambda number: types.SimpleNamespace(uuid="0000-" + "ab"[number]),
)
"""


def test_gpus_are_named_by_what_does_not_depend_on_who_sees_them(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (executor,) = local_config(2, "auto", {"CUDA_VISIBLE_DEVICES": "6,7"}).executors
    assert executor.available_accelerators == ["GPU-0000-a", "GPU-0000-b"]


def test_parsls_own_processes_start_without_its_scripts_on_the_path(file):
    (executor,) = local_config(1, "cpu", {}).executors
    engine._start_by_module(executor)
    assert executor.launch_cmd.startswith(f"{sys.executable} -P -m parsl.")
    assert executor.interchange_launch_cmd[-3:-1] == ["-P", "-m"]
    assert engine._workers(local_config(3, "cpu", {})) == 3
    assert engine._workers(read_config(file(SLURM))) is None
    (executor,) = read_config(file(SLURM)).executors
    engine._start_by_module(executor)
    assert executor.launch_cmd.startswith("process_worker_pool.py")  # of the cluster's Python
    assert executor.interchange_launch_cmd[-3:-1] == ["-P", "-m"]


def of_the_page(name):
    """The file of the instructors' page that is called so there."""
    page = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    after = page.partition(f"`{name}` is:")[2]
    return re.search(r"```toml\n(.*?)```", after, re.DOTALL)[1]


def test_the_pages_file_for_slurm_asks_for_the_whole_node(file, tmp_path):
    (executor,) = read_config(file(of_the_page("slurm.toml"))).executors
    provider = executor.provider
    asked = {
        "--exclusive", "--partition=gpu", "--account=course", "--qos=normal", "--mem=0",
        "--gpus-per-node=4",
    }  # fmt: skip
    options = set(re.findall(r"^#SBATCH (\S+)$", provider.scheduler_options, re.MULTILINE))
    assert options == asked
    hours, minutes, seconds = map(int, provider.walltime.split(":"))
    left_s = hours * 3600 + minutes * 60 + seconds - executor.drain_period
    assert left_s >= Settings().most_s(1)
    assert executor.max_workers_per_node == len(executor.available_accelerators)
    assert provider.worker_init.startswith("cd /srv/judge; ")


def test_the_pages_file_for_kubernetes_asks_for_pods_that_can_work(file, tmp_path, monkeypatch):
    """With Kubernetes' own client, whose API is one that records; Parsl's own start is real."""
    client = pytest.importorskip("kubernetes", reason=f"needs {needs.KUBERNETES}").client
    from parsl.providers.kubernetes import kube

    cluster = pods.Cluster()
    monkeypatch.setattr(kube.config, "load_kube_config", lambda: None)
    monkeypatch.setattr(kube.client, "CoreV1Api", lambda: cluster)
    text = of_the_page("kubernetes.toml")
    same = re.sub(" #.*", "", text).replace('"10.0.0.5"', '"127.0.0.1"').replace("= 8\n", "= 2\n")
    assert tomllib.loads(same) == tomllib.loads(pods.ENGINE)
    config = read_config(file(pods.ENGINE))
    running = ParslEngine(config, tmp_path / ".parsl")
    try:
        assert until(lambda: cluster.pods)
        keys = {p.name: p.read_text() for p in Path(config.executors[0].cert_dir).iterdir()}
    finally:
        running.close()
    (pod,) = cluster.pods.values()
    asked = client.ApiClient().sanitize_for_serialization(pod)["spec"]
    (container,) = asked["containers"]
    assert container["image"] == "registry.example.org/judge:1"
    assert container["resources"] == {
        "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"},
        "requests": {"cpu": "4", "memory": "8Gi"},
    }
    assert (asked["hostUsers"], asked["restartPolicy"]) == (False, "Never")
    assert asked["automountServiceAccountToken"] is False
    unconfined = {"type": "Unconfined"}
    assert container["securityContext"] == {
        "procMount": "Unmasked", "seccompProfile": unconfined, "appArmorProfile": unconfined,
    }  # fmt: skip
    # The command, in a folder that takes the place of the image's, with a worker that says how it
    # was started.
    assert container["command"] == ["/bin/bash"] and container["args"][0] == "-c"
    script = container["args"][1]
    assert str(tmp_path) not in script  # nothing of this machine's folders
    worker = tmp_path / "bin" / "process_worker_pool.py"
    worker.parent.mkdir()
    worker.write_text('#!/bin/sh\necho "$PWD $PYTHONPATH $@"\n')
    worker.chmod(0o755)
    script = script.replace("/tmp/parsl-keys", f"{tmp_path}/keys")
    script = script.replace("/srv/judge", str(tmp_path))
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        env={"PATH": f"{worker.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert f"{tmp_path} {tmp_path} " in done.stdout, done.stderr
    assert f"--cert_dir {tmp_path}/keys " in done.stdout and "--logdir=/tmp/engine" in done.stdout
    assert {p.name: p.read_text() for p in (tmp_path / "keys").iterdir()} == keys
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_a_worker_that_dies_is_a_fault_of_its_task_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_HEARTBEAT_S", 1)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = local_config(1, "cpu", {})
    config.executors[0].available_accelerators = ["6"]
    running = ParslEngine(config, tmp_path / ".parsl")
    try:
        lost = running.submit(subprocess.getoutput, "kill -9 $PPID")
        with pytest.raises(Exception, match="Task failure due to loss of worker"):
            lost.result(60)
        # Parsl's default would end everything when the only node is lost.
        assert config.executors[0].block_error_handler is windowed_error_handler
        told = running.submit(subprocess.getoutput, "echo $CUDA_VISIBLE_DEVICES $PPID")
        gpu, pid = told.result(60).split()
        assert gpu == "6"
        assert Path(f"/proc/{pid}").exists()
    finally:
        running.close()
    assert not Path(f"/proc/{pid}").exists() and not (tmp_path / ".parsl").exists()
    with pytest.raises(parsl.errors.NoDataFlowKernelError):
        parsl.dfk()


def test_an_interchange_that_has_ended_is_said_and_nothing_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_CLEANUP_S", 1.0)
    monkeypatch.setattr(engine, "_HEARTBEAT_S", 1)
    config = local_config(1, "cpu", {})
    running = ParslEngine(config, tmp_path / ".parsl")
    try:
        running.check()
        interchange = config.executors[0].interchange_proc
        assert os.getsid(interchange.pid) == interchange.pid  # no terminal signals it
        interchange.kill()
        interchange.wait()
        with pytest.raises(EngineFault, match=r"interchange has ended \(exit code -9\)"):
            running.check()
        time.sleep(2 * engine._HEARTBEAT_S)  # Parsl has asked it something and waits
        began = time.monotonic()
    finally:
        running.close()
    assert time.monotonic() - began < PROMPT_S
    assert not (tmp_path / ".parsl").exists()


def test_workers_that_share_gpus_are_spread_over_all(tmp_path, monkeypatch):
    smi = tmp_path / "bin" / "nvidia-smi"  # Parsl asks it how many there are
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho GPU 0\necho GPU 1\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(engine, "_NAME_GPUS", "print('GPU-a GPU-b')")
    running = ParslEngine(local_config(3, "cuda", {}), tmp_path / ".parsl")
    try:
        slowly = "sleep 0.5; echo $CUDA_VISIBLE_DEVICES"  # every worker has its turn
        told = [running.submit(subprocess.getoutput, slowly) for _ in range(3)]
        assert sorted(future.result(60) for future in told) == ["GPU-a", "GPU-a", "GPU-b"]
    finally:
        running.close()


def test_an_engine_that_does_not_start_leaves_nothing(tmp_path):
    config = local_config(1, "cpu", {})
    config.executors[0].interchange_launch_cmd = ["/no/such/program"]
    with pytest.raises(EngineFault, match="the engine does not start"):
        ParslEngine(config, tmp_path / ".parsl")
    assert not (tmp_path / ".parsl").exists()


def test_nodes_that_do_not_come_up_end_the_run_with_what_to_look_at(
    file, tmp_path, monkeypatch, grader
):
    text = """
from parsl import Config, HighThroughputExecutor
from parsl.providers import LocalProvider
node = LocalProvider(init_blocks=3, max_blocks=3, worker_init="echo no such module >&2; exit 1")
config = Config(executors=[HighThroughputExecutor("engine", node)], strategy_period=0.5)
"""
    monkeypatch.setattr(grade_class, "check_set", lambda problems: None)
    made = Class(tmp_path, {"ada": "def ("})
    options = ("--course", made.course, "--engine", file(text, "engine.py"), "--device", "cpu")
    code, _, err = grader("class", "grade", made.source, *options)
    assert code == 4 and len(err.splitlines()) == 1
    assert "the engine runs nothing: Executor engine failed" in err
    (log,) = (made.course / ".parsl" / "000" / "submit_scripts").glob("*block-0*.err")
    assert log.read_text() == "no such module\n"

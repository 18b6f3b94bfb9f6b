"""A class on a real Slurm of two nodes, one of which is killed with a grading on it.

`pytest tests/class_on_slurm.py`, by name alone: it takes one to five minutes and needs slurm-wlm.
"""

import subprocess
import sys
import time
from pathlib import Path

from classroom.folder import DATABASE
from classroom.records import Key
from classroom.store import Store
from grader.spec.problem import ROOT, load_problem
from tests import needs, slurm
from tests.harness import model_answer

ENGINE = f"""
[executor]
address = "127.0.0.1"
max_workers_per_node = 1
heartbeat_period = 3
heartbeat_threshold = 15
[executor.provider]
type = "SlurmProvider"
partition = "all"
nodes_per_block = 1
cores_per_node = 1
init_blocks = 2
max_blocks = 2
walltime = "00:20:00"
worker_init = "export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}"
"""
COUNT = 6


def test_a_node_that_dies_costs_no_student_anything(tmp_path):
    if not slurm.installed():
        needs.skip(needs.SLURM)
    problem, answer = load_problem("p02"), model_answer("p02")
    for number in range(COUNT):
        path = tmp_path / "in" / f"s{number}" / "p02" / problem.file
        path.parent.mkdir(parents=True)
        path.write_text(f"{answer}\n# student {number}\n")
    (tmp_path / "engine.toml").write_text(ENGINE)
    command = [sys.executable, "-m", "grader", "class", "grade", str(tmp_path / "in")]
    options = ["--course", tmp_path / "course", "--engine", tmp_path / "engine.toml"]
    graded = ["--only", "p02", "--device", "cpu", "--quick"]
    with slurm.cluster() as cluster:
        run = subprocess.Popen(
            [*command, *map(str, options), *graded],
            cwd=ROOT,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for(lambda: set(cluster.jobs().values()) == {"n1", "n2"} and results(tmp_path), run)
        cluster.kill_node("n1")
        out, _ = run.communicate(timeout=240)
        assert run.returncode == 0, out
        assert not cluster.jobs()
    with Store(tmp_path / "course" / DATABASE) as store:
        found = [store.result(key) for key in keys(store)]
        assert [result.result.verdict for result in found] == ["pass"] * COUNT
        (lost,) = store.faults()  # the node's own grading, which was done again
        assert "loss of manager" in lost.text and store.result(lost.key)


def keys(store):
    version = store.versions()["p02"]
    hashes = [hand_in.files["p02"] for hand_in in store.hand_ins().values()]
    return [Key(problem="p02", sha256=sha256, version=version) for sha256 in hashes]


def results(tmp_path):
    path = tmp_path / "course" / DATABASE
    if not path.exists():
        return 0
    with Store(path) as store:
        return sum(store.result(key) is not None for key in keys(store)) if store.versions() else 0


def wait_for(condition, run):
    deadline = time.monotonic() + 240
    while not condition():
        if run.poll() is not None or time.monotonic() > deadline:
            run.kill()
            raise AssertionError(run.communicate()[0])
        time.sleep(0.3)

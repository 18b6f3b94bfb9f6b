"""A Kubernetes that is none: it records pods, or runs them in an image by Buildah.

`python -m tests.pods IMAGE --quick` grades p02 of two students in containers of an image that
`buildah bud -t IMAGE .` made: the command and its pods, Parsl, its workers and the image are real.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ENGINE = """
[executor]
address = "127.0.0.1"
max_workers_per_node = 1
[executor.provider]
type = "KubernetesProvider"
image = "registry.example.org/judge:1"
namespace = "grading"
init_blocks = 1
max_blocks = 2
init_cpu = 4
max_cpu = 4
init_mem = "8Gi"
max_mem = "8Gi"
extra_limits = { "nvidia.com/gpu" = "1" }
worker_init = "cd /srv/judge; export PYTHONPATH=$PWD"
"""


class Cluster:
    """Takes the place of kubernetes.client.CoreV1Api; `image`, if any, is what runs pods."""

    def __init__(self, image: str | None = None) -> None:
        self.image = image
        self.pods: dict[str, Any] = {}
        self._running: dict[str, subprocess.Popen] = {}

    def create_namespaced_pod(self, namespace: str, body: Any) -> Any:
        self.pods[body.metadata.name] = body
        if self.image is not None:
            (container,) = body.spec.containers
            made = subprocess.check_output(
                ["buildah", "from", "--pull-never", self.image], text=True
            ).strip()
            command = ["buildah", "run", made, "--", *container.command, *container.args]
            self._running[body.metadata.name] = subprocess.Popen(command, start_new_session=True)
        return SimpleNamespace(status="recorded")

    def read_namespaced_pod(self, name: str, namespace: str) -> Any:
        running = self._running.get(name)
        ended = running is not None and running.poll() is not None
        return SimpleNamespace(status=SimpleNamespace(phase="Failed" if ended else "Running"))

    def delete_namespaced_pod(self, name: str, namespace: str, body: Any) -> Any:
        running = self._running.pop(name, None)
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        return SimpleNamespace(status="deleted")


def replace_client(cluster: Cluster) -> None:
    """Let Parsl's provider find this cluster, and no configuration of a real one."""
    from parsl.providers.kubernetes import kube

    kube.config.load_kube_config = lambda: None
    kube.client.CoreV1Api = lambda: cluster


def main() -> int:
    """Grade a class in pods; return the exit code of `class grade`."""
    from grader.commands import cli
    from tests.harness import model_answer
    from tests.records import write_answers

    cluster = Cluster(sys.argv[1])
    replace_client(cluster)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for student in ("ada", "bob"):
            text = f"{model_answer('p02')}\n# {student}\n"
            write_answers(folder / "in" / student, {"p02": text})
        (folder / "engine.toml").write_text(ENGINE)
        options = ["--course", folder / "course", "--engine", folder / "engine.toml"]
        words = ["class", "grade", folder / "in", *options, "--only", "p02", "--device", "cpu"]
        try:
            return cli.main([*map(str, words), *sys.argv[2:]])
        finally:
            for name in list(cluster.pods):
                cluster.delete_namespaced_pod(name, "grading", None)


if __name__ == "__main__":
    sys.exit(main())

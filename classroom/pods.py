"""Pods in which a class is graded: what Parsl's KubernetesProvider leaves out of them.

Source: Parsl 2026.10.26 (parsl/providers/kubernetes/kube.py), kubernetes 37.0.2, and
https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/ (hostUsers, procMount).
"""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path
from typing import Any

from parsl.executors import HighThroughputExecutor

_KEYS = "/tmp/parsl-keys"
_UNCONFINED = "Unconfined"


def fit(executor: HighThroughputExecutor) -> None:
    """Let the executor's pods connect to it, make jails, and do nothing else in the cluster.

    A pod shares no folder with this machine: Parsl's keys travel in its command, logs stay in it.
    Call this before Parsl starts the executor.
    """
    if executor.worker_logdir_root is None:
        executor.worker_logdir_root = "/tmp"
    api = executor.provider.kube_client
    create = api.create_namespaced_pod

    def create_fitted(namespace: str, body: Any) -> Any:
        keys = Path(executor.cert_dir) if executor.cert_dir else None  # made by then
        return create(namespace=namespace, body=fitted(body, keys))

    api.create_namespaced_pod = create_fitted


def fitted(pod: Any, keys: Path | None) -> Any:
    """Return a pod of Parsl's with a command that first writes the keys, and a context for a jail.

    bubblewrap needs namespaces and a /proc without masked paths, which Kubernetes allows in a user
    namespace alone. A pod that ends is not started again, and has no token of a service account.
    """
    from kubernetes import client

    (container,) = pod.spec.containers
    if keys is not None:
        *options, script = container.args
        script = script.replace(f"--cert_dir {keys} ", f"--cert_dir {_KEYS} ")
        container.args = [*options, f"{_writing(keys)}\n{script}"]
    context = container.security_context or client.V1SecurityContext()
    context.proc_mount = "Unmasked"
    context.seccomp_profile = client.V1SeccompProfile(type=_UNCONFINED)
    context.app_armor_profile = client.V1AppArmorProfile(type=_UNCONFINED)
    container.security_context = context
    pod.spec.host_users = False
    pod.spec.restart_policy = "Never"  # else it would look for an interchange for ever
    pod.spec.automount_service_account_token = False
    return pod


def _writing(keys: Path) -> str:
    """Return a script that writes the files of a folder into one of the pod's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(keys.iterdir()):
            archive.add(path, path.name, filter=_of_nobody)
    text = base64.b64encode(packed.getvalue()).decode()
    return f"mkdir -m 700 {_KEYS} && echo {text} | base64 -d | tar xzC {_KEYS} || exit"


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry

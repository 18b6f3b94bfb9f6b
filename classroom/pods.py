"""Adds to the pods of Parsl's KubernetesProvider what gradings need: keys, and rights for a jail.

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
    """Make the executor's pods able to connect to it and to make jails, without other rights.

    A pod shares no folder with this machine: its command carries Parsl's keys, and logs stay in
    the pod. Call this before Parsl starts the executor.
    """
    if executor.worker_logdir_root is None:
        executor.worker_logdir_root = "/tmp"
    api = executor.provider.kube_client
    create = api.create_namespaced_pod

    def create_fitted(namespace: str, body: Any) -> Any:
        keys = Path(executor.cert_dir) if executor.cert_dir else None  # exists only now
        return create(namespace=namespace, body=fitted(body, keys))

    api.create_namespaced_pod = create_fitted


def fitted(pod: Any, keys: Path | None) -> Any:
    """Return Parsl's pod with a command that writes the keys first, and a context for a jail.

    bubblewrap needs namespaces and a /proc without masked paths, which Kubernetes allows only in a
    user namespace. A pod is never restarted, and has no service account token.
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
    pod.spec.restart_policy = "Never"  # a restarted one would wait for an interchange for ever
    pod.spec.automount_service_account_token = False
    return pod


def _writing(keys: Path) -> str:
    """Return a script that writes the files of `keys` into a folder of the pod."""
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

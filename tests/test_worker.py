"""What the real worker process leaves in reach of a submission."""

import json

from grader.manifest import ROOT
from grader.protocol import Status
from grader.sandbox import Sandbox

ANSWER = b"""
import json, os, resource, socket, sys
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{fd}")}
fork = socket.socket(fileno=os.dup(int(sys.argv[1])))
for nonce in range(20):  # forged: every answer but the one that was asked for
    fork.send(b"grader1\\0" + nonce.to_bytes(8, "little") + bytes(2144))
print(json.dumps({
    "environment": dict(os.environ), "descriptors": links, "path": sys.path,
    "modules": [m for m in sys.modules if m.startswith(("grader", "reference", "pytest"))],
    "session": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
    "first": open("/proc/self/oom_score_adj").read(),
    **{name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))
       for name in ("CORE", "FSIZE", "AS")},
}))
"""


def test_the_real_worker_gives_a_submission_little(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    monkeypatch.setenv("GRADER_SECRET", "seed")
    monkeypatch.setenv("LD_PRELOAD", "")
    with Sandbox(ANSWER, "answer.py", "answer", device="cpu", interpret=True) as worker:
        assert worker.ready().status is Status.NO_ENTRY
        found = json.loads(worker.output())
        assert worker.ask("release", 10.0).status is Status.OK
    known = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_HOME", "CC", "HOME"}
    known |= {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH", "TMPDIR"}
    known |= {"TRITON_PTXAS_PATH", "TRITON_CACHE_DIR", "TRITON_INTERPRET", "OMP_NUM_THREADS"}
    unknown = found["environment"].keys() - known - {"PYTHONDONTWRITEBYTECODE"}
    assert {n for n in unknown if not n.startswith(("KMP_", "TORCH", "PYTORCH"))} == set()
    assert found["environment"]["HOME"] == found["environment"]["TMPDIR"] == found["cwd"]
    others = {n: t for n, t in found["descriptors"].items() if int(n) > 2}
    assert sum("socket" in target for target in others.values()) == 1
    assert not [t for t in others.values() if str(ROOT) in t or "memfd" in t or "pipe" in t]
    assert str(ROOT) not in found["path"] and str(tmp_path) not in found["path"]
    assert not [m for m in found["modules"] if m.startswith(("reference", "pytest"))]
    assert found["session"] == found["pid"] == worker.pid
    assert found["CORE"] == [0, 0] and found["FSIZE"][1] == 2**30 and found["first"] == "1000\n"
    assert found["AS"][1] < 40 * 2**30

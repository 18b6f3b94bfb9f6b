"""grader/environment.py: what a machine can measure, from versions and torch's own word."""

import pytest

from grader import environment
from grader.cli import _jobs
from grader.environment import EnvironmentFault, interpreter_works, probe

H200 = {
    "cuda_build": "13.0",
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "capability": [9, 0],
    "device_bytes": 150_109_880_320,
}


@pytest.fixture
def versions(monkeypatch):
    """Versions that importlib.metadata reports; None is a package that is not installed."""
    found = {"torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "2.3.5"}

    def version(name):
        if found[name] is None:
            raise environment.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(environment.metadata, "version", version)
    return found


def test_a_cuda_build_is_asked_for_its_device(versions, monkeypatch):
    monkeypatch.setattr(environment, "_probe_torch", lambda: dict(H200))
    found = probe("auto")
    assert (found.device, found.device_name) == ("cuda", "NVIDIA H200")
    assert found.facts["torch"] == "2.11.0+cu130"
    assert 1 <= _jobs(found) <= 9
    assert probe("cpu").device == "cpu"


def test_a_cpu_build_answers_without_importing_torch(versions, monkeypatch):
    versions["torch"] = "2.13.0+cpu"
    monkeypatch.setattr(environment, "_probe_torch", lambda: pytest.fail("imported torch"))
    assert probe("auto").device == "cpu"
    with pytest.raises(EnvironmentFault, match="no usable CUDA GPU"):
        probe("cuda")


def test_the_real_probe_runs_here():
    assert "cuda_build" in environment._probe_torch()


def test_an_old_gpu_is_refused(versions, monkeypatch):
    monkeypatch.setattr(environment, "_probe_torch", lambda: H200 | {"capability": [7, 0]})
    with pytest.raises(EnvironmentFault, match=r"compute capability \[7, 0\]"):
        probe("auto")


@pytest.mark.parametrize("package", ["torch", "triton", "numpy"])
def test_a_missing_package_is_named(versions, package):
    versions[package] = None
    with pytest.raises(EnvironmentFault, match=f"{package} is not installed; run `make setup`"):
        probe("cpu")


@pytest.mark.parametrize(
    ("triton", "numpy", "works"),
    [("3.6.0", "2.3.5", True), ("3.6.0", "2.4.1", False), ("3.7.1", "2.4.6", True)],
)
def test_versions_whose_interpreter_works(versions, triton, numpy, works):
    assert interpreter_works(triton, numpy) == works
    versions |= {"torch": "2.13.0+cpu", "triton": triton, "numpy": numpy}
    if works:
        assert probe("cpu").interpreter_works
    else:
        with pytest.raises(EnvironmentFault, match=r"numpy<2\.4"):
            probe("cpu")

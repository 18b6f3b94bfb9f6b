"""grader/spec/environment.py: what a machine can measure, from versions and torch's own word."""

import json
import subprocess
import sys
import types

import pytest

from grader.judge import surroundings
from grader.spec import environment
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment
from grader.timing.implied import RECORDED_CHIP

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
    assert isinstance(found, Environment)
    assert (found.device, found.device_name, found.capability) == ("cuda", "NVIDIA H200", (9, 0))
    assert (found.torch, found.triton, found.numpy) == ("2.11.0+cu130", "3.6.0", "2.3.5")
    assert (found.device_bytes, found.cuda_build) == (150_109_880_320, "13.0")
    assert found.python and found.platform
    assert Environment.model_validate_json(found.model_dump_json()) == found


def test_the_cpu_may_be_asked_for(versions, monkeypatch):
    monkeypatch.setattr(environment, "_probe_torch", lambda: pytest.fail("asked for the GPU"))
    found = probe("cpu")
    assert (found.device, found.capability, found.device_bytes) == ("cpu", None, None)


def test_a_cuda_build_without_a_gpu_grades_on_the_cpu(versions, monkeypatch):
    monkeypatch.setattr(environment, "_probe_torch", lambda: {"cuda_build": "13.0"})
    assert probe("auto").device == "cpu"
    with pytest.raises(EnvironmentFault, match=r"no usable CUDA GPU .*use --device cpu"):
        probe("cuda")


def test_a_cpu_build_answers_without_importing_torch(versions, monkeypatch):
    versions["torch"] = "2.13.0+cpu"
    monkeypatch.setattr(environment, "_probe_torch", lambda: pytest.fail("imported torch"))
    assert probe("auto").device == "cpu"
    with pytest.raises(EnvironmentFault, match="no usable CUDA GPU"):
        probe("cuda")


def test_the_real_probe_runs_here():
    assert "cuda_build" in environment._probe_torch()


RATES = {"clock_rate": 1_980_000, "memory_clock_rate": 3_201_000, "memory_bus_width": 6016}


@pytest.mark.parametrize("missing", [None, *RATES])
def test_the_probe_asks_for_the_rates_of_a_gpu(monkeypatch, capsys, missing):
    rates = {name: rate for name, rate in RATES.items() if name != missing}
    known = {"total_memory": 8, "uuid": "8f6d", "multi_processor_count": 132}
    properties = types.SimpleNamespace(**known, **rates)
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda: "NVIDIA H200",
        get_device_capability=lambda: (9, 0),
        get_device_properties=lambda index: properties,
    )
    version = types.SimpleNamespace(cuda="13.0")
    fake = types.SimpleNamespace(cuda=cuda, version=version)
    monkeypatch.setitem(sys.modules, "torch", fake)
    exec(environment._PROBE, {})
    found = Environment(**json.loads(capsys.readouterr().out))
    assert (found.device_name, found.device_bytes) == ("NVIDIA H200", 8)
    assert found.device_uuid == "8f6d"
    expected = None if missing else RECORDED_CHIP
    assert found.chip == expected


MODULE = "NVRM version: NVIDIA UNIX {}  580.159.04  Tue Oct  7 2025\nGCC version: gcc 12.2.0\n"


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (MODULE.format("x86_64 Kernel Module"), "580.159.04"),
        (MODULE.format("Open Kernel Module for x86_64"), "580.159.04"),
        ("NVRM version: something else\n", None),
        (None, None),
    ],
)
def test_the_driver_is_that_of_the_kernel_module(versions, monkeypatch, tmp_path, text, driver):
    path = tmp_path / "version"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(environment, "_DRIVER", path)
    monkeypatch.setattr(environment, "_probe_torch", lambda: dict(H200))
    assert probe("auto").driver == driver and probe("cpu").driver is None


@pytest.mark.parametrize("said", ["ImportError: libcudart.so.12: cannot open", ""])
def test_a_torch_that_cannot_be_imported_says_why(monkeypatch, said):
    done = subprocess.CompletedProcess([], 1, "", f"Traceback\n{said}\n")
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: done)
    told = f"torch cannot be imported: {said or 'Traceback'}; run `make setup` again"
    with pytest.raises(EnvironmentFault) as caught:
        environment._probe_torch()
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("capability", "usable"), [([7, 0], False), ([7, 5], True), ([12, 0], True)]
)
def test_a_gpu_that_is_too_old_is_refused(versions, monkeypatch, capability, usable):
    monkeypatch.setattr(environment, "_probe_torch", lambda: H200 | {"capability": capability})
    if usable:
        assert probe("auto").capability == tuple(capability)
        return
    with pytest.raises(EnvironmentFault, match=r"compute capability \[7, 0\], expected 7.5 or"):
        probe("auto")


@pytest.mark.parametrize("package", ["torch", "triton", "numpy"])
def test_a_missing_package_is_named(versions, package):
    versions[package] = None
    with pytest.raises(EnvironmentFault, match=f"{package} is not installed; run `make setup`"):
        probe("cpu")


@pytest.mark.parametrize(
    ("triton", "note"),
    [
        ("3.6.0", None),
        ("3.7.1", None),
        ("3.8.0", None),
        ("3.9.0", "Triton 3.9.0 has no block pointers: tl.make_block_ptr raises"),
        ("3.9.0+git1", "Triton 3.9.0+git1 has no block pointers: tl.make_block_ptr raises"),
        ("3.5.1", "Triton 3.5.1 is untested here: expected 3.6 to 3.9"),
        ("3.10.0", "Triton 3.10.0 is untested here: expected 3.6 to 3.9"),
        ("nonsense", "Triton nonsense is untested here: expected 3.6 to 3.9"),
    ],
)
def test_what_a_version_of_triton_lacks_is_said_once(versions, monkeypatch, triton, note):
    versions |= {"triton": triton}
    monkeypatch.setattr(environment, "_probe_torch", lambda: dict(H200))
    assert probe("auto").notes == ((note,) if note else ())


GIB = 2**30


@pytest.mark.parametrize(
    ("device", "cores", "free_gib", "device_gib", "jobs"),
    [
        ("cpu", 1, 64, None, 1),
        ("cpu", 2, 64, None, 2),
        ("cpu", 64, 64, None, 4),
        ("cpu", 64, 2, None, 2),
        ("cpu", 64, 0, None, 1),
        ("cuda", 64, 256, 139, 9),
        ("cuda", 16, 256, 8, 4),
        ("cuda", 16, 10, 139, 3),
        ("cuda", 16, 256, None, 1),
    ],
)
def test_as_many_problems_side_by_side_as_the_machine_carries(
    monkeypatch, device, cores, free_gib, device_gib, jobs
):
    monkeypatch.setattr("grader.isolate.capacity.cores", lambda: float(cores))
    monkeypatch.setattr("grader.isolate.capacity.free_bytes", lambda: free_gib * GIB)
    bytes_ = device_gib and device_gib * GIB
    found = Environment(device=device, device_name="x", device_bytes=bytes_)
    assert surroundings.jobs(found) == jobs

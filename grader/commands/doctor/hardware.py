"""What `doctor` says of GPU, memory, disk and clock: level, what was found, what to type."""

from __future__ import annotations

import re

from grader.commands.doctor.machine import Machine
from grader.commands.doctor.patient import ERROR, GIB, OK, WARNING, Patient, version

LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 1.5 * GIB
REPEATS = 20
NOISY = 1.1  # 90th percentile over median
# The oldest driver for the builds of CUDA 12 and 13: NVIDIA's page "CUDA Compatibility",
# https://docs.nvidia.com/deploy/cuda-compatibility/
DRIVERS = {12: 525, 13: 580}


def gpu(patient: Patient) -> tuple[str, ...]:
    found = patient.imports
    if "gpu" in found:
        capability = tuple(found["capability"])
        said = f"{found['gpu']}, compute capability {'.'.join(map(str, capability))},"
        said += f" {found.get('gpu_bytes', 0) / GIB:.0f} GiB"
        if capability < (7, 5):
            return WARNING, f"{said}; expected 7.5 or newer", "make grade DEVICE=cpu"
        if capability < (8, 0):
            return WARNING, f"{said}; it has no bf16: those cases are not run", "make grade"
        return OK, said
    without = "kernels run in Triton's interpreter, speed is not measured"
    if patient.has_gpu:
        return WARNING, f"there is one, and torch cannot use it: {without}", "see torch, driver"
    if _nvidia_card(patient.machine):
        remedy = "install NVIDIA's driver: https://www.nvidia.com/drivers"
        return WARNING, f"an NVIDIA card without a driver: {without}", remedy
    return OK, f"none: {without}"


def _nvidia_card(machine: Machine) -> bool:
    """Whether /proc/bus/pci/devices lists a device of NVIDIA's (vendor 10de)."""
    listed = machine.read("/proc/bus/pci/devices") or ""
    return any(re.match(r"\S+\s+10de", row, re.IGNORECASE) for row in listed.splitlines())


def driver(patient: Patient) -> tuple[str, ...]:
    text = patient.machine.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"\bKernel Module\b.*?\s(\d+)\.(\d+(?:\.\d+)?)\s", text)
    build = version(patient.imports.get("cuda_build"))
    if match is None:
        return OK, "none" if not patient.has_gpu else "its version cannot be read here"
    got, oldest = f"{match[1]}.{match[2]}", DRIVERS.get(build[0]) if build else None
    if oldest is not None and int(match[1]) < oldest:
        said = f"{got}, CUDA {build[0]} needs {oldest} or newer"
        return WARNING, said, "update NVIDIA's driver: https://www.nvidia.com/drivers"
    return OK, got


def memory(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    text = machine.read("/proc/meminfo") or ""
    kib = {name: int(n) for name, n in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "MemTotal" not in kib:
        return WARNING, "/proc/meminfo cannot be read", "ls -l /proc/meminfo"
    total, free = (1024 * kib.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    limit = (machine.read("/sys/fs/cgroup/memory.max") or "").strip()
    of = ""
    if limit.isdigit() and int(limit) < total:
        total, of = int(limit), " (the limit of this container)"
        free = min(free, total - int(machine.read("/sys/fs/cgroup/memory.current") or "0"))
    said = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB{of}"
    if free < TOO_LITTLE_MEMORY:
        return ERROR, f"{said}; a problem takes up to 1.5 GiB", "close other programs"
    if total < LITTLE_MEMORY:
        return WARNING, f"{said}: grade one problem at a time", "make grade P=p01"
    return OK, said


def disk(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    free = machine.free_bytes(str(machine.root))
    said = f"{free / GIB:.1f} GiB free"
    needed = (10 if patient.has_gpu else 2) if patient.missing else 1
    if free < needed * GIB:
        for_what = "for what is compiled" if needed == 1 else "for the set-up"
        said += f"; {needed} GiB are needed {for_what}"
        return (WARNING if needed == 1 else ERROR), said, "df -h . (and free some space)"
    return OK, said


def clock(patient: Patient) -> tuple[str, ...]:
    """How far one fixed loop varies: what is timed here varies as much."""
    times = sorted(patient.machine.loop_ms(REPEATS))
    ratio = times[int(0.9 * (len(times) - 1))] / times[len(times) // 2]
    said = f"a fixed loop takes up to {ratio:.2f} times its usual time"
    if ratio > NOISY:
        return WARNING, f"{said}: the machine is busy", "close other programs (top lists them)"
    return OK, said

"""What `doctor` says of Python and its packages: level, what was found, what to type."""

from __future__ import annotations

import re

from grader.commands.doctor.patient import ERROR, OK, REDO, WARNING, Patient, version

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
TRITONS = ((3, 6), (3, 9))
NUMPY_TOO_NEW = (2, 4)  # for the interpreter of Triton 3.6


def python(patient: Patient) -> tuple[str, ...]:
    got = ".".join(map(str, patient.machine.python[:3]))
    if patient.machine.python[:2] < OLDEST_PYTHON:
        said = f"got {got}, expected 3.11 or newer"
        return ERROR, said, "install Python 3.12, then: make setup PYTHON=python3.12"
    return OK, f"{got}, {patient.machine.executable}"


def set_up(patient: Patient) -> tuple[str, ...]:
    machine, folder = patient.machine, patient.machine.root / ".venv"
    ready = machine.exists(f"{folder}/.ready")
    if not str(machine.executable).startswith(f"{folder}/"):
        if ready:
            return WARNING, "this Python is not the one of .venv", "make doctor"
        if patient.missing:
            return ERROR, "there is no .venv yet", "make setup"
        return OK, "no .venv: the packages of this Python are used"
    if not ready:
        return ERROR, ".venv is not finished", REDO
    for name in ("requirements.txt", "pyproject.toml"):
        if machine.is_older(f"{folder}/.ready", str(machine.root / name)):
            return WARNING, f".venv is older than {name}", "make setup"
    return OK, ".venv is up to date"


def packages(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    if patient.missing:
        return ERROR, f"not installed: {', '.join(patient.missing)}", "make setup"
    pins = re.findall(
        r"^([\w.-]+)==(\S+)", machine.read(f"{machine.root}/requirements.txt") or "", re.MULTILINE
    )
    others = []
    for name, pinned in pins:
        got = machine.installed(name)
        if got is not None and got.partition("+")[0] != pinned:
            others.append(f"{name} {got} (tested: {pinned})")
    if not others:
        return OK, "the versions of requirements.txt"
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return WARNING, f"other versions than those that are tested: {shown}", REDO


def torch(patient: Patient) -> tuple[str, ...]:
    machine, found = patient.machine, patient.imports
    if machine.installed("torch") is None and "torch" not in found:
        return ERROR, "not installed", "make setup"
    if "torch" not in found:
        return ERROR, f"cannot be imported: {found.get('torch_error')}", REDO
    got, build = found["torch"], found.get("cuda_build")
    if version(got) < OLDEST_TORCH:
        return ERROR, f"got {got}, expected 2.11 or newer", REDO
    if found.get("hip_build"):
        return WARNING, f"{got} is a build for AMD's GPUs, which are not used here", REDO
    if patient.has_gpu and not build:
        return WARNING, f"{got} is a build for the CPU: it does not use the NVIDIA GPU", REDO
    return OK, f"{got}, {f'CUDA {build}' if build else 'a build for the CPU'}"


def triton(patient: Patient) -> tuple[str, ...]:
    machine, found = patient.machine, patient.imports
    if machine.installed("triton") is None and "triton" not in found:
        return ERROR, "not installed", "make setup"
    if "triton" not in found:
        why = found.get("triton_error") or "the process that tried to ended"
        return ERROR, f"cannot be imported: {why}", REDO
    got, numpy = found["triton"], machine.installed("numpy")
    if not TRITONS[0] <= version(got)[:2] <= TRITONS[1]:
        return WARNING, f"{got} is untested here: expected 3.6 to 3.9", REDO
    if version(got)[:2] < (3, 7) and version(numpy)[:2] >= NUMPY_TOO_NEW:
        said = f"{got} with numpy {numpy}: its interpreter fails on loops with a runtime bound"
        return ERROR, said, f"{machine.executable} -m pip install 'numpy<2.4'"
    return OK, f"{got}, with numpy {numpy}"

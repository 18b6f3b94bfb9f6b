"""What `doctor` says of system and shell: level, what was found, what to type."""

from __future__ import annotations

from grader.commands.doctor.patient import ERROR, OK, WARNING, Patient


def system(patient: Patient) -> tuple[str, ...]:
    if patient.machine.system != "linux":
        said = f"got {patient.machine.system}, expected Linux: Triton is made for Linux alone"
        return ERROR, said, "on Windows: wsl --install; else use a Linux machine or container"
    if not patient.in_wsl:
        return OK, "Linux"
    if "wsl2" not in patient.linux.lower():
        return ERROR, "WSL 1, which has no Linux kernel", "in PowerShell: wsl --set-version NAME 2"
    found = "WSL 2: on its GPU neither speed nor memory can be measured; all else can"
    if str(patient.machine.root).startswith("/mnt/"):
        found += ". This folder is on a Windows disk, which is slow"
        return WARNING, found, f"cp -r '{patient.machine.root}' ~"
    return WARNING, found, "for the points for speed, grade on a Linux machine"


def compiler(patient: Patient) -> tuple[str, ...]:
    """Triton compiles a launcher for each kernel; without a GPU it launches none."""
    machine = patient.machine
    level = ERROR if "gpu" in patient.imports else WARNING
    chosen = machine.environment.get("CC")
    if chosen and machine.which(chosen) is None:
        return level, f"CC={chosen} is not installed", "unset CC"
    found = next(filter(None, map(machine.which, filter(None, (chosen, "gcc", "clang")))), None)
    if found is None:
        said = "no gcc: Triton needs a C compiler to launch kernels on a GPU"
        return level, said, "sudo apt-get install gcc"
    headers = machine.python_headers()
    if not machine.exists(headers):
        said = f"{found}, but {headers} is missing: Triton needs it on a GPU"
        return level, said, "sudo apt-get install python3-dev"
    return OK, found


def folders(patient: Patient) -> tuple[str, ...]:
    """The checkout, where Triton keeps what it compiles, and temporary files."""
    machine, environment = patient.machine, patient.machine.environment
    home = environment.get("TRITON_HOME") or environment.get("HOME", "")
    cache = environment.get("TRITON_CACHE_DIR") or f"{home}/.triton"
    temporary = environment.get("TMPDIR") or "/tmp"
    for path, what in ((str(machine.root), "this folder"), (temporary, "temporary files")):
        if not machine.writable(path):
            return ERROR, f"{what}: no write access to {path}", f"ls -ld '{path}'"
    if not machine.writable(cache):
        said = f"Triton cannot keep what it compiles in {cache}"
        return WARNING, said, "export TRITON_CACHE_DIR=/tmp/triton"
    return OK, "writable"


def variables(patient: Patient) -> tuple[str, ...]:
    """What is set in the shell and changes what Python or Triton does."""
    environment, said, unset = patient.machine.environment, [], []
    if environment.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "false", "off", "no"):
        said.append("TRITON_INTERPRET: your own programs run in the interpreter, on a GPU too")
        unset.append("TRITON_INTERPRET")
    if environment.get("PYTHONPATH"):
        said.append("PYTHONPATH: its packages come before those of .venv")
        unset.append("PYTHONPATH")
    if environment.get("PYTHONOPTIMIZE"):
        said.append("PYTHONOPTIMIZE: Python leaves assertions out")
        unset.append("PYTHONOPTIMIZE")
    if environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") and patient.has_gpu:
        said.append("CUDA_VISIBLE_DEVICES: it hides the GPU")
        unset.append("CUDA_VISIBLE_DEVICES")
    if said:
        return WARNING, "set in this shell: " + "; ".join(said), f"unset {' '.join(unset)}"
    return OK, "nothing that disturbs is set in this shell"


def terminal(patient: Patient) -> tuple[str, ...]:
    encoding = patient.machine.encoding
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        said = f"got the encoding {encoding}, expected UTF-8: some letters become ?"
        return WARNING, said, "export LC_ALL=C.UTF-8"
    return OK, "UTF-8"


def bubblewrap(patient: Patient) -> tuple[str, ...]:
    machine, name = patient.machine, "kernel.apparmor_restrict_unprivileged_userns"
    use = "only OFFICIAL=1 needs it"
    found = machine.which("bwrap")
    if found is None:
        return WARNING, f"not installed; {use}", "sudo apt-get install bubblewrap"
    restricted = machine.read("/proc/sys/" + name.replace(".", "/")) or "0"
    if restricted.strip() == "1":
        return WARNING, f"AppArmor keeps it from making a jail; {use}", f"sudo sysctl {name}=0"
    return OK, found

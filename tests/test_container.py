"""Containerfile: what it copies exists, its steps run, and it is started as the page says.

No container engine is asked for: instructions are read here, and the scripts of the steps that
change nothing outside of a folder are run in one.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys

import pytest

from grader.isolate import inspection
from grader.spec.problem import ROOT
from tests import needs

TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("ci", "trust")
}


def instructions():
    """The instructions in order, continued lines joined, comments left out."""
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def of(kind):
    return [rest for name, rest in instructions() if name == kind]


def test_it_has_instructions_that_there_are_and_one_stage():
    kinds = {"FROM", "RUN", "WORKDIR", "ENV", "COPY", "ARG", "USER", "ENTRYPOINT"}
    assert {name for name, _ in instructions()} == kinds
    assert of("FROM") == ["docker.io/library/debian:bookworm-slim"]
    assert of("ARG") == ["DEVICE=cpu"] and of("USER") == ["judge"]
    assert of("WORKDIR") == ["/srv/judge"]


def test_a_node_of_a_class_finds_judge_and_workers_in_it():
    """What the page's Slurm and Kubernetes start there: tests/pods.py runs it in the image."""
    page = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    folders = re.findall(r'^worker_init = "cd (\S+);', page, re.MULTILINE)
    assert len(folders) == 2 and set(folders) == set(of("WORKDIR"))
    (path,) = of("ENV")
    assert path.startswith(f"PATH={folders[0]}/.venv/bin:")
    assert "classroom classroom" in of("COPY")
    assert "parsl==" in (ROOT / "requirements-course.lock").read_text()


def test_what_is_copied_exists_and_has_no_answers():
    copied = [source for line in of("COPY") for source in line.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
    assert not set(copied) & {".", "solutions", "tests", ".git"}
    # What a judge that is handed on consists of is there.
    tops = {"grader", "reference", "problems", "pyproject.toml", "LICENSE", "requirements.txt"}
    tops |= {"requirements.lock", "requirements-course.lock", "classroom"}
    assert tops <= set(copied)


def test_packages_are_those_that_the_judge_needs():
    install = next(line for line in of("RUN") if "apt-get install" in line)
    names = install.partition("--no-install-recommends")[2].partition("&&")[0].split()
    assert names == sorted(names)
    needed = {"bubblewrap", "gcc", "python3", "python3-venv", "python3-dev", "ca-certificates"}
    assert needed <= set(names)
    assert "rm -rf /var/lib/apt/lists/*" in install


@pytest.mark.parametrize("line", of("RUN"))
def test_steps_are_scripts_of_the_shell(line):
    subprocess.run(["sh", "-n", "-c", line], check=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_pinned_versions_are_installed(tmp_path, device):
    """Run the step that installs, with a pip that writes down what it is asked for."""
    (step,) = (line for line in of("RUN") if "pip install" in line)
    (tmp_path / "requirements.txt").write_bytes((ROOT / "requirements.txt").read_bytes())
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "python3").write_text(
        "#!/bin/sh\nmkdir -p .venv/bin\nprintf '#!/bin/sh\\necho \"$@\" >> asked\\n'"
        " > .venv/bin/python\nchmod +x .venv/bin/python\n"
    )
    (fake / "python3").chmod(0o755)
    variables = {"PATH": f"{fake}:/usr/bin:/bin", "DEVICE": device}
    subprocess.run(["sh", "-ec", step], cwd=tmp_path, env=variables, check=True)
    locked, torch = (tmp_path / "asked").read_text().splitlines()
    both = "-r requirements.lock -r requirements-course.lock"
    assert locked.endswith(f" --require-hashes --no-deps {both}")
    version = re.search(r"^torch==\S+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[0]
    if device == "cpu":
        version = f"--extra-index-url https://download.pytorch.org/whl/cpu {version}+cpu"
    assert torch.endswith(f" --disable-pip-version-check {version}")


def test_the_judge_runs_as_nobody_special():
    order = [name for name, _ in instructions()]
    assert order.index("USER") > max(i for i, name in enumerate(order) if name == "COPY")
    assert of("ENTRYPOINT") == ['[".venv/bin/python", "-m", "grader"]']


def test_the_judge_may_be_the_first_process_of_a_container(tmp_path):
    """As `podman run` starts it: the jail has a process 1, too, and that is no hole."""
    needs.a_jail()
    script = (
        "import os\nfrom grader.isolate import inspection\n"
        "inspection.inspect(gpu=None)\nprint('process', os.getpid())\n"
    )
    first = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid() != 0:
        first += ["--user", "--map-user=1000"]
    done = subprocess.run(
        [*first, sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout == "process 1\n", done.stderr


def test_page_and_remedy_name_the_same_options():
    options = re.findall(r"--security-opt \S+", inspection._REMEDY)
    wanted = [f"--security-opt {word}" for word in (
        "seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined", "unmask=ALL",
    )]  # fmt: skip
    assert [option.rstrip(",;)") for option in options] == wanted
    for page in PAGES.values():
        text = " ".join(page.replace("\\\n", " ").split())
        for option in wanted:
            assert option in text, option


def test_commands_of_the_page_run_what_it_builds():
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGES["ci"], re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "podman run" in block)
    build, run = block.replace("\\\n", "").strip().split("\n")
    assert shlex.split(build) == shlex.split("podman build -t judge .")
    assert f"#   {build}" in TEXT
    words = shlex.split(run)
    after = words[words.index("judge") + 1 :]
    assert after[0] == "grade" and "--official" in after and words[:2] == ["podman", "run"]
    assert words[words.index("--network") + 1] == "none"
    mounts = dict(w.split(":", 1) for before, w in itertools.pairwise(words) if before == "-v")
    assert mounts == {"$PWD/answers": "/answers:ro", "$PWD/out": "/out"}

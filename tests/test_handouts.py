"""The handouts: their shape, their numbers, and everything they name exists."""

import ast
import contextlib
import importlib
import io
import re
import shutil
import subprocess

import pytest

from grader.checks.performance import SLACK_BYTES
from grader.commands.cli import parser_of
from grader.kernel.machine.engine import Engine
from grader.spec.problem import PROBLEMS, ROOT, load_problem, problem_ids
from grader.spec.problem_tables import WORK
from tests import steps
from tests.forked import forked_workers
from tests.harness import edited, judge, model_answer
from tests.mutants import p06
from tests.on_machine import machine_in_process
from tests.shares import drawn
from tests.steps import handout

SECTIONS = (
    "Goal", "Before you start", "The idea", "Interface", "Steps", "How you are graded",
    "Check your work", "Sources",
)  # fmt: skip
MOST_WORDS = 140  # of a step
# What a student should have thought about before the kernel that needs it, and a word of it.
SUBJECTS = {
    "dot product": "p01",
    "shape of `q @ k.T`": "p01",
    "subtract the largest score": "p01",
    "DRAM": "p01",
    "*tiling*": "p01",
    "How many bytes does the score matrix": "p01",
    "fp16 and bf16": "p02",
    "*fused* kernel": "p02",
    "$1/\\sqrt{d}$": "p03",
    "causal mask hide": "p04",
    "minus infinity do in a softmax": "p04",
    "large negative number": "p04",
    "Decoding": "p05",
    "training": "p05",
    "KV cache": "p05",
    "peaked softmax": "p07",
    "softmax is peaked": "p08",
    "gpt-oss": "p09",
}
# Markdown on GitHub takes these backslashes away before the formula is typeset, and may take an
# underscore after a bracket for emphasis. Formulas in ```math and $`...`$ are safe from both.
MATH_TRAPS = re.compile(r"\\[,;:!{}_]|[^\w\s]_")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONGEST_LINE = 80

each_problem = pytest.mark.parametrize(
    "problem", [load_problem(id) for id in problem_ids()], ids=problem_ids()
)


def sections(problem):
    """The text of every `##` section by its heading, in order; code blocks left in."""
    parts = re.split(r"^## (.+)$", handout(problem), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def prose(problem):
    """The handout without its code blocks."""
    return FENCE.sub("", handout(problem))


def test_every_picture_stands_in_a_handout_or_a_page():
    texts = [path.read_text(encoding="utf-8") for path in documents()]
    shown = {name for text in texts for name in re.findall(r"pictures/([\w-]+)\.svg\)", text)}
    assert shown == {path.stem for path in (ROOT / "docs" / "pictures").glob("*.svg")}


def inline_code(problem):
    return re.findall(r"`([^`\n]+)`", prose(problem))


def documents():
    """Every page that a student or an instructor reads."""
    yield from sorted(PROBLEMS.glob("p*/*.md"))
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


@each_problem
def test_sections_are_there_in_order(problem):
    assert handout(problem).startswith(f"# {problem.id}: {problem.title}\n")
    assert tuple(sections(problem)) == SECTIONS
    assert all(text.strip() for text in sections(problem).values())
    assert "\n### Worked example\n" in sections(problem)["The idea"]


@each_problem
def test_each_step_is_short(problem):
    bodies = re.split(r"^### Step ", sections(problem)["Steps"], flags=re.MULTILINE)[1:]
    assert all(len(re.findall(r"[A-Za-z][\w'’-]*", body)) <= MOST_WORDS for body in bodies)


@each_problem
def test_a_step_names_what_of_triton_its_answer_calls(problem):
    numbers = range(1, len(problem.steps) + 1)
    lacks = {n: steps.needed(problem, n) - steps.named(problem, n) for n in numbers}
    assert not any(lacks.values()), lacks


def beside(problem, name):
    """The text of HINTS.md or ANSWERS.md."""
    return (problem.folder / name).read_text(encoding="utf-8")


@each_problem
def test_lead_in_questions_have_answers_in_a_file_of_their_own(problem):
    text = sections(problem)["Before you start"]
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 3 <= len(numbers) <= 6
    assert re.findall(r"\(ANSWERS\.md#(\d+)\)", text) == [str(n) for n in numbers]
    answers = beside(problem, "ANSWERS.md")
    assert answers.startswith(f"# Answers: {problem.id}")
    parts = re.split(r"^## (\d+)$", answers, flags=re.MULTILINE)
    assert parts[1::2] == [str(n) for n in numbers]
    assert all(len(answer.split()) > 5 for answer in parts[2::2])


def test_lead_in_questions_cover_the_subjects():
    asked = {id: sections(load_problem(id))["Before you start"] for id in problem_ids()}
    missing = {word: id for word, id in SUBJECTS.items() if word not in " ".join(asked[id].split())}
    assert not missing


@each_problem
def test_steps_are_those_of_problem_toml(problem):
    text = sections(problem)["Steps"]
    parts = re.split(r"^### Step (\d+): (.+)$", text, flags=re.MULTILINE)
    found = list(zip(parts[1::3], parts[2::3], strict=True))
    assert found == [(str(n), step.title) for n, step in enumerate(problem.steps, start=1)]
    for step, body in zip(problem.steps, parts[3::3], strict=True):
        assert body.strip(), step.title
        for said in re.findall(r"[Aa]bout (\d+) lines?\b", body):
            assert int(said) == step.lines, step.title
    for said in re.findall(r"[Aa]bout (\d+) lines in all", parts[0]):
        assert int(said) == sum(step.lines for step in problem.steps)


@each_problem
def test_a_step_turns_green_what_problem_toml_says(problem):
    """Each step says it; of those that name no checks the names of `work` are compared."""
    bodies = re.split(r"^### Step ", sections(problem)["Steps"], flags=re.MULTILINE)[1:]
    known = {check.id for check in problem.checks} | {WORK}
    for step, body in zip(problem.steps, bodies, strict=True):
        (said,) = re.findall(r"^Turns green: (.*?)(?:\.\s|\.$|\Z)", body, re.DOTALL | re.MULTILINE)
        named = set(re.findall(r"`(\w+)`", said)) & known - {"compiles"}
        assert named <= set(step.turns_green), step.title
        assert (WORK in named) == (WORK in step.turns_green), step.title
        rest = re.search(r"\b(all|everything|checks)\b", said)
        assert rest or named == set(step.turns_green), step.title


@pytest.mark.parametrize(
    ("problem_id", "check", "old", "new"),
    drawn([
        ("p06", "window", p06.FIRST, f"{p06.FIRST} + BLOCK_N"),
        ("p06", "window", p06.FULL, "full_start = 0"),
        ("p08", "plain", "begin = key_start\n", "begin = key_start + BLOCK_M\n"),
    ], 3),
)  # fmt: skip
def test_a_step_for_work_can_cost_correctness(problem_id, check, old, new):
    problem = load_problem(problem_id)
    last = sections(problem)["Steps"].rpartition("### Step ")[2]
    assert "Turns green: `work`" in last
    assert "costs correctness." in " ".join(last.split())
    wrong = edited(model_answer(problem_id), (old, new))
    with forked_workers():
        assert judge(wrong, problem, checks=(check,)).wrong


@each_problem
def test_each_step_has_a_nudge_and_an_answer_in_words(problem):
    hints = beside(problem, "HINTS.md")
    assert hints.startswith(f"# Hints: {problem.id}")
    parts = re.split(r"^## Step (\d+): (.+)$", hints, flags=re.MULTILINE)
    found = list(zip(parts[1::3], parts[2::3], strict=True))
    assert found == [(str(n), step.title) for n, step in enumerate(problem.steps, start=1)]
    for body in parts[3::3]:
        levels = re.split(r"^### (.+)$", body, flags=re.MULTILINE)
        assert levels[1::2] == ["A nudge", "The answer in words"]
        assert all(len(level.split()) > 5 for level in levels[2::2])
    assert "(HINTS.md)" in handout(problem)


@each_problem
def test_sources_have_title_and_year(problem):
    entries = re.split(r"^- ", sections(problem)["Sources"], flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.search(r"\*[^*]+\*", entry), f"no title in italics: {entry}"
    papers = [e for e in entries if "arXiv" in e]
    for entry in papers:
        assert re.search(r"\b20\d\d, arXiv:\d{4}\.\d{5}", " ".join(entry.split())), entry
    assert any(re.search(r"\b20\d\d,", entry) for entry in entries), "no year"


@each_problem
def test_readable_on_a_phone(problem):
    for language, block in FENCE.findall(handout(problem)):
        for line in block.splitlines():
            assert len(line) <= LONGEST_LINE, f"{language}: {line}"
    assert "\t" not in handout(problem)
    assert not re.search("[\U0001f000-\U0001ffff☀-➿]", handout(problem)), "emoji"


def test_formulas_survive_markdown():
    pages = [page for page in documents() if "errors" not in page.parts]
    for page in [*pages, *sorted((ROOT / "benchmarks").rglob("*.md"))]:
        survive_markdown(FENCE.sub("", page.read_text(encoding="utf-8")))


def survive_markdown(text):
    text = re.sub(r"\$`[^`\n]+`\$|`[^`\n]+`", "", text)
    formulas = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
    inline = re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL))
    assert text.count("$") % 2 == 0
    for formula in inline:
        assert "\n" not in formula, f"inline formula over two lines: {formula}"
    for formula in [*formulas, *inline]:
        assert not MATH_TRAPS.search(formula), formula
        assert not re.search(r"<[a-z]", formula), f"looks like an HTML tag: {formula}"


@each_problem
def test_points_are_those_of_problem_toml(problem):
    text = sections(problem)["How you are graded"]
    assert "| part | points | what earns it |" in text
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    assert {part: int(points) for part, points, _ in rows} == problem.points.model_dump()
    assert [part for part, *_ in rows] == ["correctness", "work", "speed", "memory"]
    assert ("onus" in text) == problem.bonus


@each_problem
def test_targets_are_those_of_problem_toml(problem):
    text = " ".join(sections(problem)["How you are graded"].split())
    for targets in (problem.speed, *problem.speed.devices.values()):
        for ratio in (targets.floor, targets.full):
            assert re.search(rf"(?<![\d.]){ratio:g} ?x(?!\w)", text), f"{ratio:g}x is not said"
    assert f"The error allowed is {problem.tolerance.factor:g}x that" in text
    if problem.points.memory:
        assert f"{problem.memory.linear_factor:g}x the bytes of inputs and outputs" in text
        for device in ("cpu", "cuda"):
            if problem.memory_cases(device):
                assert f"{SLACK_BYTES[device] // 2**20} MiB" in text
    if problem.work is not None:
        tiles = {"square": "tile", "causal": "tile below the diagonal"}
        tile = tiles.get(problem.work.naive)
        naive = f"none when every {tile} is visited" if tile else f"none at {problem.work.naive:g}x"
        assert f"It earns all points up to {problem.work.full:g}x and {naive}" in text


def examples():
    """Every block of Python that a page shows to be run, by page and line."""
    for path in documents():
        text = path.read_text(encoding="utf-8")
        for block in re.finditer(r"^```python example\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: block.start(1)].count("\n") + 1
            yield pytest.param(block[1], id=f"{path.relative_to(ROOT)}:{line}")


@each_problem
def test_the_worked_example_is_one_that_runs(problem):
    assert "\n```python example\n" in sections(problem)["The idea"]


@pytest.mark.parametrize("block", list(examples()))
def test_example_runs(block, tmp_path):
    """Kernels of an example run on the machine."""
    assert "assert " in block
    path = tmp_path / "example.py"
    path.write_text(block)
    with machine_in_process(Engine(str(path))):
        exec(compile(block, str(path), "exec"), {"__name__": "__main__"})


@each_problem
def test_the_experiment_prints_what_its_answer_shows(problem):
    blocks = FENCE.findall(sections(problem)["The idea"])
    (code,) = [block for language, block in blocks if language == "python experiment"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace("CAP = 2**29", "CAP = 2**23"), {"__name__": "__main__"})
    if problem.id == "p01":  # which times, each length beside the one before
        first, second = printed.getvalue().splitlines()
        assert first.split()[0] == "256" and "previous" not in first
        assert re.fullmatch(r" +512 +[\d.]+ s +8 MiB of scores +[\d.]+ x previous", second)
        return
    shown = FENCE.search(beside(problem, "ANSWERS.md").partition("\n## Experiment\n")[2])
    got, expected = printed.getvalue().split(), shown[2].split()
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        # Rounding errors depend on the processor, and may be small by luck.
        rounding = re.fullmatch(r"\de[-+]\d\d", other) and re.fullmatch(r"\de[-+]\d\d", one)
        assert one == other or (rounding and 1 / 1000 < float(one) / float(other) < 30)


@each_problem
def test_interface_is_that_of_problem_toml(problem):
    text = "".join(sections(problem)["Interface"].replace("`", "").split())
    assert problem.signature.replace(" ", "") in text
    assert "".join(problem.returns[:1]) in text


@each_problem
def test_commands_exist(problem):
    block = FENCE.search(sections(problem)["Check your work"])[2]
    assert block.splitlines() == [
        f"make watch P={problem.id}",
        f"make grade P={problem.id}",
        f"pytest problems/{problem.id}",
        f"make grade P={problem.id} DEVICE=cpu",
    ]
    text = sections(problem)["Check your work"]
    assert f"`make watch P={problem.id}` answers fastest" in " ".join(text.split())


def test_make_targets_and_grader_commands_exist():
    (commands,) = [a for a in parser_of()._actions if a.choices and a.dest == "command"]
    targets = set()
    for path in documents():
        text = path.read_text(encoding="utf-8")
        blocks = "".join(block for _, block in FENCE.findall(text))
        targets |= set(re.findall(r"^make ([a-z]+)", blocks, re.MULTILINE))
        targets |= set(re.findall(r"`make ([a-z]+)", text))
        for command in re.findall(r"python -m grader ([a-z]+)", text):
            assert command in commands.choices, f"{path.name}: {command}"
    assert "grade" in targets
    if (ROOT / "Makefile").exists() and shutil.which("make"):
        for target in sorted(targets):
            done = subprocess.run(
                ["make", "-n", target, "P=p04", "DEVICE=cpu"],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"make {target}: {done.stderr}"


def source_names(problem):
    """Every name, attribute, keyword and constant in the problem's answer, stub and tests."""
    files = (problem.file, "solution.py", "problem.toml", f"test_{problem.id}.py")
    texts = ((problem.folder / file).read_text(encoding="utf-8") for file in files)
    return {name for text in texts for name in re.findall(r"\w+", text)}


@each_problem
def test_names_in_the_text_exist(problem):
    blocks = " ".join(block for _, block in FENCE.findall(handout(problem)))
    known = source_names(problem) | set(re.findall(r"\w+", blocks))
    for code in inline_code(problem):
        for name in re.findall(r"(?<![\w.])(?:tl|torch|triton|math)(?:\.\w+)+", code):
            root, *rest = name.split(".")
            target = importlib.import_module({"tl": "triton.language"}.get(root, root))
            for attribute in rest:
                assert hasattr(target, attribute), f"{name} does not exist"
                target = getattr(target, attribute)
        if re.fullmatch(r"_?[A-Za-z]\w*", code) and "_" in code:
            assert code in known, f"`{code}` is nowhere in {problem.file}"


@each_problem
def test_code_in_the_text_is_code(problem):
    for code in inline_code(problem):
        if re.search(r"^[a-z].*\(.*\)$", code) and not re.search(r"\.\.\.|\*, ", code):
            ast.parse(code.strip())

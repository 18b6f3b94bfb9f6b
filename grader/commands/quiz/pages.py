"""Makes the pages of the quiz from its TOML files: `python -m grader.commands.quiz.pages`.

Questions and answers have separate pages, so that an editor or a terminal, which cannot hide a
section, does not show an answer beside its question.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from grader.commands.quiz.questions import FOLDER, LEVELS, TOPICS, Choice, Level, Open, load_level

README = FOLDER / "README.md"
BEGIN = "<!-- topics of level0.toml and hard.toml -->\n"
END = "<!-- end of topics -->"
MADE = "<!-- made by `python -m grader.commands.quiz.pages` from {name}.toml -->"


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    texts = {README: _readme()}
    for name in LEVELS:
        level = load_level(name)
        texts[FOLDER / f"{name}.md"] = _questions(name, level)
        texts[FOLDER / f"{name}-answers.md"] = _answers(name, level)
    return texts


def slug(heading: str) -> str:
    """Return the anchor that Markdown viewers give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _questions(name: str, level: Level) -> str:
    parts = [MADE.format(name=name), f"# {level.title}", level.intro.strip()]
    parts.append(f"Ask them in the terminal: `make quiz LEVEL={name}`.")
    for question in level.questions:
        parts += [f"## {question.heading}", question.question.strip()]
        if isinstance(question, Choice):
            options = question.lettered.items()
            parts.append("\n".join(f"- {key}) {option}" for key, option in options))
        link = f"[answer]({name}-answers.md#{slug(question.heading)})"
        parts.append(f"{link} | {question.topic}")
    return "\n\n".join(parts) + "\n"


def _answers(name: str, level: Level) -> str:
    parts = [MADE.format(name=name), f"# Answers: {level.title}"]
    for question in level.questions:
        shown = question.shown.strip()
        answer = shown if isinstance(question, Open) else f"**{shown}**"
        parts += [f"## {question.heading}", answer, question.explanation.strip()]
        if question.python:
            parts.append(f"```python\n{question.python.strip()}\n```")
        links = [f"[question]({name}.md#{slug(question.heading)})"]
        if question.see:
            links.append(f"[{question.see}](../../problems/{question.see}/README.md)")
        parts.append(" | ".join(links))
    return "\n\n".join(parts) + "\n"


def _readme() -> str:
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + _topics() + rest[rest.index(END) :]


def _topics() -> str:
    counts = {name: Counter(q.topic for q in load_level(name).questions) for name in LEVELS}
    lines = ["| topic | level0 | hard |", "|---|---|---|"]
    for topic in TOPICS:
        lines.append(f"| {topic} | " + " | ".join(str(counts[n][topic]) for n in LEVELS) + " |")
    lines.append("| all | " + " | ".join(str(counts[n].total()) for n in LEVELS) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")

"""benchmarks/NOTES.md: its table is that of the benchmark record.

`python -m tests.test_notes` writes the table anew after the record has changed.
"""

import json

from grader.manifest import ROOT

NOTES = ROOT / "benchmarks" / "NOTES.md"
RECORD = ROOT / "benchmarks" / "records" / "nvidia-h200-2026-11-21.json"
BEGIN = f"<!-- table of {RECORD.relative_to(NOTES.parent)} -->\n"
END = "<!-- end of table -->"


def table(record: dict) -> str:
    """Every timed shape: ours, the best peer, and the time of the peer over ours."""
    lines = ["| | shape | pass | ours | best peer | ratio |", "|---|---|---|---|---|---|"]
    for result in record["results"]:
        by_id = {c["id"]: c for c in result["contenders"]}
        ours, peer = by_id.get("ours", {}), by_id.get(result.get("best_peer"), {})
        if "median_ms" not in ours or "median_ms" not in peer:
            continue
        lines.append(
            f"| {result['problem']} | {result['shape']['label']} | {result['pass']}"
            f" | {ours['median_ms']:.3f} ms | {peer['label']} {peer['median_ms']:.3f} ms"
            f" | {peer['median_ms'] / ours['median_ms']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def notes_with_table() -> str:
    before, rest = NOTES.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + table(json.loads(RECORD.read_text())) + rest[rest.index(END) :]


def test_table_is_made_from_the_record():
    assert NOTES.read_text(encoding="utf-8") == notes_with_table()


def test_every_contender_that_was_timed_was_right():
    for result in json.loads(RECORD.read_text())["results"]:
        for contender in result["contenders"]:
            if contender.get("status") == "timed":
                errors = contender["errors"].values()
                worst = max(e.get("worst", e.get("worst_absolute")) for e in errors)
                assert worst < 0.01, (result["problem"], contender["id"], worst)


if __name__ == "__main__":
    NOTES.write_text(notes_with_table(), encoding="utf-8")

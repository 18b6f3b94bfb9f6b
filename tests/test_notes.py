"""benchmarks/NOTES.md: its table and its claims are those of the benchmark records.

`python -m tests.test_notes` writes the table anew after the record has changed.
"""

import json

import pytest

from benchmarks import sweep
from grader.spec.problem import ROOT

NOTES = ROOT / "benchmarks" / "NOTES.md"
RECORD = ROOT / "benchmarks" / "records" / "nvidia-h200-2026-11-21.json"
GROWTH = RECORD.with_name("nvidia-h200-2026-11-21-growth.json")
SWEEP = RECORD.with_name("nvidia-h200-2026-11-21-sweep.json")
PEERS = RECORD.with_name("nvidia-h100-2026-11-27-peers.json")
BASELINES = RECORD.with_name("nvidia-h100-2026-11-27-baselines.json")
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


def table_of_peers(record: dict) -> str:
    """Every shape and pass: times in ms of each peer, and the best one's over both of ours."""
    lines = [
        "| | shape | pass | cuDNN | Flex | Flex tuned | FA4 | answer | limits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    peers = ("sdpa_cudnn", "flex", "flex_tuned", "flash_attention_4")
    for result in record["results"]:
        ms = {row["id"]: row["median_ms"] for row in result["contenders"]}
        best = min(ms[id] for id in peers if id in ms)
        times = " | ".join(f"{ms[id]:.3f}" if id in ms else "" for id in peers)
        ratios = " | ".join(f"{best / ms[id]:.2f}" for id in ("ours", "limits"))
        shape = f"{result['problem']} | {result['shape']['label']} | {result['pass']}"
        lines.append(f"| {shape} | {times} | {ratios} |")
    return "\n".join(lines) + "\n"


def table_of_baselines(record: dict) -> str:
    """Every shape and pass: the answer, and time, bytes per score and speed-up of each baseline."""
    lines = ["| | shape | pass | answer | eager | textbook |", "|---|---|---|---|---|---|"]
    for result in record["results"]:
        shape, rows = result["shape"], {row["id"]: row for row in result["contenders"]}
        scores = shape["batch"] * shape["num_q_heads"] * shape["seqlen"] ** 2
        ours = rows["ours"]["median_ms"]
        cells = [f"{result['problem']} | {shape['label']} | {result['pass']} | {ours:.3f}"]
        for row in (rows["naive_bf16"], rows["textbook"]):
            per_score, ms = round(row["moved_bytes"] / scores), row["median_ms"]
            cells.append(f"{ms:.1f}, {per_score} B, {ms / ours:.1f}x")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = ((RECORD, table), (PEERS, table_of_peers), (BASELINES, table_of_baselines))


def notes_with_tables() -> str:
    text = NOTES.read_text(encoding="utf-8")
    for path, make in TABLES:
        begin = f"<!-- table of {path.relative_to(NOTES.parent)} -->\n"
        before, rest = text.split(begin)
        text = before + begin + make(json.loads(path.read_text())) + rest[rest.index(END) :]
    return text


def test_tables_are_made_from_the_records():
    assert NOTES.read_text(encoding="utf-8") == notes_with_tables()


RECORDS = (RECORD, GROWTH, SWEEP, PEERS, BASELINES)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_contender_that_was_timed_was_right(path):
    for result in json.loads(path.read_text())["results"]:
        for contender in result["contenders"]:
            if contender.get("status") == "timed":
                errors = contender["errors"].values()
                worst = max(e.get("worst", e.get("worst_absolute")) for e in errors)
                assert worst < 0.01, (result["problem"], contender["id"], worst)


def test_what_pages_say_of_both_baselines_is_in_the_record():
    ratios: dict[str, list[float]] = {"moved_bytes": [], "median_ms": []}
    results = json.loads(BASELINES.read_text())["results"]
    p05, p08 = (next(r for r in results if r["problem"] == id) for id in ("p05", "p08"))
    moved = [{c["id"]: c for c in r["contenders"]}["naive_bf16"]["moved_bytes"] for r in (p05, p08)]
    saved = round((moved[0] - moved[1]) / (2 * 32 * 4096**2))
    assert f"which saves {saved} bytes per score" in " ".join(NOTES.read_text("utf-8").split())
    for result in results:
        rows = {row["id"]: row for row in result["contenders"]}
        for name, found in ratios.items():
            found.append(rows["naive_bf16"][name] / rows["textbook"][name])
    moved, taken = (f"{min(found):.1f} to {max(found):.1f}" for found in ratios.values())
    for page in (NOTES, ROOT / "README.md"):
        text = " ".join(page.read_text("utf-8").split())
        said = f"moves {moved} times the bytes of the textbook's and takes {taken} times as long"
        assert said in text, page.name


def test_sweep_has_no_point_below_its_least():
    below, compared = sweep.verdict(json.loads(SWEEP.read_text())["results"])
    assert (below, compared) == ([], compared) and compared > 40


@pytest.mark.parametrize("problem", ("p06", "p07", "p09"))
def test_time_and_memory_of_windows_grow_linearly(problem):
    found = 0
    for pass_ in ("forward", "backward"):
        points = {
            result["shape"]["seqlen"]: ours
            for result in json.loads(GROWTH.read_text())["results"]
            for ours in result["contenders"]
            if (result["problem"], result["pass"], ours["id"]) == (problem, pass_, "ours")
        }
        if not points:
            continue
        found += 1
        lengths = (32768, 65536, 131072)
        times = [points[n]["median_ms"] / n for n in lengths]
        assert max(times) <= 1.10 * min(times)
        memory = [points[n]["extra_bytes"] / n for n in lengths]
        assert max(memory) <= 1.10 * min(memory)
    assert found == (2 if problem == "p09" else 1)


def test_numerics_are_no_worse_than_those_of_the_library_kernels():
    for result in json.loads(RECORD.read_text())["results"]:
        by_id = {c["id"]: c for c in result["contenders"] if c.get("status") == "timed"}
        for peer in by_id.keys() & {"sdpa_cudnn", "sdpa_flash", "flex"}:
            for name, error in by_id["ours"]["errors"].items():
                theirs = by_id[peer]["errors"].get(name, {})
                if "worst" in error and "worst" in theirs:
                    most = 1.56 if name == "dsink_logits" else 1.02
                    assert error["worst"] <= most * theirs["worst"], (result["problem"], peer, name)


def test_what_pages_say_of_limits_beside_peers_on_an_h100_is_in_the_record():
    speeds: dict[tuple[str, str], list[float]] = {}
    for result in json.loads(PEERS.read_text())["results"]:
        ms = {row["id"]: row["median_ms"] for row in result["contenders"]}
        for peer in ms.keys() & {"sdpa_cudnn", "flash_attention_4"}:
            for which in (result["pass"], "any"):
                speeds.setdefault((peer, which), []).append(ms[peer] / ms["limits"])
    ranges = {key: f"{min(found):.2f} to {max(found):.2f}" for key, found in speeds.items()}
    fa4, forward, backward, cudnn = (
        ranges["flash_attention_4", "any"], ranges["flash_attention_4", "forward"],
        ranges["flash_attention_4", "backward"], ranges["sdpa_cudnn", "any"],
    )  # fmt: skip
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"at {fa4} of FlashAttention-4's speed, and at {cudnn} of cuDNN's" in readme
    limits = " ".join((ROOT / "benchmarks" / "limits" / "README.md").read_text("utf-8").split())
    assert f"at {forward} of FlashAttention-4's speed forward and at {backward} of it" in limits


if __name__ == "__main__":
    NOTES.write_text(notes_with_tables(), encoding="utf-8")

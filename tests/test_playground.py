"""docs/playground.html: its functions outside a browser, against the reference.

They run in QuickJS (the package quickjs-ng of requirements-course.txt).
tests/test_playground_page.py drives the page in a browser.
"""

import inspect
import json
import math
import random
import re
import types

import numpy as np
import pytest
import quickjs
import torch

import reference
from docs.pictures.palette import PALETTE
from given import sinks, windows
from grader.spec.problem import ROOT
from tests.harness import model_answer

PAGE = ROOT / "docs" / "playground.html"
TEXT = PAGE.read_text("utf-8")
MATHEMATICS, SCRIPT = re.findall(r"<script id=\"\w+\">(.*?)</script>", TEXT, re.DOTALL)
MOST_BYTES = 70_000
ROWS, COLUMNS = "rows", "columns"


@pytest.fixture(scope="module")
def page():
    """Return a function that evaluates an expression with the page's own functions."""
    engine = quickjs.Context()
    engine.eval(MATHEMATICS)

    def evaluate(expression, **values):
        names = ", ".join(values)
        given = ", ".join(json.dumps(value) for value in values.values())
        return json.loads(engine.eval(f"JSON.stringify((({names}) => {expression})({given}))"))

    return evaluate


def settings(count, seed, most=40):
    """Random settings, each with a direction and one of its programs: half of them odd."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        seqlen = chance.choice([1, 2, 3, chance.randint(1, most)])
        s = {
            "seqlen": seqlen,
            "blockM": 2 ** chance.randint(0, 3),
            "blockN": 2 ** chance.randint(0, 3),
            "window": chance.choice([1, chance.randint(1, 12), chance.randint(1, 48)]),
            "sinks": chance.choice([0, chance.randint(0, 6), chance.randint(0, 48)]),
            "group": chance.randint(1, 3),
        }
        direction = chance.choice([ROWS, COLUMNS])
        tiles = math.ceil(seqlen / s["blockM" if direction == ROWS else "blockN"])
        made.append((s, direction, chance.randrange(tiles)))
    return made


def mask_of(s):
    return reference.visible_keys(
        s["seqlen"],
        s["seqlen"],
        is_causal=True,
        window_size=s["window"],
        num_sink_tokens=s["sinks"],
    ).numpy()


def without_triton(source, **more):
    """A function of Triton's language on plain numbers, for its bounds alone."""
    plain = {"minimum": min, "maximum": max, "cdiv": lambda a, b: -(-a // b), "constexpr": int}
    made = {"tl": types.SimpleNamespace(**plain), **more}
    exec(source[source.index("def ") :], made)
    return made[re.search(r"def (\w+)", source)[1]]


window_bounds = without_triton(inspect.getsource(windows.window_bounds.fn))
sink_window_bounds = without_triton(
    inspect.getsource(sinks.sink_window_bounds.fn), window_bounds=window_bounds
)
query_ranges = without_triton(
    re.search(r"def _query_ranges\(.*?\n    return .*?\n", model_answer("p09"), re.DOTALL)[0]
)


def own_of(s, direction, number):
    block = s["blockM" if direction == ROWS else "blockN"]
    return slice(number * block, min((number + 1) * block, s["seqlen"]))


def pairs_of(s, direction, part):
    """The pairs that a loop should count, with the program's own axis first."""
    visible = mask_of(s)
    if direction == ROWS:
        return visible
    i, j = np.indices(visible.shape)
    near = visible & (i - s["window"] < j)
    return (near if part == "window" else visible & ~near).T


def test_10000_random_programs_are_those_of_the_reference(page):
    """Mask, bounds, visited tiles and their kinds: of p06 and p07 in rows, of p09 in columns."""
    made = settings(10_000, seed=38)
    found = page(
        "all.map(([s, d, n]) => { const b = rightBounds(s, d, n), [f, l] = ownSpan(s, d, n);"
        "const seen = []; for (let o = f; o <= l; o++) for (let x = 0; x < s.seqlen; x++)"
        "seen.push(+(d === 'rows' ? isVisible(s, o, x) : isVisible(s, x, o)));"
        "return [b, seen.join(''), candidates(s, d, n), visitedTiles(s, d, n, b)]; })",
        all=made,
    )
    for (s, direction, number), (bounds, seen, asked, visited) in zip(made, found, strict=True):
        own, about = own_of(s, direction, number), (s, direction, number)
        mask = mask_of(s) if direction == ROWS else mask_of(s).T
        assert seen == "".join(map(str, mask[own].astype(int).ravel())), about
        sizes = s["seqlen"], s["window"], s["blockM"], s["blockN"]
        if direction == ROWS:
            begin, *expected = sink_window_bounds(own.start, *sizes[:2], s["sinks"], *sizes[2:])
            assert bounds == expected and visited[0]["position"] == begin, about
        elif s["blockN"] % s["blockM"] == 0:
            assert tuple(bounds) == (own.start, *query_ranges(own.start, *sizes)), about
        step = s["blockN" if direction == ROWS else "blockM"]
        parts = {part: pairs_of(s, direction, part)[own] for part in ("window", "sinks")}
        visits = {(tile["part"], tile["start"]): tile for tile in visited}
        assert len(visits) == len(visited), about
        for tile in asked:
            start, part = tile["start"], tile["part"]
            pairs = parts[part][:, start : start + step]
            is_whole = pairs.all() and start + step <= s["seqlen"]
            kind = "full" if is_whole else "masked" if pairs.any() else "skipped"
            assert tile["kind"] == kind, about
            visit = visits.pop((part, start), None)
            assert tile["visited"] == visit, about
            if part == "window" or direction == ROWS:
                assert (visit is not None) == (kind != "skipped"), about
            assert visit is None or visit["masked"] or kind == "full", about
            exact = step > 1 and s["blockM"] % s["blockN"] == 0 and not s["sinks"]
            if direction == ROWS and exact and visit:
                assert visit["masked"] == (kind == "masked"), about
        assert not visits, about  # every tile of the loop is asked about
        if direction == ROWS:
            parts = [tile["part"] == "sinks" for tile in visited]
            assert parts == [tile["position"] < bounds[0] for tile in visited], about


def counted(s, direction, number, tiles):
    """How often a loop counts each pair, with the program's own axis first and a margin behind."""
    own = own_of(s, direction, number)
    step = s["blockN" if direction == ROWS else "blockM"]
    times = np.zeros((own.stop - own.start, s["seqlen"] + 64), int)
    for tile in tiles:
        span = slice(tile["start"], tile["start"] + step)
        pairs = np.zeros_like(times, bool)
        pairs[:, : s["seqlen"]] = pairs_of(s, direction, tile["part"])[own]
        if not tile["masked"]:
            pairs[:] = True
            pairs[:, s["seqlen"] :] = direction == ROWS  # in columns their lse is inf
        times[:, span] += pairs[:, span]
    return times


def test_wrong_bounds_cost_what_they_cost(page):
    chance = random.Random(39)
    made = [
        (*one, [chance.randint(0, one[0]["seqlen"] + 3) for _ in range(4)])
        for one in settings(1500, seed=40, most=24)
    ]
    found = page(
        "all.map(([s, d, n, b]) => [assess(s, d, n, b), results(s, d, n, b),"
        "results(s, d, n, rightBounds(s, d, n)), verdicts(s, d, n, b)])",
        all=made,
    )
    wrong = 0
    for (s, direction, number, bounds), (cost, yours, right, said) in zip(made, found, strict=True):
        about, own = (s, direction, number, bounds), own_of(s, direction, number)
        times = counted(s, direction, number, cost["tiles"])
        visible = np.zeros_like(times, bool)
        visible[:, : s["seqlen"]] = (mask_of(s) if direction == ROWS else mask_of(s).T)[own]
        order = (0, 1) if direction == ROWS else (1, 0)
        for name, expected in {
            "lost": visible & (times == 0),
            "hidden": ~visible & (times > 0),
            "twice": visible & (times > 1),
        }.items():
            got = {(pair[order[0]] - own.start, pair[order[1]]) for pair in cost[name]}
            assert got == {tuple(map(int, pair)) for pair in np.argwhere(expected)}, about
        is_right = not cost["lost"] + cost["hidden"] + cost["twice"]
        wrong += not is_right
        if is_right:
            assert np.allclose(np.array(yours, float), np.array(right, float)), about
        assert is_right == (not any("wrong" in text for _, text in said)), about
    assert 500 < wrong < 1500


def test_numbers_are_those_of_pytorch(page):
    for s, direction, number in settings(120, seed=41, most=16):
        own = own_of(s, direction, number)
        heads, keys = range(s["group"]), range(s["seqlen"])
        rows = page(
            "names.map((n) => heads.map((h) => keys.map((i) => vector(s, n, h, i))))",
            names=["q", "k", "v", "dout"], heads=[*heads], keys=[*keys], s=s,
        )  # fmt: skip
        q, k, v, dout = (torch.tensor(x, dtype=torch.float64) for x in rows)
        k, v = k[0].requires_grad_(), v[0].requires_grad_()  # one kv head
        scores = 0.5 * q @ k.T
        scores = scores.masked_fill(~torch.from_numpy(mask_of(s)), -math.inf)
        out, lse = torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)
        if direction == ROWS:
            expected = torch.cat([out[0], lse[0, :, None]], 1)[own]
        else:
            out.backward(dout)
            expected = torch.cat([k.grad, v.grad], 1)[own]
        got = page("results(s, d, n, rightBounds(s, d, n))", s=s, d=direction, n=number)
        assert torch.allclose(torch.tensor(got, dtype=torch.float64), expected.detach()), (
            s, direction, number,
        )  # fmt: skip


def test_a_running_maximum_grows_where_that_of_pytorch_does(page):
    for s, direction, number in settings(150, seed=44, most=16):
        if direction != ROWS:
            continue
        own, tiles = (
            own_of(s, ROWS, number),
            page("visitedTiles(s, 'rows', n, rightBounds(s, 'rows', n))", s=s, n=number),
        )
        for i in range(own.start, own.stop):
            q, *k = page(
                "[vector(s, 'q', 0, i), ...keys.map((j) => vector(s, 'k', 0, j))]",
                s=s, i=i, keys=[*range(s["seqlen"])],
            )  # fmt: skip
            scores = 0.5 * torch.tensor(k, dtype=torch.float64) @ torch.tensor(q).double()
            scores[~torch.from_numpy(mask_of(s)[i])] = -math.inf
            maximum = -math.inf
            for count, tile in enumerate(tiles, start=1):
                last = scores[tile["start"] : tile["start"] + s["blockN"]].max().item()
                now = max(maximum, last)
                got = page(
                    "(({ before, largest, after }) => [[before, largest, after].map(String),"
                    "maximumSentence(i, { before, largest, after })])(maximumAfter(s, i, tiles))",
                    s=s, i=i, tiles=tiles[:count],
                )  # fmt: skip
                values = [float(x.replace("Infinity", "inf")) for x in got[0]]
                assert values == pytest.approx([maximum, last, now]), (s, i, tile)
                assert ("grows" in got[1]) == (now > maximum) == ("stays" not in got[1])
                assert not re.search("NaN|undefined|Infinity|- -", got[1]), got[1]
                maximum = now


def test_what_is_counted_is_what_the_tiles_hold(page):
    for s, direction, number in settings(300, seed=42):
        own = own_of(s, direction, number)
        got, tiles = page(
            "(() => { const t = visitedTiles(s, d, n, rightBounds(s, d, n));"
            "return [counters(s, d, n, t), t]; })()",
            s=s, d=direction, n=number,
        )  # fmt: skip
        heads = 1 if direction == ROWS else s["group"]
        mask = mask_of(s) if direction == ROWS else mask_of(s).T
        step = s["blockN" if direction == ROWS else "blockM"]
        loaded = sum(min(t["start"] + step, s["seqlen"]) - t["start"] for t in tiles)
        length, own_sinks = own.stop - own.start, 0
        if "sinks" in {tile["part"] for tile in tiles}:
            own_sinks = int(pairs_of(s, direction, "sinks")[own].any(1).sum())
        elements = (
            64 * (length + 2 * loaded)
            if direction == ROWS
            else 2 * 64 * (length + own_sinks) + heads * loaded * 2 * (64 + 1)
        )
        assert got == {
            "tiles": heads * len(tiles),
            "needed": heads * int(mask[own].sum()),
            "computed": heads * len(tiles) * s["blockM"] * s["blockN"],
            "elements": elements,
        }


def test_every_sentence_is_whole(page):
    texts = page(
        "all.flatMap(([s, d, n]) => [...notes(s, d).map((x) => x.text), keysOf(s, 0) + '.',"
        "...candidates(s, d, n).flatMap((c) => [explain(s, d, n, c), loopSentence(s, d, n, c)]),"
        "...verdicts(s, d, n, widestBounds(s)).map((x) => x[1])])",
        all=settings(1500, seed=43),
    )
    for text in set(texts):
        assert not re.search(r"NaN|undefined|null|Infinity|\[object|  | -\d", text), text
        assert text.endswith(".")


def test_examples_are_the_worked_examples_of_the_handouts(page):
    listed = re.search(r"const EXAMPLES = (\{.*?\n\});", SCRIPT, re.DOTALL)[1]
    examples = page(f"({listed})")
    bounds = {
        id: page("rightBounds(s, d, n)", s=s, d=d, n=n) for id, (_, d, n, s) in examples.items()
    }
    assert bounds["p06"] == [2, 6, 8, 12] and bounds["p07"] == [6, 10, 12, 16]
    assert bounds["p09"] == [4, 8, 12, 16]
    assert list(examples) == ["p04", "p05", "p06", "p07", "p08", "p09"]
    assert all(words.startswith(id) for id, (words, *_) in examples.items())


def test_nothing_is_loaded_and_the_file_is_small():
    assert len(TEXT.encode()) < MOST_BYTES
    assert "default-src 'none'" in TEXT and "connect-src" not in TEXT
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bsrc=|@import|fetch\(|<link", TEXT)
    assert max(map(len, TEXT.splitlines())) < 250


@pytest.mark.parametrize("mode", [0, 1])
def test_the_colours_are_those_of_the_pictures(mode):
    block = TEXT.split("@media (prefers-color-scheme: dark)")[mode]
    found = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6})", block))
    assert found == {name: pair[mode] for name, pair in PALETTE.items()}

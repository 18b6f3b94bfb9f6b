"""docs/pictures: the files are what the script draws, and what they show is what the rules say.

`python -m docs.pictures` draws them anew.
"""

import functools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import reference
from docs.pictures import backward, gradients, heads, launches, masks, softmax, tiles, traffic
from docs.pictures.__main__ import DRAWN, FOLDER
from docs.pictures.canvas import MARGIN, SMALLEST_TEXT, WIDTH
from docs.pictures.palette import FILLS, PALETTE

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {
    "svg", "title", "desc", "style", "pattern", "rect", "circle", "polygon", "polyline", "text",
    "tspan",
}  # fmt: skip
MOST_BYTES = 30_000
NONE = {"none": ("none", "none")}
picture_of = functools.cache(lambda draw: draw())  # not while tests are collected: it takes seconds
each_picture = pytest.mark.parametrize("picture", DRAWN, indirect=True)


@pytest.fixture
def picture(request):
    return picture_of(request.param)


def texts(picture):
    """The content of every line of text in a picture."""
    return [
        "".join(element.itertext())
        for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
    ]


def named(name):
    return next(picture for picture in map(picture_of, DRAWN) if picture.name == name)


def test_committed_files_are_what_the_script_draws():
    committed = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert committed == {picture.name: picture.svg for picture in map(picture_of, DRAWN)}
    assert len(committed) >= 10


@each_picture
def test_well_formed_small_and_with_nothing_from_outside(picture):
    root = ElementTree.fromstring(picture.svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= ELEMENTS
    for element in root.iter():
        assert not any("href" in name or name.startswith("on") for name in element.attrib)
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", picture.svg))
    assert picture.svg.count("://") == 1, "only the name space"
    assert len(picture.svg.encode()) < MOST_BYTES
    assert root.attrib["viewBox"].split()[2] == str(WIDTH)


@each_picture
def test_words_are_those_of_the_handouts(picture):
    """A step is one of the assignment, not a round of a loop; heads have their whole names."""
    said = " ".join(texts(picture))
    assert not re.search(r"\bstep \d|\bq heads?\b", said)


@each_picture
def test_has_a_title_and_a_description(picture):
    root = ElementTree.fromstring(picture.svg)
    title, desc = root[0], root[1]
    assert (title.tag, desc.tag) == (f"{SVG}title", f"{SVG}desc")
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], desc.attrib["id"]]
    assert 20 < len(title.text) < 100 and not title.text.endswith(".")
    assert len(desc.text) > 100 and desc.text.endswith(".")


@each_picture
def test_has_both_colour_schemes(picture):
    (sheet,) = re.findall(r"<style>(.*?)</style>", picture.svg, re.DOTALL)
    assert "var(" not in sheet  # which is black outside a browser
    schemes = sheet.split("@media (prefers-color-scheme: dark)")
    for mode, scheme in enumerate(schemes):
        rules = dict(
            re.findall(r"^\.[fs]-([a-z-]+)\{(?:fill|stroke):(\S+)\}", scheme, re.MULTILINE)
        )
        assert rules == {name: (PALETTE | NONE)[name][mode] for name in rules}
        assert len(rules) > 3
    assert len(schemes) == 2
    outside = re.sub(r"<style>.*?</style>", "", picture.svg, flags=re.DOTALL)
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb|(fill|stroke)=", outside), "a colour of its own"
    ruled = set(re.findall(r"^\.([\w-]+)\{", picture.svg, re.MULTILINE))
    used = {name for names in re.findall(r'class="([^"]*)"', outside) for name in names.split()}
    assert used <= ruled


@each_picture
def test_text_is_large_enough_and_inside(picture):
    """Widths are those of a sans-serif type of common width; a wide one takes a sixth more."""
    for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text"):
        size, x = float(element.attrib["font-size"]), float(element.attrib["x"])
        width = 0.52 * size * len("".join(element.itertext()))
        before = {"end": 1, "middle": 0.5}.get(element.attrib.get("text-anchor"), 0) * width
        assert size >= SMALLEST_TEXT
        assert x - before >= 0
        assert x - before + width <= WIDTH - MARGIN / 2, "".join(element.itertext())


@each_picture
def test_no_text_lies_on_another(picture):
    lines = []
    for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}text"):
        size, x, y = (float(element.attrib[name]) for name in ("font-size", "x", "y"))
        width = 0.52 * size * len("".join(element.itertext()))
        left = x - {"end": 1, "middle": 0.5}.get(element.attrib.get("text-anchor"), 0) * width
        lines.append((left, left + width, y, size, "".join(element.itertext())))
    for number, (left, right, y, size, words) in enumerate(lines):
        for other in lines[:number]:
            apart = abs(y - other[2]) > 0.8 * size or left > other[1] or right < other[0]
            assert apart, (words, other[4])


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_stands_out(mode):
    """WCAG AA: 4.5 to 1 for text."""

    def contrast(text, ground):
        pair = sorted(luminance(PALETTE[name][mode]) for name in (text, ground))
        return (pair[1] + 0.05) / (pair[0] + 0.05)

    pairs = [("ink", fill) for fill in FILLS]
    pairs += [(name, "paper") for name in PALETTE if name == "soft" or name.endswith("-ink")]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}


def letters(seqlen, window_size, num_sink_tokens, block):
    """The map of tiles from the rule, one pair at a time: rows of letters."""

    def kind(queries, keys):
        near = [j <= i and i - window_size < j for i in queries for j in keys]
        seen = [
            j <= i and (i - window_size < j or j < num_sink_tokens) for i in queries for j in keys
        ]
        if not any(near) and any(seen):
            return tiles.SINKS
        return tiles.FULL if all(seen) else tiles.MASKED if any(seen) else tiles.NEVER

    starts = range(0, seqlen, block)
    spans = [range(start, min(start + block, seqlen)) for start in starts]
    return [[kind(queries, keys) for keys in spans] for queries in spans]


@pytest.mark.parametrize(
    ("name", "seqlen", "window_size", "num_sink_tokens", "numbers"),
    [
        ("causal-tiles", masks.CAUSAL_SEQLEN, masks.CAUSAL_SEQLEN, 0, (15, 6, 0)),
        ("window-bounds", masks.SEQLEN, masks.WINDOW_SIZE, 0, (17, 17, 0)),
        ("window-sinks", masks.SEQLEN, masks.WINDOW_SIZE, masks.NUM_SINK_TOKENS, (17, 17, 6)),
    ],
)
def test_tiles_drawn_are_those_of_the_rule(name, seqlen, window_size, num_sink_tokens, numbers):
    expected = letters(seqlen, window_size, num_sink_tokens, masks.BLOCK)
    drawn = texts(named(name))
    for kind, number in zip((tiles.FULL, tiles.MASKED, tiles.SINKS), numbers, strict=True):
        in_legend = masks.LEGEND[kind] in drawn
        assert drawn.count(tiles.LETTERS[kind]) - in_legend == number, kind
        assert tiles.count(expected, kind) == number, kind


@pytest.mark.parametrize("window_size", [64, 129, 192, 200, 640])
@pytest.mark.parametrize("num_sink_tokens", [0, 4, 70])
def test_kinds_of_tiles_are_those_of_the_rule(window_size, num_sink_tokens):
    seqlen, block = 300, 32
    options = {"window_size": window_size, "num_sink_tokens": num_sink_tokens}
    window = tiles.kinds(tiles.visible("p06", seqlen, window_size=window_size), block, block)
    drawn = tiles.with_sinks(
        tiles.kinds(tiles.visible("p07", seqlen, **options), block, block), window
    )
    assert drawn == letters(seqlen, window_size, num_sink_tokens, block)


@pytest.mark.parametrize("tile", range(3, 10))
def test_bounds_are_those_of_the_formulas_of_p06(tile):
    block, window_size, query_start = masks.BLOCK, masks.WINDOW_SIZE, tile * masks.BLOCK
    found = tiles.bounds(
        tiles.visible("p06", masks.SEQLEN, window_size=window_size), query_start, block, block
    )
    end_key = query_start + block
    assert found == tiles.Bounds(
        first_key=max(query_start - window_size + 1, 0) // block * block,
        full_start=math.ceil(max(end_key - window_size, 0) / block) * block,
        full_end=query_start // block * block,
        end_key=end_key,
    )
    if tile == masks.MARKED:
        drawn = texts(named("window-bounds"))
        for name in ("first_key", "full_start", "full_end", "end_key"):
            assert f"{name} = {getattr(found, name)}" in drawn


def test_softmax_of_the_picture_is_the_softmax():
    last = softmax.states()[-1]
    scores, values = (
        torch.tensor(numbers, dtype=torch.float64) for numbers in (softmax.SCORES, softmax.VALUES)
    )
    out, lse = torch.softmax(scores, 0) @ values, torch.logsumexp(scores, 0)
    assert math.isclose(last.acc / last.running_sum, out)
    assert math.isclose(last.running_max + math.log(last.running_sum), lse)
    drawn = texts(named("online-softmax"))
    assert f"out = acc / running_sum = {out:.2f}" in drawn and f"lse = {lse:.4f}" in drawn


def test_weighted_sums_of_the_picture():
    drawn = texts(named("grid-strides"))
    assert {"11", "61", "111"} <= set(drawn), "y of p02's worked example"
    assert "masked lanes, 17 of 32: no access" in drawn


def test_key_tiles_of_the_program_are_those_of_p03():
    drawn = texts(named("flash-program"))
    assert [text for text in drawn if text.isdigit()] == ["64", "64", "64", "8"]
    assert f"{3 * 64 + 8} keys" in drawn and "masked" in drawn


def test_owners_are_a_row_and_a_column_of_the_causal_tiles():
    picture = named("backward-owners")
    owned, last = backward.OWNED, masks.CAUSAL_SEQLEN // masks.BLOCK - 1
    assert f"reads k and v of key tiles 0 to {owned}." in picture.svg
    assert f"of query tiles {owned} to {last}, for each query head" in picture.svg
    frames = [
        (float(element.attrib["width"]), float(element.attrib["height"]))
        for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}rect")
        if element.attrib.get("stroke-width") == "4"
    ]
    (row_width, pitch), (column_width, column_height) = frames
    assert math.isclose(row_width, (owned + 1) * pitch, abs_tol=0.1)
    assert math.isclose(column_height, (last - owned + 1) * column_width, abs_tol=0.1)
    drawn = texts(picture)
    assert (drawn.count("#"), drawn.count("M")) == (2 * 15, 2 * 6)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_each_q_head_reads_the_kv_head_of_its_group(num_kv_heads):
    expected = [q_head // (6 // num_kv_heads) for q_head in range(6)]
    assert heads.kv_head_of(6, num_kv_heads) == expected


def test_pairs_are_those_of_p09():
    seqlen, window_size, sinks = backward.SEQLEN, backward.WINDOW_SIZE, backward.NUM_SINK_TOKENS
    for i, row in enumerate(backward.pair_kinds()):
        for j, letter in enumerate(row):
            is_window, is_sink = i - window_size < j <= i, j < sinks and j <= i - window_size
            assert letter == ("w" if is_window else "s" if is_sink else ""), (i, j)
    drawn = texts(named("backward-pairs"))
    visible = reference.visible_keys(
        seqlen, seqlen, is_causal=True, window_size=window_size, num_sink_tokens=sinks
    )
    assert f"33 + 17 = {int(visible.sum())} visible pairs" in drawn
    assert [text for text in drawn if re.fullmatch(r"\d+ pairs", text)] == [
        "7 pairs",
        "8 pairs",
        "2 pairs",
    ]


def test_positions_are_those_of_the_worked_example_of_p07():
    found = masks.positions_of()
    assert found == [(2, 0), (4, 2), *((key, key) for key in range(6, 16, 2))]
    drawn = texts(named("sink-positions"))
    assert {"begin = 2", "first_key = 6", "2, 3", "14, 15"} <= set(drawn) and "4, 5" not in drawn


def test_consecutive_programs_share_a_head():
    """As in p03: the query tile counts fastest, then the head."""
    every = [launches.tile_of(program) for program in range(12)]
    assert every == [(b, h, tile) for b in range(2) for h in range(2) for tile in range(3)]
    assert "program 7: query tile 1 of head 0 of batch entry 1" in texts(named("program-ids"))


def test_a_stride_costs_a_sector_per_thread():
    addresses = [[4 * stride * thread for thread in range(32)] for stride in (1, 8)]
    sectors = [len({address // 32 for address in of_a_warp}) for of_a_warp in addresses]
    assert sectors == [4, 32]
    drawn = texts(named("coalescing"))
    assert {"4 sectors, 128 bytes for 128", "32 sectors, 1024 bytes for 128"} <= set(drawn)


def test_formulas_of_the_gradient_graph_are_those_of_autograd():
    q, k, v, dout = torch.randn(4, 5, 3, dtype=torch.float64)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    scale = 0.3
    hidden = ~reference.visible_keys(5, 5, is_causal=True)
    scores = (scale * q @ k.T).masked_fill(hidden, -math.inf)
    p = torch.exp(scores - scores.logsumexp(1, keepdim=True))
    out = p @ v
    out.backward(dout)
    dp, delta = dout @ v.T, (dout * out).sum(1, keepdim=True)
    ds = p * (dp - delta)
    for got, right in ((p.T @ dout, v), (scale * ds @ k, q), (scale * ds.T @ q, k)):
        assert torch.allclose(got, right.grad)
    assert {
        "S = scale q kᵀ, masked", "P = exp(S - lse)", "O = P v", "dV = Pᵀ dO", "dP = dO vᵀ",
        "delta = row sum of dO · O", "dS = P (dP - delta)", "dQ = scale dS k", "dK = scale dSᵀ q",
    } <= set(texts(named("gradient-graph")))  # fmt: skip


def test_query_ranges_are_those_of_the_example_of_p09():
    assert gradients.ranges_of(4) == {"diagonal": (4, 8), "full": (8, 12), "right edge": (12, 16)}
    drawn = texts(named("query-ranges"))
    assert "keys 4 to 7: diagonal_end 8, full_end 12, end_query 16" in drawn
    mask = reference.visible_keys(20, 20, is_causal=True, window_size=9, num_sink_tokens=2)
    near = reference.visible_keys(20, 20, is_causal=True, window_size=9)
    assert drawn.count("w") == int(near[:, :8].sum()) + 1  # one in the legend
    assert drawn.count("s") == int((mask & ~near)[:, :8].sum()) + 1
    assert {"9 to 14", "15 to 19"} <= set(drawn)


@pytest.mark.parametrize("seqlen", [512, 4096, 65536])
def test_bytes_are_those_of_the_formulas(seqlen):
    head_dim, block_m = traffic.HEAD_DIM, traffic.BLOCK_M
    assert traffic.naive_bytes(seqlen) == 16 * seqlen**2 + 8 * seqlen * head_dim
    # Scores 2, scale 2 + 2, to fp32 2 + 4, softmax 4 + 4, maxima 2 + 4, to bf16 4 + 2, product 2.
    counted = traffic.baseline_bytes(seqlen, head_dim) - 34 * seqlen**2 - 8 * seqlen * head_dim
    assert 0 < counted < 50 * seqlen  # of lse
    requests = 2 * seqlen * head_dim * (1 + 2 * seqlen // block_m) + 2 * seqlen * head_dim
    assert traffic.flash_requests(seqlen) == requests
    assert traffic.flash_bytes(seqlen) == 8 * seqlen * head_dim


def test_measured_kernels_are_below_the_roof_and_on_their_sides_of_the_ridge():
    baseline, flash, sizes = traffic.measured()
    ridge = traffic.hardware.BF16_RATE / traffic.hardware.HBM_RATE
    assert baseline.intensity < ridge < flash.intensity
    assert math.isclose(flash.intensity, sizes["seqlen"] / 2)
    for kernel in (baseline, flash):
        assert 0.4 * kernel.roof < kernel.rate < kernel.roof

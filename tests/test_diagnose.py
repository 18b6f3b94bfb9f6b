"""A cause is named when one known mistake explains wrong cases and nothing speaks against it."""

import functools
import types

import pytest
import torch

import reference
from grader.causes import diagnose, known_mistakes
from grader.causes.outputs import Outputs
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.spec.problem import load_problem
from tests.casebooks import Book, casebooks, made_up
from tests.shares import drawn

P03 = load_problem("p03")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def setup_module():
    torch.set_num_threads(1)


@pytest.fixture
def book(monkeypatch):
    return casebooks(monkeypatch)


# Mistakes of this repository, each with cases that tell it from all others.
KNOWN = [
    ("p01", "DIAGONAL-EXCLUDED", {"is_causal": True, "values": "needle"}),
    ("p01", "SCALE-OPTION-IGNORED", {"softmax_scale": 0.3}),
    ("p02", "WEIGHTS-IGNORED", {"rows": 128, "cols": 256}),
    ("p03", "NOT-NORMALISED", {"values": "peaked"}),
    ("p03", "LSE-BASE-2", {}),
    ("p03", "PADDED-KEYS-COUNTED", {"seqlen": 49, "values": "offset"}),
    ("p04", "CAUSAL-IGNORED", {"values": "offset"}),
    ("p06", "WINDOW-ONE-SMALLER", {"window_size": 20, "values": "needle"}),
    ("p03", "RUNNING-MAX-FORGOTTEN", {"seqlen": 80}),
    ("p04", "SUM-AND-MAX-SWAPPED", {"seqlen": 80}),
    ("p08", "DK-UNSCALED", {"num_q_heads": 4, "num_kv_heads": 2}),
    ("p08", "DELTA-ADDED", {}),
    ("p08", "DV-OF-DS", {}),
    ("p08", "GROUP-LSE-FIRST-HEAD", {"num_q_heads": 4, "num_kv_heads": 2}),
]


@pytest.mark.parametrize("dtype", drawn(["fp32", "fp16"], 2))
@pytest.mark.parametrize(("problem_id", "mistake", "given"), KNOWN)
def test_a_single_known_mistake_is_named_with_its_cases_and_its_step(
    problem_id, mistake, given, dtype
):
    problem = load_problem(problem_id)
    book = Book(problem)
    if "rows" in given:
        given = given | {"num_q_heads": 1, "seqlen": 1}
    longer = {key: given[key] + 64 for key in ("rows", "seqlen") if key in given}
    book.wrong(("plain", 0), mistake, given, dtype)
    book.wrong(("half", 3), mistake, given | (longer or {"seqlen": 128}), dtype)
    assert book.named() == {mistake: (("half", 3), ("plain", 0))}
    (cause,) = book.book.settle()
    assert cause.step == problem.step_of_cause(mistake)
    assert cause.diagnosis.title and cause.diagnosis.note and cause.diagnosis.help


def test_nothing_is_named_where_nothing_is_wrong():
    book = Book()
    assert book.named() == {}
    book.right()
    book.right({"values": "peaked"})
    assert book.named() == {}


@pytest.mark.parametrize(
    "what",
    [
        lambda truth: 1.5 * truth,
        lambda truth: truth + 0.1,
        lambda truth: truth + 0.3 * torch.randn(truth.shape, dtype=truth.dtype),
        lambda truth: truth.flip(2) + 0.1,
        # Half of it is a mistake, and the rest is neither right nor so.
        lambda truth: torch.cat([2.0 * truth[:, :1], truth[:, 1:] + 0.2], 1),
    ],
)
def test_a_mistake_that_nobody_knows_has_no_name(what):
    book = Book()
    book.wrong(("plain", 0), what)
    book.wrong(("plain", 1), what, {"seqlen": 96})
    assert book.named() == {}


@pytest.mark.parametrize(("fits", "named"), [(3, False), (4, True)])
def test_one_case_in_five_may_speak_against_a_name(fits, named):
    book = Book()
    for number in range(fits):
        book.wrong(("half", number), "NOT-NORMALISED", {"seqlen": 64 + 32 * number})
    book.wrong(("odd_scales", 0), lambda truth: truth + 0.1)
    places = tuple(("half", number) for number in range(fits))
    assert book.named() == ({"NOT-NORMALISED": places} if named else {})


def test_values_that_a_mistake_makes_large_are_rounded_to_16_bits():
    book = Book()
    book.wrong(("half", 0), "NOT-NORMALISED", {"values": "offset", "seqlen": 256}, "fp16")
    assert book.named() == {"NOT-NORMALISED": (("half", 0),)}


def test_a_mistake_that_a_right_case_contradicts_is_not_named():
    book = Book()
    book.wrong(("plain", 0), "NOT-NORMALISED")
    assert book.named() == {"NOT-NORMALISED": (("plain", 0),)}
    book.right({"seqlen": 96})
    assert book.named() == {}


def test_a_right_case_on_which_a_mistake_makes_no_difference_contradicts_nothing():
    book = Book()
    book.wrong(("scale", 0), "SCALE-OPTION-IGNORED", {"softmax_scale": 0.3})
    book.right()  # without the option
    book.right({"seqlen": 96})
    assert book.named() == {"SCALE-OPTION-IGNORED": (("scale", 0),)}


# Made-up mistakes, so that it is known where they agree.
def scaled(inputs, options):
    return "softmax_scale" in options


def in_batches(inputs, options):
    return inputs["q"].shape[0] > 1


def test_no_number_is_close_to_an_infinite_one(book):
    def with_lse(id, change):
        def fn(inputs, options):
            found = made_up(id, 0.0).fn(inputs, options)
            return found | {"lse": change(found["lse"])}

        return reference.Mistake(id, ("p03",), fn)

    endless = with_lse("ENDLESS", lambda lse: torch.full_like(lse, -torch.inf))
    for made in ("ENDLESS", "SHIFTED"):
        found = book(endless, with_lse("SHIFTED", lambda lse: lse + 1.0))
        found.wrong(("lse", 0), made)
        # What is infinite everywhere many mistakes would give.
        assert found.named() == ({} if made == "ENDLESS" else {made: (("lse", 0),)})


def test_numbers_that_a_mistake_makes_huge_are_rounded_as_the_largest(book):
    def exploded(inputs, options):
        found = made_up("", 0.0).fn(inputs, options)
        factor = torch.ones_like(found["out"])
        factor[:, :, 0] = 1e7
        return found | {"out": found["out"] * factor}

    mistake = reference.Mistake("EXPLODED", ("p03",), exploded)
    for off, named in ((2e-6, {"EXPLODED"}), (1e-3, set())):
        found = book(mistake)
        case, inputs, expected = found._case({}, "fp32")
        out = exploded(inputs.tensors, {})["out"]
        out = out + off * out.abs().amax()
        got = {"out": out.float(), "lse": expected.truth["lse"]}
        again = functools.partial(found.recompute, inputs, expected)
        wrong = Outputs("p03", case, inputs, got, expected)
        found.book.add_wrong(("plain", 0), wrong, again)
        assert set(found.named()) == named


@pytest.mark.parametrize("sure", [2, 10**9])
@pytest.mark.parametrize(
    ("last", "right", "named", "caught_up"),
    [
        ("ALWAYS", (), {"ALWAYS"}, False),
        ("SCALED", (), {"ALWAYS", "SCALED"}, True),  # it explains all but one
        ("ALWAYS", ({},), set(), True),  # it would have been wrong there
        (lambda value: value * 3.0, (), {"ALWAYS"}, True),
    ],
)
def test_others_are_put_off_while_one_mistake_explains_all(
    book, monkeypatch, last, right, named, caught_up, sure
):
    monkeypatch.setattr(known_mistakes, "_SURE", sure)
    tried = []

    def only_scaled(inputs, options):
        tried.append(inputs)
        return scaled(inputs, options)

    found = book(made_up("ALWAYS", 1.0), made_up("SCALED", 5.0, only=only_scaled))
    for number in range(4):
        found.wrong(("plain", number), "ALWAYS", {"seqlen": 64 + number})
    found.wrong(("scale", 0), last, {"softmax_scale": 0.3})
    for given in right:
        found.right(given)
    assert set(found.named()) == named
    assert bool(found.recomputed) is (caught_up and sure == 2)
    if sure == 2 and not caught_up:
        assert len(tried) == 2  # of five cases


def test_two_mistakes_that_explain_the_same_just_as_well_are_not_named(book):
    rivals = book(made_up("ONE", 1.0), made_up("TWIN", 1.0))
    rivals.wrong(("plain", 0), "ONE")
    assert rivals.named() == {}


@pytest.mark.parametrize("decided_by", ["a wrong case", "a right case"])
def test_a_case_decides_between_two_mistakes(book, decided_by):
    found = book(made_up("ALWAYS", 1.0), made_up("SCALED", 1.0, only=scaled))
    found.wrong(("scale", 0), "SCALED", {"softmax_scale": 0.3})
    assert found.named() == {}
    if decided_by == "a wrong case":
        found.wrong(("plain", 0), "ALWAYS")
        assert found.named() == {"ALWAYS": (("plain", 0), ("scale", 0))}
    else:
        found.right()
        assert found.named() == {"SCALED": (("scale", 0),)}


def test_a_rival_that_a_right_case_contradicts_is_no_rival(book):
    found = book(made_up("SCALED", 1.0, only=scaled), made_up("ALWAYS", 1.0))
    found.wrong(("scale", 0), "SCALED", {"softmax_scale": 0.3})
    found.wrong(("scale", 1), "SCALED", {"softmax_scale": 0.5})
    found.right({"seqlen": 96})
    assert found.named() == {"SCALED": (("scale", 0), ("scale", 1))}


def test_two_mistakes_in_different_checks_are_both_named(book):
    both = book(made_up("SCALED", 1.0, only=scaled), made_up("BATCHED", 2.0, only=in_batches))
    both.wrong(("scale", 0), "SCALED", {"softmax_scale": 0.3})
    both.wrong(("batch_heads", 1), "BATCHED", {"batch": 2})
    both.wrong(("scale", 1), "SCALED", {"softmax_scale": 0.5})
    both.right()
    explained = {"SCALED": (("scale", 0), ("scale", 1)), "BATCHED": (("batch_heads", 1),)}
    assert both.named() == explained


def test_two_mistakes_in_one_case_are_not_told_apart(book):
    both = book(made_up("SCALED", 1.0, only=scaled), made_up("BATCHED", 2.0, only=in_batches))
    both.wrong(("scale", 0), lambda truth: truth + 3.0, {"softmax_scale": 0.3, "batch": 2})
    assert both.named() == {}


def test_the_variant_that_fits_is_the_one_that_is_told(book):
    found = book(made_up("DROPPED", 1.0, tile=16), made_up("DROPPED", 2.0, tile=32))
    found.wrong(("plain", 0), "DROPPED")
    (cause,) = found.book.settle()
    assert (cause.cases, cause.diagnosis.note) == ((("plain", 0),), "with tiles of 32")


def test_what_numbers_alone_say_is_told_where_nothing_else_is_known_and_most_cases_say_it(book):
    found = book()
    places = [("ragged", number) for number in range(4)]
    for place in places:
        found.wrong(place, lambda truth: 2.0 * truth)
    found.book.add_seen(places[0], by_numbers("OUTPUT-SCALED"))
    assert found.named() == {}
    for place in places[1:3]:
        found.book.add_seen(place, by_numbers("OUTPUT-SCALED"))
    assert found.named() == {"OUTPUT-SCALED": tuple(places)}
    found.book.add_seen(places[3], Sighting("PADDING-COUNTED"))
    assert found.named() == {"PADDING-COUNTED": tuple(places)}


@pytest.mark.parametrize("keeps_given", [True, False])
@pytest.mark.parametrize(
    ("step_of_cause", "seen", "line"),
    [
        (None, Sighting("PADDING-COUNTED", 9, located=True), 9),
        (None, Sighting("PADDING-COUNTED", 9), 7),  # where the state parts: 9 is a symptom
        (4, Sighting("PADDING-COUNTED", 9, located=True), 7),  # line 9 is in step 5
        (None, None, 7),
        (3, None, None),
    ],
)
def test_a_known_mistake_has_the_line_of_what_was_seen_of_its_cases(
    book, monkeypatch, step_of_cause, seen, line, keeps_given
):
    monkeypatch.setattr(type(P03), "step_of_cause", lambda self, id: step_of_cause)
    found = book(made_up("ADDED", 1.0))
    found.wrong(("plain", 0), "ADDED")
    if seen is not None:
        found.book.add_seen(("plain", 0), seen)
    found.book.add_state(("plain", 0), Sighting("STATE-PARTS", 7, located=True))
    steps = {7: 4, 9: 5}
    source = types.SimpleNamespace(
        step_at=steps.get,
        step_behind=lambda spot: steps.get(spot.line),
        has_steps=True,
        fed_by=lambda spot: (),
        nearest=lambda spot: set(),
        exchanged=lambda: None,
        keeps_given=keeps_given,
    )
    (cause,) = found.book.settle(source)
    assert cause.diagnosis.id == "P03-ADDED"
    behind = steps.get(line) if keeps_given else None  # else it may be what was changed there
    assert (cause.line, cause.step) == (line, step_of_cause or behind)


def test_what_the_state_says_has_its_own_line_and_not_that_of_a_consequence(book):
    found = book()
    unit = Sighting("MAXIMUM-IN-ANOTHER-UNIT", 7, what="m is another number")
    for place in (("plain", 0), ("half", 0)):
        found.wrong(place, lambda truth: 1.5 + truth)
    found.book.add_seen(("plain", 0), unit)
    found.book.add_state(("plain", 0), unit)
    found.book.add_seen(("half", 0), Sighting("WEIGHTS-INFINITE", 9, located=True))
    source = types.SimpleNamespace(
        step_at=lambda line: None,
        step_behind=lambda spot: None,
        has_steps=True,
        fed_by=lambda spot: (),
        nearest=lambda spot: set(),
        exchanged=lambda: None,
    )
    (cause,) = found.book.settle(source)
    assert (cause.diagnosis.id, cause.line) == ("P03-MAXIMUM-IN-ANOTHER-UNIT", 7)


def test_where_the_state_parts_is_a_cause_of_last_resort(book):
    found = book()
    places = [("plain", 0), ("half", 0)]
    for place in places:
        found.wrong(place, lambda truth: 1.5 + truth)
    found.book.add_state(places[0], Sighting("STATE-PARTS", 7, located=True))
    assert found.named() == {"STATE-PARTS": tuple(sorted(places))}
    found.book.add_seen(places[1], Sighting("PADDING-COUNTED"))  # not of a plain case
    assert found.named() == {"STATE-PARTS": tuple(sorted(places))}
    found.book._seen[places[0]] = found.book._seen.pop(places[1])
    assert found.named() == {"PADDING-COUNTED": tuple(sorted(places))}


def test_a_case_that_shows_a_consequence_shows_its_cause(book):
    found = book()
    places = [(check, 0) for check in ("plain", "half", "ragged", "scale", "lse")]
    for place in places:
        found.wrong(place, lambda truth: 1.5 + truth)
        found.book.add_seen(place, Sighting("SUM-OUT-OF-RANGE"))
    assert found.named() == {"SUM-OUT-OF-RANGE": tuple(sorted(places))}
    found.book._seen[places[0]] = Sighting("MAXIMUM-IN-ANOTHER-UNIT")
    assert found.named() == {"MAXIMUM-IN-ANOTHER-UNIT": tuple(sorted(places))}


def test_keys_that_were_never_visited_refute_a_mistake_of_the_state_with_these_numbers():
    found = Book()
    places = [(check, 0) for check in ("plain", "ragged", "groups", "scale", "half")]
    for place in places:
        found.wrong(place, "RUNNING-MAX-FORGOTTEN")
    assert found.named() == {"RUNNING-MAX-FORGOTTEN": tuple(sorted(places))}
    found.book.add_seen(
        places[0], Sighting("KEYS-NEVER-VISITED", 9, variant="nothing_read", programs=2)
    )
    assert found.named() == {"KEYS-NEVER-VISITED": tuple(sorted(places))}


@pytest.mark.parametrize("says", [True, False])
def test_what_explains_few_cases_gives_way_to_numbers_that_explain_them_too(
    book, monkeypatch, says
):
    told = by_numbers("OTHER-SINK-LOGIT") if says else None
    monkeypatch.setattr(diagnose, "fitted", lambda *_: told)
    found = book()
    places = [(check, n) for check in ("sink_logits", "dsink_logits", "together") for n in range(2)]
    for place in [*places, ("absent", 0)]:
        found.wrong(place, lambda truth: 2.0 * truth)
    found.book.add_seen(("absent", 0), Sighting("NAN-FROM-PLUS-INFINITY"))
    (id,) = found.named()
    assert id == ("OTHER-SINK-LOGIT" if says else "NAN-FROM-PLUS-INFINITY")


@pytest.mark.parametrize(
    ("telling", "is_named"),
    [
        ("plain plain half", True),  # half of six
        ("half half ieee", False),  # as many, and those of the plain case say nothing
        ("plain half half", False),  # nor does one of them
        ("plain plain", False),
        ("half half ieee ieee", True),
    ],
)
def test_half_of_the_fits_name_a_cause_if_those_of_the_plain_case_do(book, telling, is_named):
    told = by_numbers("TILE-SHARES")
    left = telling.split()
    checks = ("plain", "plain", "half", "half", "ieee", "ieee")

    def fits(check):
        if check not in left:
            return None
        left.remove(check)
        return told

    found = book()
    found.book._wrong = [(check, number) for number, check in enumerate(checks)]
    found.book._to_fit = {
        place: functools.partial(lambda found: found, fits(place[0])) for place in found.book._wrong
    }
    assert bool(found.named()) is is_named

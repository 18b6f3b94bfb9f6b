"""Sums up a trace in a sentence, with notes to it."""

from __future__ import annotations

import dataclasses

from grader.causes.state.comparing import ROLES, Compared
from grader.causes.state.roles import Known
from grader.checks.correctness import named, named_ranges
from grader.kernel.observers.rounds import Rounds
from grader.kernel.observers.trace import Counter, Trace

_LOOK = "look at where the loop begins and ends, and how far it moves"
_GUESSED = (Known.NAME, Known.PRODUCTS, Known.REST)
_NAMES = {"maximum": "running maximum", "sum": "running sum", "accumulator": "accumulator"}


@dataclasses.dataclass(frozen=True)
class Conclusion:
    """A sentence and notes to it; `is_known`: it says where the results of the queries go wrong.

    `why_not` says in a few words why that is not known, "" if it is, or if nothing is wrong;
    `never` names the keys that are missing, if nothing else is wrong.
    """

    text: str
    notes: tuple[str, ...]
    is_known: bool = False
    why_not: str = ""
    never: str = ""


def conclusion_of(
    rounds: Rounds,
    compared: Compared,
    trace: Trace | None,
    *,
    failed: bool,
    wrong: bool,
) -> Conclusion:
    """Return the conclusion from the rounds of a program."""
    notes = _notes(rounds, compared)
    never = _never(rounds, compared, trace) if wrong else None
    shown = trace.count(Counter.SHOWN_LINE) if trace is not None and wrong else 0
    if shown:
        notes.append(f"line {shown}: weights of masked keys count beside those of visible ones")
    astray = compared.oracle.other_head
    if wrong and astray is not None and compared.part is None:
        text = f"the keys of tile {astray + 1} are of another kv head than these queries need"
        return Conclusion(text, tuple(notes), is_known=True)
    if compared.part is not None:
        if never:
            notes.append(f"{never}: {_LOOK}")
        r = compared.part.round
        text = "the state diverges from the reference in the first tile"
        if r > 0:
            text = f"the state matches the reference up to tile {r}, and diverges in tile {r + 1}"
        return Conclusion(text, tuple(notes), is_known=True)
    if failed:
        text = "the call ended as said above; these are the tiles up to then"
        return Conclusion(text, tuple(notes))
    text, is_known = _without_parting(rounds, compared, never, wrong=wrong)
    why_not = "" if is_known or not wrong else _why_not_known(rounds, compared)
    return Conclusion(text, tuple(notes), is_known, why_not, (never or "") if is_known else "")


def _why_not_known(rounds: Rounds, compared: Compared) -> str:
    """Return which condition of a comparison was not met."""
    if compared.why_not:
        return compared.why_not
    known = [compared.roles[s] for s in sorted(set(rounds.column("segment").tolist()))]
    unknown = [_NAMES[name] for name in ROLES if any(getattr(r, name) is None for r in known)]
    if unknown:
        return f"the judge does not know which variable is the {', the '.join(unknown)}"
    if not rounds.column("ended").all():
        return "the end of an iteration of the loop was not seen"
    if rounds.more:
        return f"{rounds.more} more tiles were visited than are compared"
    return "no variable that is compared diverges from the reference"


def _without_parting(
    rounds: Rounds, compared: Compared, never: str | None, *, wrong: bool
) -> tuple[str, bool]:
    """Return the sentence for a state that diverges nowhere, and whether it says what is wrong."""
    tiles = f"after each of the {len(rounds)} tiles" if len(rounds) > 1 else "after its one tile"
    if compared.agrees_throughout and not rounds.more:
        agrees = f"the state agrees with the reference {tiles}"
        if not wrong:
            return f"{agrees}, and so does the result of these queries", False
        if never:
            return f"{agrees}, of the keys that were visited; {never}: {_LOOK}", True
        look = "what comes behind the loop, which is the division by the sum, lse, and which rows"
        look += " are stored where"
        if rounds.others:
            look = "the other programs that multiply these queries with keys, and at what joins"
            look += " their results"
        return f"{agrees}, and the result does not: look at {look}", True
    if not wrong:
        return "the results of these queries are right", False
    if never:
        return f"{never}: {_LOOK}", True
    odd = next((r for r in range(len(rounds)) if is_odd(rounds, compared, r)), None)
    if odd is not None:
        return f"tile {odd + 1} goes wrong: see the line with ! there", False
    return "where the state diverges from the reference is not known", False


def is_odd(rounds: Rounds, compared: Compared, r: int) -> bool:
    """Whether a round takes wrong pairs, or tiles of other heads or rows."""
    oracle = compared.oracle
    return oracle.pairs.any_in(r) or oracle.other_head == r or bool(rounds.column("mixed")[r])


def _notes(rounds: Rounds, compared: Compared) -> list[str]:
    notes = []
    if compared.why_not:
        notes.append(f"not compared: {compared.why_not}")
    else:
        unknown = [
            _NAMES[name]
            for name in ROLES
            if any(status[name] is None for status in compared.status)
        ]
        if unknown:
            notes.append(
                f"the judge does not know which variable is the {', the '.join(unknown)}, or in"
                " which units, in every tile; what has no line of the reference is not compared"
            )
    guessed = dict.fromkeys(
        f"{role.variable.name} is read as the {_NAMES[name]} because of {role.known.value}"
        for roles in compared.roles
        for name in ROLES
        if (role := getattr(roles, name)) is not None and role.known in _GUESSED
    )
    if guessed and not compared.why_not:
        notes.append("; ".join(guessed))
    if rounds.others:
        notes.append(
            f"{rounds.others} more programs multiply these queries with keys; PROGRAM=x,y,z shows"
            " another"
        )
    if rounds.more:
        notes.append(f"{rounds.more} more tiles were visited, which are not compared")
    return notes


def _never(rounds: Rounds, compared: Compared, trace: Trace | None) -> str | None:
    """Name the visible keys that no tile held, and that no other program counted either."""
    never = compared.oracle.never
    if rounds.more or (trace is None and rounds.kernel) or not never.any():
        return None
    keys, ids = never.any(axis=0), rounds.queries[never.any(axis=1)]
    queries = set((ids % compared.oracle.seqlen_q).tolist())
    are, were = ("is", "was") if keys.sum() == 1 else ("are", "were")
    of_keys, of_queries = named_ranges("key", keys), named("query", queries)
    return f"{of_keys} {are} visible to {of_queries} and {were} in no tile"

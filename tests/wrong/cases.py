"""The bugs of `make case`: mistakes in the answers that the cases are made of."""

from grader.commands.case.cases import cases_of
from grader.spec.problem import problem_ids
from tests.wrong import Wrong

WRONG = tuple(
    Wrong(
        case.id[:3],
        f"case {case.id[4:]}",
        tuple((old, new) for old, new in case.edits),
        (case.cause,),
        case.fails[:1],
    )
    for id in problem_ids()
    for case in cases_of(id)
    if case.fails
)

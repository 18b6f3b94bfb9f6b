"""The bugs of `make case`; tests/test_case.py judges them, and `make sweep` as mistakes."""

from grader.commands.case.cases import cases_of
from grader.spec.problem import problem_ids
from tests.wrong import Wrong

WRONG = tuple(
    Wrong(
        case.id[:3],
        f"case {case.id[4:]}",
        tuple((old, new) for old, new in case.edits),
        (case.cause,),
        (),
    )
    for id in problem_ids()
    for case in cases_of(id)
    if case.fails
)

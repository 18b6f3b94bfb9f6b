"""Calls of the later cases of a problem, made in a second worker while the earlier are judged.

A case is judged by what came of its calls, whoever made them, and in its turn. Which cases are
called ahead is settled before the first of them, from their sizes: each case runs in the same
worker, behind the same others, whenever a run with this seed is repeated. A call that does not come
back, or leaves its worker unfit for the next, is not believed: with it calling ahead ends, and the
case is called when its turn comes.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable

from grader.isolate.session import Budget, Session
from grader.judge.answers import Answer
from grader.judge.trial import Trial
from grader.judge.work_run import WorkRun
from grader.spec.cases import Case
from grader.spec.findings import Evidence
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check
from grader.spec.protocol import Reply, Status

Place = tuple[str, int]  # check and number of the case
Placed = tuple[Check, int, Case]
# What a call may take of the time that it has in its turn: who waits for it may wait in vain.
_SHARE_OF_A_CALL = 0.25
_CAME_BACK = {
    *(Status.OK, Status.EXCEPTION, Status.BAD_RETURN, Status.OUT_OF_BOUNDS),
    *(Status.GUARD_CHANGED, Status.ROUNDING_DOT, Status.FORBIDDEN_OPERATOR),
}
_WATCHED = 2.0  # as long as a call takes one whose work is counted


class Ahead:
    """The calls of the last cases of one problem, and behind them those that count its work.

    A result goes with the seconds that its calls took: the session takes them over in whose place
    they were made.
    """

    def __init__(
        self,
        trial: Trial,
        cases: list[Placed],
        open_session: Callable[[Check | None, Budget], Session],
        wants_work: Callable[[], bool],
    ) -> None:
        """Call the last of `cases`, which are in their order, from `start` on.

        `open_session` opens one for a check, or for work; `wants_work` says whether that will be
        counted as far as is known.
        """
        self._trial = trial
        self._cases = cases
        self._open_session = open_session
        self._wants_work = wants_work
        limits = trial.problem.limits
        call_s = limits.call_s * _SHARE_OF_A_CALL
        self._budget = Budget(limits.model_copy(update={"call_s": call_s}))
        self._sessions: dict[str, Session] = {}  # by entry point
        self._begun: set[Place] = set()  # in their turn
        self._expected: set[Place] = set()  # will be called, or are being called
        self._answers: dict[Place, list[tuple[Answer, float]]] = {}
        self._work: tuple[Evidence, float] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin, once, with cases that have not begun."""
        if self._thread is not None or self._stopped:
            return
        left = [placed for placed in self._cases if (placed[0].id, placed[1]) not in self._begun]
        chosen = last_half(self._trial, left)
        self._expected = {(check.id, index) for check, index, _ in chosen}
        self._thread = threading.Thread(target=self._run, args=(chosen,), daemon=True)
        self._thread.start()

    def take(self, check: Check, index: int, call: int, session: Session) -> Answer | None:
        """Return what came of a call, after waiting for it; None if `session` has to make it."""
        place = check.id, index
        with self._changed:
            self._begun.add(place)
            self._changed.wait_for(lambda: place not in self._expected)
        answers = self._answers.get(place, ())
        if call >= len(answers):
            return None
        answer, seconds = answers[call]
        return answer if session.accepts(seconds) else None

    def take_work(self, session: Session) -> Evidence | None:
        """Return the work that was counted, after waiting for it; None if `session` has to."""
        if self._thread is not None:
            self._thread.join()
        if self._work is None:
            return None
        evidence, seconds = self._work
        return evidence if session.accepts(seconds) else None

    def close(self) -> None:
        """End it, and its workers."""
        self._stopped = True
        while self._thread is not None and self._thread.is_alive():
            for session in list(self._sessions.values()):
                session.kill()
            self._thread.join(0.02)

    # -- in the thread, which its workers do not outlive ------------------------------------------

    def _run(self, chosen: list[Placed]) -> None:
        try:
            if self._call(chosen) and self._wants_work() and not self._stopped:
                self._count_work()
        except Exception:  # the judge's own: it is met again, and told, in its turn
            return
        finally:
            with self._changed:
                self._expected.clear()
                self._changed.notify_all()
            for session in self._sessions.values():
                with contextlib.suppress(OSError):
                    session.close()

    def _call(self, chosen: list[Placed]) -> bool:
        """Call cases until one is not believed; return whether all are right.

        After a wrong result its case is not called again: nobody asks for a second one.
        """
        right = True
        for check, index, case in chosen:
            judged = self._trial.problem.judged(check)
            answers: list[tuple[Answer, float]] = []
            for call in range(calls_of(check, index, case)):
                if self._stopped:
                    return False
                before = self._budget.spent_s
                where = (self._session(check), check, index, case, call)
                answer = Answer.of(self._trial.problem, self._trial.seed, *where)
                if self._stopped or not _came_back(answer):
                    return False
                answers.append((answer, self._budget.spent_s - before))
                right = right and answer.failure is None and not answer.differences
                if answer.failure is not None or answer.wrong(judged):
                    break
            with self._changed:
                self._answers[check.id, index] = answers
                self._expected.discard((check.id, index))
                self._changed.notify_all()
        return right

    def _count_work(self) -> None:
        before = self._budget.spent_s
        evidence = WorkRun(self._trial, self._session(None)).judge()
        if evidence.figures is not None and not self._stopped:
            self._work = evidence, self._budget.spent_s - before

    def _session(self, check: Check | None) -> Session:
        problem = self._trial.problem
        entry = (problem.of(check) if check else problem).entry
        if entry not in self._sessions:
            self._sessions[entry] = self._open_session(check, self._budget)
        return self._sessions[entry]


def calls_of(check: Check, index: int, case: Case) -> int:
    """Return how many calls of a case ask for results; the first of a check is called twice."""
    if check.compiles or case.invalid is not None:
        return 0
    return 2 if index == 0 else 1


def last_half(trial: Trial, cases: list[Placed]) -> list[Placed]:
    """Return the last cases, in whole checks, that with the work take as long as the first."""
    problem = trial.problem
    costs = [_cost(problem, c, case) * calls_of(c, i, case) for c, i, case in cases]
    work = sum(_ms(problem, case) * _WATCHED for case in problem.work_cases(trial.seed))
    before, behind, begins = sum(costs), work, len(cases)
    for first in reversed(range(1, len(cases))):
        before, behind = before - costs[first], behind + costs[first]
        if behind > before:
            break
        if cases[first - 1][0].id != cases[first][0].id:
            begins = first
    return [placed for placed in cases[begins:] if calls_of(*placed)]


def _cost(problem: Problem, check: Check, case: Case) -> float:
    differentiates = any(name in problem.gradients for name in problem.judged(check))
    return _ms(problem, case, differentiates=differentiates)


def _ms(problem: Problem, case: Case, *, differentiates: bool | None = None) -> float:
    """Return about how long a call takes, from model answers on the machine."""
    rows, columns = case.rows or case.seqlen_q, case.cols or case.seqlen_k
    tiles_q, tiles_k = math.ceil(rows / 64), math.ceil(columns / 64)
    ms = 4.0 + case.batch * case.num_q_heads * tiles_q * (2.0 + 0.3 * tiles_k)
    if differentiates is None:
        differentiates = bool(problem.gradients)
    return 3.0 * ms if differentiates else ms


def _came_back(answer: Answer) -> bool:
    results = [e.result for e in (answer.idle, answer.evidence) if e is not None]
    return all(isinstance(r, Reply) and r.status in _CAME_BACK for r in results)

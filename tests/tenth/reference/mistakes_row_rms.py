"""Known mistakes in the root mean square of a row."""

from .variants import Mistake


def _row_rms(id, compute):
    """A mistake of `row_rms`; compute(x), x (rows, cols) in fp64, returns y."""

    def fn(inputs, options, problem_id="p10"):
        return {"y": compute(inputs["x"].double())}

    return Mistake(id, ("p10",), fn)


ROW_RMS_MISTAKES = (
    _row_rms("RMS-OF-SUM", lambda x: x.norm(dim=1)),
    _row_rms("RMS-NOT-ROOTED", lambda x: x.square().mean(1)),
    _row_rms("RMS-CENTRED", lambda x: (x - x.mean(1, keepdim=True)).square().mean(1).sqrt()),
)

"""Known mistakes in the root mean square of a row."""

from .variants import Mistake


def _row_rms(id, title, note, help, compute):
    """A mistake of `row_rms`; compute(x), x (rows, cols) in fp64, returns y."""

    def fn(inputs, options, problem_id="p10"):
        return {"y": compute(inputs["x"].double())}

    return Mistake(id, ("p10",), title, note, help, fn)


ROW_RMS_MISTAKES = (
    _row_rms(
        "RMS-OF-SUM",
        "the squares are not divided by the number of columns",
        "your output equals the norm of each row",
        "divide the sum of the squares by cols before you take the root",
        lambda x: x.norm(dim=1),
    ),
    _row_rms(
        "RMS-NOT-ROOTED",
        "the root is missing",
        "your output equals the mean of the squares of each row",
        "take tl.sqrt of the mean",
        lambda x: x.square().mean(1),
    ),
    _row_rms(
        "RMS-CENTRED",
        "the mean of the row is subtracted first",
        "your output equals the standard deviation of each row",
        "RMSNorm does not subtract the mean: square x itself",
        lambda x: (x - x.mean(1, keepdim=True)).square().mean(1).sqrt(),
    ),
)

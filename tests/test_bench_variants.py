"""Variants of a benchmark's tiles: the options, the configurations replaced, the ranking."""

import copy
import types

import pytest

from benchmarks import precompile, variants
from benchmarks import shapes as sh
from benchmarks.inputs import load_solution
from tests.test_benchmarks import _rendered


def _variant_options(*arguments):
    return variants.parser().parse_args(["p08", *arguments])


def test_variants_are_the_product_of_the_values():
    options = _variant_options("--block-m", "64,128", "--num-warps", "4,8", "--set", "EXTRA=1,2,3")
    found = variants.product(options)
    assert len(found) == 12 and {"BLOCK_M": 64, "num_warps": 8, "EXTRA": 3} in found
    assert variants.label(found[0]) == "M64 w4 EXTRA=1"
    with pytest.raises(ValueError, match="no values"):
        variants.product(_variant_options())


def test_a_configuration_is_replaced_and_put_back():
    nested = {"dq": {"BLOCK_M": 128, "BLOCK_N": 64}, "dkdv": {"BLOCK_M": 64, "BLOCK_N": 128}}
    module = types.SimpleNamespace(_launch_config=lambda dtype: copy.deepcopy(nested))
    original = module._launch_config
    with precompile.patched(module, "dq", {"BLOCK_M": 64}):
        assert module._launch_config("fp16")["dq"] == {"BLOCK_M": 64, "BLOCK_N": 64}
        assert module._launch_config("fp16")["dkdv"] == nested["dkdv"]
    assert module._launch_config is original
    call = lambda: module._launch_config("fp16")  # noqa: E731
    assert variants.current_config(module, call, "dq") == nested["dq"]
    with pytest.raises(ValueError, match="expected one of dq, dkdv"):
        variants.current_config(module, call, None)
    for name in (("p08", "dq"), ("p09", "forward")):
        assert variants.broken_rule(*name, {"BLOCK_M": 64, "BLOCK_N": 128})
    assert not variants.broken_rule("p08", "dq", {"BLOCK_M": 64, "BLOCK_N": 64})
    assert not variants.broken_rule("p04", None, {"BLOCK_M": 64, "BLOCK_N": 128})


@pytest.mark.parametrize("problem", sh.PROBLEMS[1:])
def test_the_configuration_of_every_solution_can_be_replaced(problem):
    module = load_solution(problem)[0]
    name = precompile.chooser(module)
    original = getattr(module, name)
    with precompile.patched(module, None, {}):
        assert getattr(module, name) is not original
    assert getattr(module, name) is original
    with pytest.raises(ValueError, match="expected one function"):
        precompile.chooser(types.SimpleNamespace())


def test_variants_list_and_ranking(capsys):
    arguments = ["p04", "--block-m", "64,128", "--shape", "2,16,16,8192,128", "--dry-run"]
    assert variants.main(arguments) == 0
    assert "2 variants: M64, M128" in capsys.readouterr().out
    assert variants.main(["p04", "--block-m", "64", "--shape", "1,2,2,64,16,w=3", "--dry-run"]) == 2
    assert variants.main(["p08", "--kernel", "forward", "--block-m", "64", "--dry-run"]) == 2
    row = {"label": "M64", "median_ms": 1.0, "quartiles_ms": [0.9, 1.1], "rate": 500.0,
           "errors": {"out": {"worst": 0.003}},
           "kernels": {"_dq_kernel": {"registers": 200, "spills": 8, "shared_bytes": 9}}
    }  # fmt: skip
    result = {"problem": "p08", "shape": {"label": "1,2,1,64,16"}, "pass": "backward",
              "kernel": "dq", "current": {"BLOCK_M": 128}, "rows": [row]}  # fmt: skip
    text = _rendered(variants.ranking(result))
    assert "200" in text and "M64" in text and "now: M128" in text

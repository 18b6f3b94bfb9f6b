"""Computes desc.atomic_add and its like in Triton's interpreter, which has no such operation.

Each is an atomic operation on the elements of a tile that lie in the tensor. In a worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def install(interpreter: Any) -> None:
    """Let kernels reduce into a tensor descriptor, where Triton compiles that."""
    from triton._C.libtriton import ir

    kinds = getattr(ir, "DESCRIPTOR_REDUCE_KIND", None)
    if kinds is None or hasattr(interpreter.InterpreterBuilder, "create_descriptor_reduce"):
        return
    plain = {kinds.ADD: "ADD", kinds.AND: "AND", kinds.OR: "OR", kinds.XOR: "XOR"}
    plain |= {kinds.MIN: "MIN", kinds.MAX: "MAX"}

    def reduce(this: Any, kind: Any, desc: Any, value: Any, indices: list[Any]) -> Any:
        pointers, mask = desc.materialize_pointers(indices)
        name, element = plain[kind], pointers.get_element_ty()
        if element.is_floating() and name == "ADD":
            name = "FADD"
        elif element.is_floating():
            raise NotImplementedError(f"without a GPU there is no {name.lower()} of {element}")
        elif element.is_int_unsigned() and name in ("MIN", "MAX"):
            name = f"U{name}"
        lanes = np.broadcast_to(mask, value.data.shape)
        there = interpreter.TensorHandle(lanes, interpreter.tl.int1)
        relaxed, gpu = ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU
        operation = getattr(ir.ATOMIC_OP, name)
        return this.create_atomic_rmw(operation, pointers, value, there, relaxed, gpu)

    interpreter.InterpreterBuilder.create_descriptor_reduce = reduce

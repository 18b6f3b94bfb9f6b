"""The machines of records that tests make up; imports no torch, as workers of a class do not."""

from grader.spec.grade_record import Environment

CPU = Environment(
    device="cpu", device_name="x86_64", python="3.11.7", torch="2.13.0", triton="3.7.1"
)
H200 = CPU.model_copy(update={"device": "cuda", "device_name": "NVIDIA H200"})

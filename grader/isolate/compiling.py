"""Answers requests to compile for a chip that is not there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from grader.isolate import arena, serving
from grader.kernel.compile import absent_gpu
from grader.kernel.compile.chips import Chip, chip_of
from grader.kernel.compile.predicting import Predictor
from grader.kernel.compile.recorder import Recorder
from grader.kernel.machine import capture
from grader.spec import protocol

_SMALL = b"\x3c"  # in all bytes of a number: 0.0115 in fp32 and bf16, 1.06 in fp16


class Filler:
    """Compiles what a submission launches into Triton's cache, for a GPU that others will use.

    Triton binds and specialises the arguments as on that GPU, so that a launch there finds its
    kernel; here nothing is launched, and `count` is the number of launches.
    """

    def __init__(self, chip: Chip) -> None:
        self.count = 0
        self.lines: set[int] = set()
        self.idle = False
        self._chip = chip

    def install(self) -> None:
        absent_gpu.install(self._chip, self._bench)
        capture.install(self._launch, self._compile)

    def watch(self, call: Callable[[], Any]) -> Exception | None:
        """Make a call; return the exception that ended it, None where none did."""
        try:
            call()
        except Exception as error:
            return error
        return None

    def _compile(self, source: Any, target: Any, options: dict[str, Any]) -> capture.Kernel:
        from triton.compiler import compiler

        compiler.compile(source, target=target, options=options)
        usage = capture.usage_of(options)
        return capture.Kernel(source.fn, source.name, "", source.signature, False, usage=usage)

    def _bench(self, kernel_call: Callable[[], Any], **_: Any) -> list[float]:
        """Compile a configuration, as the autotuner does with each before it times any."""
        kernel_call()
        return [0.0] * 3

    def _launch(self, launch: capture.Launch) -> None:
        self.count += 1


class CompileWorker(serving.Worker):
    """A worker whose calls compile kernels for a chip that is not there.

    Each call comes with a file, and each kernel is written to it as a line of JSON as soon as it is
    compiled, so that it is not lost if the worker is ended. A worker that `fills` Triton's cache
    writes nothing.
    """

    def __init__(self, channel: socket.socket, settings: dict[str, Any]) -> None:
        super().__init__(channel, settings)
        self._report: int | None = None
        self._text = b""  # not written yet: kernels that the import launches
        chip = chip_of(settings["capability"])
        predicts = settings.get("predicts")
        self._predictor = Predictor(self.path, chip.capability) if predicts else None
        self._recorder: Recorder | Filler = Recorder(self.path, chip, self._note, self._predictor)
        if settings.get("fills"):
            self._recorder = Filler(chip)
        self.launches = self._recorder  # its count goes out with every reply

    def _warm_up(self) -> None:
        """Do nothing: nothing here is measured."""

    def load(self, nonce: int) -> protocol.Reply:
        """Import the submission, and record what it launches."""
        self._recorder.install()
        return super().load(nonce)

    def _do_compile(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Make one call on inputs that are small numbers, and launch nothing.

        With `predicts` in the request its launches are predicted, and nothing else is written.
        """
        layout = arena.Layout.of(request)
        small = bytearray(_SMALL * layout.inputs_end)
        memory = torch.frombuffer(small, dtype=torch.uint8)
        tensors = {view.name: view.of(memory) for view in layout.inputs}
        self._report = fds[0] if fds else None
        self._flush()
        self._recorder.predicts = bool(request.get("predicts"))
        error = self._recorder.watch(lambda: self.evaluate(tensors, request))
        for record in self._predictor.records() if self._predictor else ():
            self._write(record)
        if error is not None:
            raise error
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _note(self, record: dict[str, Any]) -> None:
        if not self._recorder.predicts:
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        self._text += json.dumps(record).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        if self._report is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._report, 0, os.SEEK_END)
                os.write(self._report, self._text)
            self._text = b""

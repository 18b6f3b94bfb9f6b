"""Answers the judge's requests: what a worker runs once its search path is set.

It loads one submitted file, calls its entry point on inputs that lie in the shared arena, copies
the outputs there and answers with a fixed-size packet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import json
import os
import resource
import socket
import sys
from types import ModuleType
from typing import Any

import torch

from grader.isolate import (
    allocations,
    apart,
    arena,
    device_memory,
    operators,
    returned,
    walls,
)
from grader.isolate.host_rounds import HostRounds
from grader.kernel import given, launches, lines
from grader.kernel.compile import absent_gpu, faults, shapes
from grader.kernel.observers.rounds import RoundsShape
from grader.spec import protocol

# No recursion gets so deep in the time of a call that earns points.
_DEPTH = 10**8


def begin(channel: socket.socket) -> dict[str, Any]:
    """Report that torch is imported; return the judge's settings for the submission."""
    channel.send(protocol.Reply(protocol.IMPORTED, protocol.Status.OK).pack())
    return json.loads(channel.recv(protocol.MAX_REQUEST_BYTES))


class Worker:
    """Serves requests on one socket for one submitted file."""

    def __init__(self, channel: socket.socket, settings: dict[str, Any]) -> None:
        self.channel = channel
        self.settings = settings
        self.device = settings["device"]
        self.path = settings["path"]
        self.source = b""
        self.module: ModuleType | None = None
        self.entry: Any = None
        self.launches: Any = None  # counts them, or runs them
        self.record: operators.OperatorAudit | None = None
        self.cuda_arena: Any = None
        # Of each timed call: the memory of its inputs, and of its outputs.
        self.sets: list[tuple[list[tuple[arena.View, torch.Tensor]], torch.Tensor]] = []
        self.inputs = torch.empty(0, dtype=torch.uint8, device="cpu")

    def serve(self) -> None:
        """Answer requests until the judge closes the channel."""
        self._warm_up()
        self._reply(protocol.Reply(protocol.STARTED, protocol.Status.OK))
        if self.settings.get("held"):
            self.channel.recv(1)  # the judge says that its turn has come
        self._reply(self._guarded(self.settings["nonce"], self.load, self.settings["nonce"]))
        while True:
            packet, fds, _, _ = socket.recv_fds(self.channel, protocol.MAX_REQUEST_BYTES, 4)
            if not packet:
                return
            request = json.loads(packet)
            handler = getattr(self, "_do_" + request["do"])
            if self.launches:
                self.launches.count, self.launches.idle = 0, request.get("idle", False)
                self.launches.lines.clear()
            self._reply(self._guarded(request["nonce"], handler, request, fds))
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _reply(self, reply: protocol.Reply) -> None:
        if self.launches:
            kernels = tuple(sorted(self.launches.lines - {0}))
            reply = dataclasses.replace(reply, launches=self.launches.count, kernels=kernels)
        if self.record:
            reply = dataclasses.replace(reply, multiply_adds=self.record.multiply_adds)
        self.channel.send(reply.pack())

    def _warm_up(self) -> None:
        """Let torch and its libraries take their memory before the submission can be charged.

        The first matmul of a process allocates workspaces, the first exp loads tables. On a CPU
        that exp may also be of low accuracy for one of several threads (oneMKL before 2025.0,
        pytorch issue 188792); with one element it runs on one.
        """
        for dtype in (torch.float32, torch.float64):
            torch.ones(1, dtype=dtype).exp().log()
        if self.device == "cpu":
            tile = torch.ones(2, 64, 64)
            torch.bmm(tile, tile)
            return
        for dtype in (torch.float16, torch.float32):
            tile = torch.ones(2, 64, 64, dtype=dtype, device=self.device)
            torch.bmm(tile, tile)
        torch.cuda.synchronize()

    # -- requests ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Install what has to be in place before the submission is imported."""
        if self.settings.get("answers_for_gpu"):
            absent_gpu.answer()
        if self.settings.get("count_launches"):
            self.launches = launches.LaunchCounter(self.path)
            self.launches.install()

    def limit(self) -> None:
        """Limit what this process may take from now on."""
        if self.device == "cpu":
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            most = used + self.settings["memory_limit_bytes"]
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if "file_limit_bytes" in self.settings:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.settings["file_limit_bytes"],) * 2)

    def load(self, nonce: int) -> protocol.Reply:
        """Import the submission."""
        self.prepare()
        if self.settings.get("operators"):
            lines.read_as_written(self.path)
            self.record = operators.OperatorAudit(self.settings["operators"], self.path)
            self.record.install()
        self.limit()
        with open(self.path, "rb") as file:
            self.source = file.read()  # before it runs, and may change its file
        given.offer_given()
        if self.settings.get("count_launches"):
            shapes.keep_names()
        module = self._import()
        self.module = module
        gc.collect()
        gc.freeze()  # what exists by now stays: a collection after a call takes no time
        gc.disable()
        self.entry = getattr(module, self.settings["entry"], None)
        if not callable(self.entry):
            text = f"no function {self.settings['entry']!r} after import"
            return protocol.Reply(nonce, protocol.Status.NO_ENTRY, text=text)
        return protocol.Reply(nonce, protocol.Status.OK)

    def _import(self) -> ModuleType:
        name = os.path.splitext(os.path.basename(self.path))[0]
        spec = importlib.util.spec_from_file_location(name, self.path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if self.settings.get("operators"):  # under the source policy
            rules, names = self.settings["operators"], vars(module)
            walls.install(name)
            names.update(walls.names(names))
            how = rules["entries"], rules["gradients"]
            exec(walls.compiled(self.source, self.path, *how), names)
        else:
            spec.loader.exec_module(module)
        return module

    def _do_call(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Make a call on fresh inputs: forward, or forward and backward, with guards around all."""
        layout = arena.Layout.of(request)
        shared = arena.attached(fds[0], layout.total_bytes)
        memory = self.inputs_of(shared, layout)
        tensors = {view.name: view.of(own) for view, own in apart.parts(memory, layout)}
        following: Any = contextlib.nullcontext()
        if "rounds" in request:
            shape = RoundsShape(**request["rounds"])
            block = arena.attached(fds[1], shape.total_bytes).numpy()
            following = HostRounds(shape, block, self.path, self.source, tensors)
        with following:
            return self.call(shared, memory, tensors, layout, request)

    def noting(self, layout: arena.Layout, request: dict) -> Any:
        """Return a context in which the operators of a call are noted."""
        return self.record.noting(layout, request) if self.record else contextlib.nullcontext()

    def call(
        self,
        shared: torch.Tensor,
        memory: Any,
        tensors: dict,
        layout: arena.Layout,
        request: dict,
        watching: Any = None,
    ) -> protocol.Reply:
        """Make one call on `tensors`, which lie in `memory`, and copy its outputs to `shared`."""
        # Any use of a result may run the submission's code, and launch kernels: a tensor may be of
        # a class of the submission's, or have methods of it.
        with allocations.Guarded() as guarded:
            with self.noting(layout, request):
                results = self.evaluate(tensors, request)
                if self.device != "cpu":
                    torch.cuda.synchronize()
                returned.check(results, layout, request["returns"], self.device)
                for view in layout.outputs:
                    value = results[view.name].detach()
                    value = watching.unrounded(value) if watching else value
                    view.of(shared).copy_(value)
            updated = watching.updated if watching else ()
            for view in layout.outputs:
                guarded.settle(results[view.name], view.of(shared), updated)
            shared[: layout.inputs_end].copy_(memory)
            if watching:
                watching.finish(results)
        if self.record and self.record.found:
            return self.record.refusal(request["nonce"])
        broken = guarded.broken()
        if broken:
            return protocol.Reply(request["nonce"], protocol.Status.GUARD_CHANGED, text=broken)
        if watching:
            return watching.reply(request["nonce"])
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def inputs_of(self, shared: torch.Tensor, layout: arena.Layout) -> torch.Tensor:
        """Return a copy of the inputs of a call, with what lies between them."""
        memory = shared[: layout.inputs_end]
        if self.device != "cpu":
            return memory.to(self.device)
        # At the same address in each call: what a submission caches by address shows as stale.
        if self.inputs.numel() < layout.inputs_end:
            self.inputs = torch.empty(layout.inputs_end, dtype=torch.uint8, device="cpu")
        return self.inputs[: layout.inputs_end].copy_(memory)

    def evaluate(self, tensors: dict, request: dict) -> dict:
        """Call the entry point; return its outputs by name."""
        # Cycles are collected here alone, since their finalizers may be the submission's: else the
        # collector could run them inside an operator, where theirs go unseen, or between calls.
        try:
            return returned.of_call(self.entry, tensors, request)
        finally:
            gc.collect()

    def _do_open(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Map the judge's CUDA arena for speed and memory."""
        self.cuda_arena = device_memory.attach(fds[0], request["size"])
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _do_settle(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Prepare timed calls, before the clock runs and before there are inputs.

        Cycles of earlier calls are collected. Lines that a kernel asked L2 to keep (evict_last) are
        released: they would survive the flush. At `starts` the inputs of each set will lie.
        """
        self.sets = []
        gc.collect()
        if self.device == "cpu":
            memory = arena.attached(fds[0], request["total_bytes"])
        else:
            memory = self.cuda_arena[request["window_start"] :][: request["total_bytes"]]
            device_memory.forget_persisting_lines()
        layout = arena.Layout.of(request)
        outputs = apart.outputs(memory, layout, len(request["starts"]), request["outputs_start"])
        for starts, written in zip(request["starts"], outputs, strict=True):
            self.sets.append((apart.parts(memory, layout, starts), written))
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _do_time(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Run the entry point once on the inputs of each set; the judge holds the clock.

        With `null` the outputs are written without computing anything, to measure the overhead. A
        `watched` go is audited as a call in a test is, and does not count.
        """
        # Else the depth that recursion reaches below an operator tells if the call is watched.
        sys.setrecursionlimit(_DEPTH)
        if request["watched"] and self.record:
            with self.record.noting(arena.Layout.of(request), request):
                reply = self._time(request, fds)
            return self.record.refusal(request["nonce"]) if self.record.found else reply
        return self._time(request, fds)

    def _time(self, request: dict, fds: list[int]) -> protocol.Reply:
        layout = arena.Layout.of(request)
        if request["entry"]:
            self.entry = getattr(self.module, request["entry"])
        sets, self.sets = self.sets, []
        outputs = layout.written
        for parts, written in sets:
            tensors = {view.name: view.of(own) for view, own in parts}
            if request["null"]:
                source = next(iter(tensors.values())).reshape(-1)
                for view in outputs:
                    target = view.of(written).view(-1)[: source.numel()]
                    target.copy_(source[: target.numel()])
                continue
            # The collector, which would take a millisecond of a call, runs in `_do_settle`.
            results = returned.of_call(self.entry, tensors, request)
            returned.check(results, layout, request["returns"], self.device)
            for view in outputs:
                view.of(written).copy_(results[view.name].detach())
        if self.device != "cpu":
            torch.cuda.synchronize()
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _do_release(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Give cached device memory back, so that the next reading starts from nothing.

        With `forget` the module's own caches go first: naive's mask would pin a whole segment.
        """
        gc.collect()
        if request.get("forget"):
            for value in vars(self.module).values():
                getattr(value, "cache_clear", lambda: None)()
        if self.device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _guarded(self, nonce: int, handler: Any, *args: Any) -> protocol.Reply:
        try:
            return handler(*args)
        except BaseException as error:
            return self.explained(nonce, error, importing=handler == self.load)

    def explained(
        self, nonce: int, error: BaseException, *, importing: bool = False
    ) -> protocol.Reply:
        """Return the reply for an error of the submission."""
        try:
            return faults.explain(nonce, error, self.path, importing=importing)
        except BaseException as raised:  # its class, text and traceback are the submission's
            return faults.unexplained(nonce, raised)

"""The process in which a submission runs: `python -I grader/worker.py FD`.

It loads one submitted file, calls its entry point on inputs that lie in the shared arena, copies
the outputs there and answers with a fixed-size packet. It knows no oracle, no seed and no score.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import inspect
import json
import os
import resource
import socket
import sys
import traceback
from types import ModuleType
from typing import Any


class BadReturn(Exception):
    """The entry point returned something that is not what the problem asks for."""


class Worker:
    """Serves requests on one socket for one submitted file."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.settings = json.loads(channel.recv(protocol.MAX_REQUEST_BYTES))
        self.device = self.settings["device"]
        self.path = self.settings["path"]
        self.module: ModuleType | None = None
        self.entry: Any = None
        self.monitor: bounds.AccessMonitor | None = None
        self.cuda_arena: Any = None

    def serve(self) -> None:
        """Answer requests until the judge closes the channel."""
        self._reply(self._guarded(0, self._load))
        while True:
            packet, fds, _, _ = socket.recv_fds(self.channel, protocol.MAX_REQUEST_BYTES, 1)
            if not packet:
                return
            request = json.loads(packet)
            handler = getattr(self, "_do_" + request["do"])
            self._reply(self._guarded(request["nonce"], handler, request, fds))
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _reply(self, reply: protocol.Reply) -> None:
        sys.stdout.flush()
        self.channel.send(reply.pack())

    # -- requests ---------------------------------------------------------------------------

    def _load(self) -> protocol.Reply:
        if self.settings["interpret"]:
            self.monitor = bounds.AccessMonitor()
            self.monitor.install()
        if self.device == "cpu":
            _limit_address_space(self.settings["memory_limit_bytes"])
        module = _import_file(self.path)
        self.module = module
        self.entry = getattr(module, self.settings["entry"], None)
        if not callable(self.entry):
            text = f"no function {self.settings['entry']!r} after import"
            return protocol.Reply(0, protocol.Status.NO_ENTRY, text=text)
        return protocol.Reply(0, protocol.Status.OK)

    def _do_call(self, request: dict, fds: list[int]) -> protocol.Reply:
        """One call on fresh inputs: forward, or forward and backward, with guards around all."""
        layout = arena.Layout.from_json(request["layout"])
        shared = arena.Arena(layout.total_bytes, os.dup(fds[0]))
        if self.device == "cpu":
            memory = shared.memory
        else:
            memory = shared.memory[: layout.inputs_end].to(self.device)
        tensors = {view.name: view.of(memory) for view in layout.inputs}
        if self.monitor:
            self.monitor.reset()
        with allocations.Guarded() as guarded:
            results = self._evaluate(tensors, request)
            if self.device != "cpu":
                torch.cuda.synchronize()
        if self.monitor and self.monitor.violation:
            raise bounds.OutOfBounds(self.monitor.violation)
        self._check_results(results, layout, request)
        for view in layout.outputs:
            view.of(shared.memory).copy_(results[view.name].detach())
        if self.device != "cpu":
            shared.memory[: layout.inputs_end].copy_(memory)
        shared.close()
        broken = guarded.broken()
        if broken:
            return protocol.Reply(request["nonce"], protocol.Status.GUARD_CHANGED, text=broken)
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _evaluate(self, tensors: dict, request: dict) -> dict:
        tensors = dict(tensors)
        dout = tensors.pop("dout", None)
        if not request["gradients"]:
            with torch.no_grad():
                returned = self.entry(**tensors, **request["kwargs"])
            return _named(returned, request["returns"])
        for name, tensor in tensors.items():
            tensors[name] = tensor.detach().requires_grad_(True)
        results = _named(self.entry(**tensors, **request["kwargs"]), request["returns"])
        out = results["out"]
        if not isinstance(out, torch.Tensor) or not out.requires_grad:
            raise BadReturn("out is not differentiable: it does not require a gradient")
        if out.shape != dout.shape:
            raise BadReturn(f"out: got shape {tuple(out.shape)}, expected {tuple(dout.shape)}")
        gradients = torch.autograd.grad(out, list(tensors.values()), dout, allow_unused=True)
        for name, gradient in zip(tensors, gradients, strict=True):
            if gradient is None:
                raise BadReturn(f"d{name}: got None, expected a gradient for {name}")
            results["d" + name] = gradient
        return results

    def _check_results(self, results: dict, layout: arena.Layout, request: dict) -> None:
        for view in layout.outputs:
            value = results[view.name]
            wanted = arena.TORCH_DTYPES[view.dtype]
            if not isinstance(value, torch.Tensor):
                raise BadReturn(f"{view.name}: got {type(value).__name__}, expected a tensor")
            if tuple(value.shape) != view.size:
                got = tuple(value.shape)
                raise BadReturn(f"{view.name}: got shape {got}, expected {view.size}")
            if value.dtype != wanted:
                raise BadReturn(f"{view.name}: got dtype {value.dtype}, expected {wanted}")
            if value.device.type != self.device:
                raise BadReturn(f"{view.name}: got device {value.device}, expected {self.device}")
            if view.name in ("out", "lse", "y") and not value.is_contiguous():
                raise BadReturn(
                    f"{view.name}: got strides {value.stride()}, expected a dense tensor with"
                    f" strides {view.stride}"
                )

    def _do_open(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Map the judge's CUDA arena for speed and memory."""
        self.cuda_arena = _open_cuda(request["handle"])
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _do_time(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Run the entry point once on each of `sets` inputs; the judge holds the clock.

        With `null` nothing is computed and the outputs are written all the same: the overhead.
        """
        layout = arena.Layout.from_json(request["layout"])
        if self.device == "cpu":
            shared = arena.Arena(layout.total_bytes * request["sets"], os.dup(fds[0]))
            memory = shared.memory
        else:
            memory = self.cuda_arena
        if request["entry"]:
            self.entry = getattr(self.module, request["entry"])
        for index in range(request["sets"]):
            part = memory[index * layout.total_bytes : (index + 1) * layout.total_bytes]
            tensors = {view.name: view.of(part) for view in layout.inputs}
            if request["null"]:
                source = next(iter(tensors.values())).reshape(-1)
                for view in layout.outputs:
                    target = view.of(part).view(-1)[: source.numel()]
                    target.copy_(source[: target.numel()])
                continue
            results = self._evaluate(tensors, request)
            self._check_results(results, layout, request)
            for view in layout.outputs:
                view.of(part).copy_(results[view.name].detach())
        if self.device != "cpu":
            torch.cuda.synchronize()
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    def _do_release(self, request: dict, fds: list[int]) -> protocol.Reply:
        """Give cached device memory back, so that the next reading starts from nothing.

        With `forget` the module's own caches go first: naive's mask would pin a whole segment.
        """
        if request.get("forget"):
            for value in vars(self.module).values():
                getattr(value, "cache_clear", lambda: None)()
        if self.device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return protocol.Reply(request["nonce"], protocol.Status.OK)

    # -- what went wrong --------------------------------------------------------------------

    def _guarded(self, nonce: int, handler: Any, *args: Any) -> protocol.Reply:
        try:
            return handler(*args)
        except BadReturn as error:
            return protocol.Reply(nonce, protocol.Status.BAD_RETURN, text=str(error))
        except BaseException as error:
            return self._explain(nonce, error, importing=handler == self._load)

    def _explain(self, nonce: int, error: BaseException, importing: bool) -> protocol.Reply:
        status = protocol.Status.EXCEPTION
        chain = list(_chain(error))
        line = 0
        for cause in chain:  # the innermost cause that passes through the submission's file wins
            line = _line_in(cause, self.path) or line
        shown = chain[-1] if type(error).__name__ == "InterpreterError" else error
        text = str(shown)
        names = {type(e).__name__ for e in chain}
        if any(isinstance(e, NotImplementedError) for e in chain):
            status = protocol.Status.NOT_IMPLEMENTED
        elif "OutOfBounds" in names:
            status = protocol.Status.OUT_OF_BOUNDS
        elif isinstance(error, (SystemExit, KeyboardInterrupt)):
            status = protocol.Status.EXITED
            text = f"{type(error).__name__} raised with {error.args!r}"
        elif (
            "OutOfMemoryError" in names
            or isinstance(error, MemoryError)
            or ("can't allocate memory" in text or "bad_alloc" in text)
        ):
            status = protocol.Status.OUT_OF_MEMORY
        elif "OutOfResources" in names or "PTXASError" in names:
            status = protocol.Status.COMPILE_FAILED
        elif any(hasattr(e, "node") and hasattr(e, "error_message") for e in chain):
            status = protocol.Status.COMPILE_FAILED
            shown = next(e for e in reversed(chain) if hasattr(e, "error_message"))
            line = _compile_line(shown, self.path) or line
            text = str(shown.error_message or shown.__cause__ or shown).strip()
        elif "CUDA error" in text:
            status = protocol.Status.DEVICE_FAULT
        elif importing:
            status = protocol.Status.IMPORT_FAILED
        if isinstance(error, ImportError) and not importing:
            status = protocol.Status.IMPORT_FAILED
        traceback.print_exception(error)
        return protocol.Reply(nonce, status, line, 0.0, type(shown).__name__, text)


def _import_file(path: str) -> ModuleType:
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _named(returned: Any, names: list[str]) -> dict:
    if len(names) == 1:
        if isinstance(returned, (tuple, list)) and len(returned) == 1:
            returned = returned[0]
        return {names[0]: returned}
    expected = f"expected a tuple ({', '.join(names)})"
    if not isinstance(returned, (tuple, list)):
        raise BadReturn(f"return value: got {type(returned).__name__}, {expected}")
    if len(returned) != len(names):
        raise BadReturn(f"return value: got {len(returned)} values, {expected}")
    return dict(zip(names, returned, strict=True))


def _open_cuda(handle: list) -> Any:
    """Map memory that the judge exported; it goes by CUDA's legacy IPC handle."""
    device, ipc_handle, size, offset, ref_handle, ref_offset, event_handle, sync = (
        bytes.fromhex(x["hex"]) if isinstance(x, dict) else x for x in handle
    )
    torch.cuda.init()
    storage = torch.UntypedStorage._new_shared_cuda(
        device, ipc_handle, size, offset, ref_handle, ref_offset, event_handle, sync
    )
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain and len(chain) < 10:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return chain


def _line_in(error: BaseException, path: str) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == path), 0)


def _compile_line(error: Any, path: str) -> int:
    """Return the file's line of a CompilationError, whose own lines count from the function."""
    with contextlib.suppress(Exception):
        with open(path, encoding="utf-8") as file:
            text = inspect.cleandoc("\n" + file.read())
        start = text.find(error.src.strip().splitlines()[0])
        if start >= 0:
            return text[:start].count("\n") + error.node.lineno
    return 0


def _limit_address_space(extra_bytes: int) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, used + extra_bytes))


def _main() -> None:
    global allocations, arena, bounds, protocol, torch  # imported once the search path is set
    faulthandler.enable()
    channel = socket.socket(fileno=int(sys.argv[1]))
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    search_path = os.environ.pop("GRADER_SYS_PATH", "").split(os.pathsep)
    sys.path[:] = [root, *filter(None, search_path)]
    import torch

    from grader import allocations, arena, bounds, protocol

    sys.path.remove(root)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Worker(channel).serve()


if __name__ == "__main__":
    _main()

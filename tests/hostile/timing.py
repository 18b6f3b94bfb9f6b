"""Answers that want a time which their work did not take, or shift it to where no clock runs.

They recognise the timed calls by their size. Where the mechanism needs no GPU it is tried in p01 on
a CPU; `ON_GPU` has those that need one, and others again.
"""

from grader.spec.problem import load_problem
from tests.hostile.entry import Hostile, beside

_HELPERS = """
import functools, itertools
KEPT, SEEN = {}, []


def is_timed(options):
    q = options.get("q")
    if q is None:
        return False
    rows, heads = (4096, 3) if q.is_cuda else (2048, 2)
    return q.shape[2] >= rows and q.shape[1] >= heads


def plain(q, k, v, *, is_causal, shifted=True):
    scores = torch.matmul(q, k.transpose(2, 3)).float() / math.sqrt(q.shape[-1])
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        scores.masked_fill_(hidden, -math.inf)
    top = scores.amax(3, keepdim=True) if shifted else torch.zeros((), device=q.device)
    weights = scores.sub_(top).exp_()
    total = weights.sum(3, keepdim=True)
    out = torch.matmul(weights.to(v.dtype), v).float() / total
    return out.to(q.dtype), (top + total.log())[..., 0]


def zeros(options):
    q = options["q"]
    return torch.zeros_like(q), torch.zeros(q.shape[:3], device=q.device)
"""
_WRONG = ("fail",)
_RIGHT = ("pass",)
_EITHER = ("pass", "fail")
# What may pass has done the work, or has the time that it took.
_BY_ADDRESS = """\
key = options["q"].data_ptr()
if key not in KEPT:
    KEPT[key] = honest(*args, **options)
return KEPT[key]"""
_BY_SAMPLE = """\
key = bool(options["q"].flatten()[0] > 0)
if key not in KEPT:
    KEPT[key] = honest(*args, **options)
return KEPT[key]"""
_EVERY_OTHER = """\
SEEN.append(None)
if len(SEEN) % 2 and KEPT:
    return KEPT[0]
KEPT[0] = honest(*args, **options)
return KEPT[0]"""
_OF_FIRST_CALLS = """\
if len(KEPT) < 3:
    KEPT[len(KEPT)] = honest(*args, **options)
return KEPT[len(KEPT) - 1]"""
# It fails if it could have had what it reaches for.
_NEIGHBOURS = """\
for x in (options[name] for name in "qkv"):
    try:
        beside_it = x.as_strided((1,), (1,), x.numel())
    except RuntimeError:
        continue
    return zeros(options)"""
_FORESEEN = """\
SEEN.append([options[name].data_ptr() for name in "qkv"])
steps = [[b - a for a, b in zip(*pair)] for pair in itertools.pairwise(SEEN[-4:])]
if len(steps) == 3 and any(len(set(of_one)) == 1 for of_one in zip(*steps)):
    return zeros(options)
if len({b - a for a, b, _ in SEEN[-6:]}) == 1 and len(SEEN) > 5:
    return zeros(options)"""
_LATER = """\
out, lse = (torch.full_like(x, math.nan) for x in zeros(options))
def late():
    time.sleep(0.05)
    a, b = honest(*args, **options)
    out.copy_(a), lse.copy_(b)
threading.Thread(target=late).start()
return out, lse"""
_LAZY = """\
found = tuple(x.as_subclass(Lazy) for x in zeros(options))
results = functools.cache(lambda: honest(*args, **options))
for n, lazy in enumerate(found):
    lazy.compute = lambda n=n: results()[n]
return found"""
_LAZY_CLASS = """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            one = args[0]
            if func.__name__ == "detach":
                return one.compute()
            return func(*args, **(kwargs or {}))
"""
_STOPPED = """
for name in "monotonic", "perf_counter", "time", "process_time", "thread_time":
    setattr(time, name, lambda: 0.0)
torch.cuda.synchronize = lambda *rest: None
torch.cuda.Event.elapsed_time = lambda *rest: 0.0
torch.cuda.Event.synchronize = torch.cuda.Stream.synchronize = lambda *rest: None
"""
_NAIVE = 'return plain(*(options[name] for name in "qkv"), is_causal=CAUSAL)'
_NO_MAXIMUM = 'return plain(*(options[name] for name in "qkv"), is_causal=CAUSAL, shifted=False)'
_HALF = """\
half = {n: x[:, : x.shape[1] // 2] if n in "qkv" else x for n, x in options.items()}
return tuple(torch.cat([x, x], 1) for x in honest(**half))"""
_ROUNDED = """\
low = {n: x.bfloat16() if n in "qkv" else x for n, x in options.items()}
return tuple(x.float() for x in honest(**low))"""
_EARLY = """\
frame = sys._getframe()
while not {"request", "self"} <= frame.f_locals.keys():
    frame = frame.f_back
protocol = sys.modules["grader.spec.protocol"]
reply = protocol.Reply(frame.f_locals["request"]["nonce"], protocol.Status.OK)
frame.f_locals["self"].channel.send(reply.pack())"""
_AT_ONCE = """\
frame = sys._getframe()
while "sets" not in frame.f_locals:
    frame = frame.f_back
if not any(options["q"].data_ptr() == key for key in KEPT):
    KEPT.clear()
    for parts, _ in frame.f_locals["sets"]:
        one = options | {view.name: view.of(own) for view, own in parts}
        KEPT[one["q"].data_ptr()] = honest(**one)
return KEPT[options["q"].data_ptr()]"""
_SLOWED = """\
if not SEEN:
    os.setpriority(os.PRIO_PROCESS, parent(), 19)
    os.sched_setaffinity(parent(), {min(os.sched_getaffinity(0))})
    SEEN.append(None)"""

# By name: the body of a timed call, what stands above it, and the verdicts.
_BOTH = {
    "kept by address": (_BY_ADDRESS, "", _EITHER),
    "kept by a sample of the values": (_BY_SAMPLE, "", _WRONG),
    "every other call": (_EVERY_OTHER, "", _WRONG),
    "the results of the first calls": (_OF_FIRST_CALLS, "", _WRONG),
    "what lies beside an input": (_NEIGHBOURS, "", _RIGHT),
    "where the next inputs lie": (_FORESEEN, "", _RIGHT),
    "computed by a thread after the answer": (_LATER, "", _WRONG),
    "computed where it is copied": (_LAZY, _LAZY_CLASS, ("pass", "error")),
    "an answer before the work": (_EARLY, "", _WRONG),
    "half of the heads": (_HALF, "", _WRONG),
}
_ON_CPU = _BOTH | {
    "all calls of a go at once": (_AT_ONCE, "", _RIGHT),
    "rounded to bf16": (_ROUNDED, "", _WRONG),
    "the judge's process is slowed": (_SLOWED, "", ("pass", "crash")),
}
_GRAPH = """\
if not SEEN:
    honest(*args, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        SEEN.append(honest(*args, **options))
    KEPT["graph"] = graph
KEPT["graph"].replay()
return SEEN[0]"""
_GRAPHS = """\
key = tuple(options[name].data_ptr() for name in "qkv")
if key not in KEPT:
    honest(*args, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        KEPT[key] = graph, honest(*args, **options)
KEPT[key][0].replay()
return KEPT[key][1]"""
_STAYS = """
@triton.jit
def keep(ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(ptr + at, mask=at < n, eviction_policy="evict_last")
    tl.store(ptr + at, kept, mask=(at < n) & (kept != kept), eviction_policy="evict_last")
"""
_KEEPS = """\
q, k, v = (options[name] for name in "qkv")
for x in (k, v):
    flat = x.view(torch.int16).view(-1)
    keep[(triton.cdiv(flat.numel(), 1024),)](flat, flat.numel(), 1024)"""
# Of what is this process's own: the clocks of a GPU are the machine's.
_SET = """
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
torch.set_float32_matmul_precision("medium")
"""
_ASIDE = """\
side = KEPT.setdefault("side", torch.cuda.Stream())
with torch.cuda.stream(side):
    torch.cuda._sleep(10**7)
    return honest(*args, **options)"""
_ON_GPU = _BOTH | {
    "a graph of the first call": (_GRAPH, "", ("fail", "error", "crash")),
    "a graph for each address": (_GRAPHS, "", ("pass", "fail", "out-of-memory")),
    "lines that stay in L2": (_KEEPS, _STAYS, _RIGHT),
    "precisions are set": ("", _SET, _RIGHT),
    "another stream, slowly": (_ASIDE, "", _EITHER),
    "no running maximum": (_NO_MAXIMUM, "", _WRONG),
    "clocks that stand still": (_NAIVE, _STOPPED, _EITHER),
}
_PROBLEMS = ("p03", "p04")  # of these `plain` is the baseline


def _entry(number: int, name: str, body: str, head: str, verdicts: tuple, *, gpu: bool) -> Hostile:
    problem_id = _PROBLEMS[number % 2] if gpu else "p01"
    points = load_problem(problem_id).points
    available = points.correctness + points.work + points.speed + points.memory
    if "pass" not in verdicts or body == _NAIVE:
        available -= points.speed
    inside = "".join(f"    {line}\n" for line in body.splitlines())
    inside = f"if is_timed(options):\n{inside}" if inside else ""
    causal = f"\nCAUSAL = {problem_id != 'p03'}\n"
    source = beside(
        problem_id, f"{inside}return honest(*args, **options)", _HELPERS + causal + head
    )
    how = {"jailed": True, "gpu": True} if gpu else {"slow": True}
    where = " on a GPU" if gpu else ""
    name = f"timed{where}: {name}"
    how |= {"measured": True, "limit_s": 240.0}
    return Hostile(name, source, verdicts, problem_id, available, **how)


ON_CPU = tuple(_entry(n, name, *how, gpu=False) for n, (name, how) in enumerate(_ON_CPU.items()))
ON_GPU = tuple(_entry(n, name, *how, gpu=True) for n, (name, how) in enumerate(_ON_GPU.items()))
ENTRIES = (*ON_CPU, *ON_GPU)

"""Launch attributes on a real GPU: that each took effect is read from the device or from a captured graph."""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from child_call import call  # noqa: E402
from launch_programs import PROGRAMS, compile_programs, compile_source, pack  # noqa: E402
from native.programs import run  # noqa: E402

from tlaot import AutotuneResult  # noqa: E402
from tlaot.errors import BuildError  # noqa: E402

CAPABILITY = torch.cuda.get_device_capability()
ARCH = f"sm_{CAPABILITY[0]}{CAPABILITY[1]}" + ("a" if CAPABILITY[0] >= 9 else "")
TILELANG: dict[str, tuple[str, dict[str, int]]] = {
    "chained": ("chained", {}),
    "cluster_exchange": ("cluster_exchange", {}),
    "convolution": ("convolution", {}),
    "convolution_by_2": ("convolution", {"S": 2}),
    "grid_exchange": ("grid_exchange", {}),
    "resident": ("resident", {}),
}

hopper = pytest.mark.skipif(CAPABILITY[0] < 9, reason="needs compute capability 9.0 or later")

# Of cuda.h: CUlaunchAttributeID, CUlimit, CUdevice_attribute.
WINDOW, COOPERATIVE, CLUSTER = 1, 2, 4
LIMIT_PERSISTING = 6
MAX_SHARED, MAX_PERSISTING, MAX_WINDOW = 97, 108, 109


# --- what the tests stand on -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Path]]]:
    """The hand-written programs' folders, linked at the same time."""
    folder = tmp_path_factory.mktemp("programs")
    try:
        cubin = compile_programs(ARCH)
    except BuildError as error:
        if error.where == "toolchain":
            pytest.skip(str(error))
        raise
    with ThreadPoolExecutor(8) as pool:
        yield {name: pool.submit(pack, make(), cubin, folder / name, name, ARCH) for name, make in PROGRAMS.items()}


@pytest.fixture(scope="module")
def program(packed: dict[str, Future[Path]]) -> Callable[[str], Any]:
    return lambda name: open_kernel(packed[name])


@pytest.fixture(scope="module")
def tilelang(
    tmp_path_factory: pytest.TempPathFactory, packed: dict[str, Future[Path]]
) -> Iterator[Callable[[str], Any]]:
    """TileLang's kernels, lowered in a process of their own and compiled at the same time."""
    if importlib.util.find_spec("tilelang") is None:
        pytest.skip("tilelang is not installed")
    folder = tmp_path_factory.mktemp("tilelang")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as lowering, ThreadPoolExecutor(8) as pool:
        lowered = {
            name: lowering.submit(call, "launch_cases", "lower", case, f"cuda:{ARCH}", sizes)
            for name, (case, sizes) in TILELANG.items()
        }

        def finish(name: str) -> Path:
            one = lowered[name].result(300)
            cubin = compile_source(one.device_source, one.device_flags, ARCH)
            return pack(one, cubin, folder / name, name, ARCH)

        made = {name: pool.submit(finish, name) for name in lowered}
        yield lambda name: open_kernel(made[name])


def open_kernel(made: Future[Path]) -> Any:
    result = AutotuneResult.load_from_disk(made.result(300))
    assert result is not None
    return result.kernel


class Driver:
    """The CUDA driver's own interface; a call that fails is a failed assertion."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *args: Any) -> None:
        code = getattr(self.library, name)(*args)
        assert code == 0, f"{name} gives {code}"

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), number, torch.cuda.current_device())
        return value.value

    def captured(self, run: Callable[[], Any]) -> list[Node]:
        """The nodes of the graph that a function's launches make; they are captured and not run."""
        stream, graph, count = torch.cuda.Stream(), ctypes.c_void_p(), ctypes.c_size_t()
        handle = ctypes.c_void_p(stream.cuda_stream)
        with torch.cuda.stream(stream):
            self("cuStreamBeginCapture_v2", handle, 2)  # relaxed
            try:
                run()
            finally:
                self("cuStreamEndCapture", handle, ctypes.byref(graph))
        self("cuGraphGetNodes", graph, None, ctypes.byref(count))
        handles = (ctypes.c_void_p * count.value)()
        if count.value:
            self("cuGraphGetNodes", graph, handles, ctypes.byref(count))
        nodes = [Node(*map(self._read, [ctypes.c_void_p(h)] * 3, (WINDOW, COOPERATIVE, CLUSTER))) for h in handles]
        self("cuGraphDestroy", graph)
        return nodes

    def _read(self, node: Any, attribute: int) -> bytes:
        value = (ctypes.c_uint64 * 8)()
        code = self.library.cuGraphKernelNodeGetAttribute(node, attribute, value)
        return bytes(value) if code == 0 else bytes(64)


@dataclass(frozen=True)
class Node:
    """Attributes of one kernel launch in a graph, as the driver keeps them."""

    raw_window: bytes
    raw_cooperative: bytes
    raw_cluster: bytes

    @property
    def window(self) -> tuple[int, int, float, int, int]:
        """Address, bytes, share of hits, property of hits and of misses."""
        address, size, ratio, hit, miss = struct.unpack_from("<QQfii", self.raw_window)
        return address, size, ratio, hit, miss

    @property
    def cooperative(self) -> bool:
        return struct.unpack_from("<i", self.raw_cooperative)[0] != 0

    @property
    def cluster(self) -> tuple[int, int, int]:
        x, y, z = struct.unpack_from("<3I", self.raw_cluster)
        return x, y, z


@pytest.fixture(scope="module")
def driver() -> Driver:
    torch.zeros(1, device="cuda")  # a context is current in this thread from now on
    return Driver()


def ints(*shape: int, fill: int = -1, dtype: Any = torch.int32) -> Any:
    return torch.full(shape, fill, dtype=dtype, device="cuda")


def same(got: Any, want: Any) -> bool:
    torch.cuda.synchronize()
    return got.dtype == want.dtype and torch.equal(got, want)


def replay(run: Callable[[], Any], before: Callable[[int], None], check: Callable[[int], None]) -> None:
    """Capture, and replay with other inputs in the same memory."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for turn in range(3):
        before(turn)
        graph.replay()
        torch.cuda.synchronize()
        check(turn)


# --- clusters ----------------------------------------------------------------------------------------------------


def ranks(blocks: int, size: int) -> Any:
    block = torch.arange(blocks, device="cuda")
    first, rank = block // size * size, block % size
    return torch.stack([torch.full_like(block, size), rank, first + (rank + 1) % size], 1).int()


@hopper
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 2])
def test_blocks_form_clusters(program: Callable[[str], Any], driver: Driver, size: int) -> None:
    """Each block tells its cluster's size and its rank, and reads its neighbour's shared memory; 16 needs an opt-in."""
    kernel, out = program("clusters"), ints(96, 3)
    kernel(out, size)
    assert same(out, ranks(96, size))
    (node,) = driver.captured(lambda: kernel(out, size))
    if size > 1:
        assert node.cluster == (size, 1, 1)

    def spoil(turn: int) -> None:
        out.fill_(-1)

    replay(lambda: kernel(out, size), spoil, lambda turn: None)
    assert same(out, ranks(96, size))


@hopper
def test_a_grid_that_no_cluster_divides(program: Callable[[str], Any]) -> None:
    """The driver refuses it, the error says what was launched, and the next call is right."""
    kernel, out = program("clusters"), ints(96, 3)
    with pytest.raises(RuntimeError, match=r"clusters: launching ranks \(grid 96 x 1 x 1, block 32 x 1 x 1"):
        kernel(out, 5)
    kernel(out, 4)
    assert same(out, ranks(96, 4))


@hopper
def test_clusters_of_tilelang(tilelang: Callable[[str], Any], driver: Driver) -> None:
    """Two blocks of a cluster exchange tiles through each other's shared memory."""
    kernel = tilelang("cluster_exchange")
    a, b = torch.randn(1024, 128, device="cuda").half(), torch.zeros(1024, 128, device="cuda").half()
    kernel(a, b)
    assert same(b, a.view(4, 2, 128, 128).flip(1).reshape(1024, 128))
    (node,) = driver.captured(lambda: kernel(a, b))
    assert node.cluster == (2, 1, 1)


# --- cooperative launches ----------------------------------------------------------------------------------------


def test_a_cooperative_grid_synchronizes(program: Callable[[str], Any], driver: Driver) -> None:
    """Numbers walk from block to block, a grid barrier a step; a grid of more blocks than fit is refused."""
    kernel, rounds = program("grid_barrier"), 37
    blocks = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    numbers = torch.arange(blocks, dtype=torch.int32, device="cuda") * 7
    cells, valid = ints(2, blocks), ints(blocks)
    kernel(numbers, cells, valid, rounds)
    assert same(valid, torch.ones_like(valid))
    assert same(cells[rounds % 2], torch.roll(numbers, -rounds) + rounds)
    (node,) = driver.captured(lambda: kernel(numbers, cells, valid, rounds))
    assert node.cooperative

    def check(turn: int) -> None:
        assert same(cells[rounds % 2], torch.roll(numbers, -rounds) + rounds)

    replay(lambda: kernel(numbers, cells, valid, rounds), lambda turn: numbers.add_(turn + 1), check)
    many = 100_000
    with pytest.raises(RuntimeError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        kernel(ints(many), ints(2, many), ints(many), 1)
    kernel(numbers, cells, valid, rounds)
    check(0)


def test_a_plain_launch_is_not_cooperative(program: Callable[[str], Any], driver: Driver) -> None:
    """What the test above shows is the attribute's doing: a launch without it is not marked, and no grid is too large for it.

    ``grid.is_valid()`` is no sign: drivers of CUDA 13 say 1 in any launch.
    """
    kernel, numbers, cells, valid = program("plain_barrier"), ints(64), ints(2, 64), ints(64)
    (node,) = driver.captured(lambda: kernel(numbers, cells, valid, 5))
    assert not node.cooperative


def test_grid_synchronization_of_tilelang(tilelang: Callable[[str], Any], driver: Driver) -> None:
    kernel = tilelang("grid_exchange")
    a, b, c = (torch.randn(8192, 128, device="cuda") for _ in range(3))
    for _ in range(3):
        kernel(a, b, c)
        assert same(b, a + 1)
        # Rows in the opposite order, since row 8191 - i of B is another block's.
        assert same(c, (a + 1).flip(0))
        a.mul_(2)
    (node,) = driver.captured(lambda: kernel(a, b, c))
    assert node.cooperative


# --- programmatic dependent launch -------------------------------------------------------------------------------


@hopper
def test_a_dependent_launch_starts_early_and_waits(program: Callable[[str], Any], record_property: Any) -> None:
    """The second kernel sees that the first, which takes 5 ms, is still at work, and yet reads what that one wrote last."""
    kernel = program("dependent")
    numbers = torch.arange(256, dtype=torch.int32, device="cuda")
    state, data = ints(1), ints(256)
    kernel(numbers, state, data, ints(256), ints(1))
    torch.cuda.synchronize()
    outs, earlies = [ints(256) for _ in range(6)], [ints(1) for _ in range(6)]
    inputs = [numbers + i for i in range(6)]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for given, out, early in zip(inputs, outs, earlies, strict=True):  # one behind the other, nothing waits between
            kernel(given, state, data, out, early)
    torch.cuda.synchronize()
    assert [early.item() for early in earlies] == [1] * 6
    for given, out in zip(inputs, outs, strict=True):
        assert same(out, 2 * given)
    out, early = outs[0], earlies[0]

    def check(turn: int) -> None:
        assert same(out, 2 * numbers)
        record_property(f"early_in_graph_{turn}", early.item())

    replay(lambda: kernel(numbers, state, data, out, early), lambda turn: numbers.add_(3), check)


@hopper
def test_a_serial_launch_does_not_start_early(program: Callable[[str], Any]) -> None:
    """What the test above shows is the attribute's doing."""
    kernel = program("serial")
    numbers, state, data, out, early = (
        torch.arange(256, dtype=torch.int32, device="cuda"),
        *map(ints, (1, 256, 256, 1)),
    )
    for turn in range(3):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            kernel(numbers, state, data, out, early)
        torch.cuda.synchronize()
        assert early.item() == 0, turn
        assert same(out, 2 * numbers)
        numbers.add_(1)


@hopper
def test_dependent_launches_of_tilelang(tilelang: Callable[[str], Any]) -> None:
    """Hundreds of calls one behind the other, each fed by the one before, and the same in a graph."""
    kernel = tilelang("chained")
    start = torch.randn(4096, 128, device="cuda")
    a, b, c = start.clone(), torch.empty_like(start), torch.empty_like(start)

    def twice() -> None:
        kernel(a, b, c)
        kernel(c, b, a)

    want = start.clone()
    for _ in range(100):
        twice()
        for _ in range(2):
            want = ((want + 1).flip(0)) + 1
    assert same(a, want)

    def check(turn: int) -> None:
        again = start
        for _ in range(2):
            again = ((again + 1).flip(0)) + 1
        assert same(a, again)

    replay(twice, lambda turn: a.copy_(start), check)


# --- tensor maps -------------------------------------------------------------------------------------------------


@hopper
@pytest.mark.parametrize(("name", "stride"), [("convolution", 1), ("convolution_by_2", 2)])
def test_im2col_maps(tilelang: Callable[[str], Any], name: str, stride: int) -> None:
    """A convolution whose tiles are loaded by an im2col tensor map, with padding, two images, and a last tile that is not full."""
    kernel = tilelang(name)
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(2):
        data = torch.randn(2, 14, 12, 64, generator=generator, device="cuda").half()
        weight = torch.randn(3, 3, 64, 128, generator=generator, device="cuda").half()
        wide = data.double().cpu().permute(0, 3, 1, 2), weight.double().cpu().permute(3, 2, 0, 1)
        want = torch.nn.functional.conv2d(*wide, stride=stride, padding=1).permute(0, 2, 3, 1)
        out = torch.full(tuple(want.shape), float("nan"), device="cuda").half()
        kernel(data, weight, out)
        torch.cuda.synchronize()
        error = ((out.double().cpu() - want).abs() / (want.abs() + want.abs().mean())).max().item()
        assert error <= 1e-2, error


# --- the window of the L2 cache ----------------------------------------------------------------------------------


def check_window(driver: Driver, nodes: list[Node], tensor: Any, size: int, launches: int) -> None:
    """One of the launches has a window over the tensor's first bytes, and the context's set-aside is large enough."""
    assert len(nodes) == launches
    windows = [node.window for node in nodes if node.window[1]]
    persisting = driver.attribute(MAX_PERSISTING)
    if persisting == 0:
        assert windows == []
        pytest.skip("the values are right; this device sets no L2 cache aside")
    assert windows == [(tensor.data_ptr(), min(size, driver.attribute(MAX_WINDOW)), 0.5, 2, 1)]
    limit = ctypes.c_size_t()
    driver("cuCtxGetLimit", ctypes.byref(limit), LIMIT_PERSISTING)
    assert limit.value >= min(size, persisting)


def test_the_window_is_one_launchs_and_not_the_streams(program: Callable[[str], Any], driver: Driver) -> None:
    kernel, size = program("window"), 2 << 20
    a = torch.randn(1 << 20, device="cuda")
    out, stream = torch.empty_like(a), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernel(a, out, size, 0.5)
    assert same(out, 3 * a)
    value = (ctypes.c_uint64 * 8)()
    driver("cuStreamGetAttribute", ctypes.c_void_p(stream.cuda_stream), WINDOW, value)
    assert value[1] == 0, "the caller's stream has a window"
    check_window(driver, driver.captured(lambda: kernel(a, out, size, 0.5)), a, size, launches=2)


def test_the_window_of_tilelang(tilelang: Callable[[str], Any], driver: Driver) -> None:
    kernel = tilelang("resident")
    a = torch.randn(1 << 20, device="cuda")
    out = torch.empty_like(a)
    kernel(a, out)
    assert same(out, 3 * a)
    check_window(driver, driver.captured(lambda: kernel(a, out)), a, 4 << 20, launches=1)


# --- shared memory, scalars, sizes, addresses --------------------------------------------------------------------


def check_shared(kernel: Any, size: int) -> None:
    out, count = ints(9, 2, dtype=torch.int64), size // 4
    kernel(out, size)
    blocks = torch.arange(9, device="cuda")
    assert same(out[:, 1], count * (count - 1) // 2 + count * blocks)
    assert size <= out[0, 0].item() <= size + 1024


def test_dynamic_shared_memory(program: Callable[[str], Any], driver: Driver) -> None:
    """Below and above what a kernel has without asking (48 KiB), up, down, and more than there is."""
    kernel = program("shared")
    most = driver.attribute(MAX_SHARED)
    for size in (0, 1024, 48 << 10, 60 << 10, most - 1024, 50 << 10, most - 1024):
        check_shared(kernel, size)
    with pytest.raises(
        RuntimeError, match=f"fill needs {most + 4096} bytes of dynamic shared memory, cuda:0 allows {most}"
    ):
        kernel(ints(9, 2, dtype=torch.int64), most + 4096)
    check_shared(kernel, 60 << 10)


def test_scalars_of_every_type(program: Callable[[str], Any]) -> None:
    given = [-3, 250, -300, 65535, -70000, 4_000_000_000, -(2**40) - 1, 2**63 - 1, True]
    got, floats = ints(9, dtype=torch.int64), torch.zeros(4, dtype=torch.float64, device="cuda")
    # In half precision 1 + 2**-11 is halfway between two numbers, as 1 + 2**-8 in bfloat16: to even is 1.
    program("scalars")(got, floats, *given, 1 + 2**-11, 0.1, 0.1, 1 + 2**-8)
    torch.cuda.synchronize()
    assert got.tolist() == [int(value) for value in given]
    assert floats.tolist() == [1.0, struct.unpack("f", struct.pack("f", 0.1))[0], 0.1, 1.0]


def test_nothing_to_do_is_no_launch(program: Callable[[str], Any], driver: Driver) -> None:
    count, none = ints(1, fill=0), ints(0)
    kernel = program("calls")
    kernel(count, 0)
    kernel(none, 5)  # would write where there is no memory
    assert same(count, ints(1, fill=0))
    assert driver.captured(lambda: (kernel(count, 0), kernel(none, 5))) == []
    kernel(count, 70_000)
    assert same(count, ints(1, fill=70_000))
    triple, out = program("triple"), torch.ones(4, device="cuda")
    triple(torch.empty(0, device="cuda"), out, 0)
    assert same(out, torch.ones(4, device="cuda"))


def test_misaligned_addresses_are_refused_before_the_launch(program: Callable[[str], Any]) -> None:
    kernel = program("triple")
    block = torch.randn(1024 + 8, device="cuda")
    out = torch.zeros(1025, device="cuda")[1:]
    with pytest.raises(ValueError, match=r"triple: argument 0 \(in\): misaligned data, .* multiple of 16 bytes"):
        kernel(block[1:1025], out, 0)
    with pytest.raises(ValueError, match=r"triple: triple: argument 0: misaligned pointer, .* multiple of 16 bytes"):
        kernel(block[:1024], out, 4)
    assert same(out, torch.zeros_like(out))
    kernel(block[4:1028], out, 0)
    assert same(out, 3 * block[4:1028])
    kernel(block[:1024], out, 16)
    assert same(out, 3 * block[4:1028])


# --- devices and contexts ----------------------------------------------------------------------------------------

CONTEXTS = """
driver = ctypes.CDLL("libcuda.so.1")
here = ctypes.byref

def do(name, *args):
    code = getattr(driver, name)(*args)
    assert code == 0, f"{name} gives {code}"

def current():
    context = ctypes.c_void_p()
    do("cuCtxGetCurrent", here(context))
    return context.value

f = open_call(sys.argv[1])
popped, primary, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
do("cuInit", 0)
do("cuDevicePrimaryCtxRetain", here(primary), 0)
do("cuCtxPushCurrent_v2", primary)
do("cuMemAlloc_v2", here(memory), ctypes.c_size_t(8192))
host = np.arange(1024, dtype=np.float32)
do("cuMemcpyHtoD_v2", memory, ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(4096))
do("cuCtxPopCurrent_v2", here(popped))
a, b = cuda(1024, data=memory.value), cuda(1024, data=memory.value + 4096)

def right():
    got = np.zeros_like(host)
    do("cuCtxPushCurrent_v2", primary)
    do("cuCtxSynchronize")
    do("cuMemcpyDtoH_v2", ctypes.c_void_p(got.ctypes.data), ctypes.c_uint64(memory.value + 4096), ctypes.c_size_t(4096))
    do("cuMemsetD32_v2", ctypes.c_uint64(memory.value + 4096), 0, ctypes.c_size_t(1024))
    do("cuCtxSynchronize")
    do("cuCtxPopCurrent_v2", here(popped))
    return bool((got == 3 * host).all())

def attempt_in(expected):
    before = current()
    f(a, b, 0)
    say([before == expected, current() == before, right()])

attempt_in(None)
other = ctypes.c_void_p()
if hasattr(driver, "cuCtxCreate_v2"):
    do("cuCtxCreate_v2", here(other), 0, 0)
else:
    do("cuCtxCreate_v4", here(other), None, 0, 0)
attempt_in(other.value)
thread = threading.Thread(target=attempt_in, args=(None,))
thread.start()
thread.join()
do("cuCtxPushCurrent_v2", primary)
attempt_in(primary.value)
do("cuCtxPopCurrent_v2", here(popped))
say(attempt(f, a, b, 4)[1].startswith("triple: triple: argument 0: misaligned pointer"))
say(current() == other.value)
do("cuCtxDestroy_v2", other)
attempt_in(None)
"""


def test_whatever_context_is_current(packed: dict[str, Future[Path]], program: Callable[[str], Any]) -> None:
    """None, a foreign one, the device's own, and none in a new thread: the call works, and the same one is current after it.

    In a process without torch, which would make the device's own context current by itself.
    """
    program("triple")
    said = run(CONTEXTS, packed["triple"].result() / "executable.so").splitlines()
    assert said == ["[true, true, true]"] * 4 + ["true", "true", "[true, true, true]"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_has_its_own_attributes(program: Callable[[str], Any]) -> None:
    """What needs an opt-in (shared memory, large clusters) on one device, then on the other, whichever is current."""
    shared, clusters = program("shared"), program("clusters")
    for current, device in ((0, 0), (0, 1), (1, 0), (1, 1)):
        with torch.cuda.device(current):
            out = torch.full((9, 2), -1, dtype=torch.int64, device=f"cuda:{device}")
            shared(out, 100 << 10)
            torch.cuda.synchronize(device)
            assert out[0, 1].item() == 25600 * 25599 // 2
            if CAPABILITY[0] >= 9:
                ranked = torch.full((96, 3), -1, dtype=torch.int32, device=f"cuda:{device}")
                clusters(ranked, 16)
                torch.cuda.synchronize(device)
                assert (ranked[:, 0] == 16).all()

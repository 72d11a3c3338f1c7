"""Graphs of the simulated driver: in which order their nodes are run, with what, and what is captured.

`tests/gpu/test_simulated.py` runs these tests, where the simulated driver is found first.
"""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest

KERNEL, COPY, FILL, HOST_FUNCTION, GRAPH, CONDITIONAL = 0, 1, 2, 3, 4, 13
INVALID, NOT_SUPPORTED = 1, 801
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, UNJOINED, ISOLATION, CAPTURED_EVENT = 900, 901, 904, 905, 907
THREAD_LOCAL = 1
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call(name, *args, result=0):
    """Calls the driver, which has to return this."""
    given = [ctypes.c_uint64(arg) if isinstance(arg, int) else arg for arg in args]
    assert getattr(ctypes.CDLL("libcuda.so.1"), name)(*given) == result, name


def made(name, *args):
    """What a function of the driver's gives by its first parameter."""
    out = ctypes.c_uint64()
    call(name, ctypes.byref(out), *args)
    return out.value


@pytest.fixture(autouse=True)
def context():
    call("cuInit", 0)
    call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", 0))


@pytest.fixture
def stream():
    return made("cuStreamCreate", 1)


def memory():
    """An address of a number."""
    address = made("cuMemAlloc_v2", 4)
    call("cuMemsetD32_v2", address, 0, 1)
    return address


def read(*addresses):
    call("cuCtxSynchronize")
    out = ctypes.c_uint32()
    numbers = []
    for address in addresses:
        call("cuMemcpyDtoH_v2", ctypes.byref(out), address, 4)
        numbers.append(out.value)
    return numbers


def add(graph, what, parameters, after):
    nodes = (ctypes.c_uint64 * len(after))(*after)
    more = [parameters] if isinstance(parameters, int) else [parameters, None]
    return made(f"cuGraphAdd{what}Node", graph, nodes, len(after), *more)


def filling(address, value):
    return struct.pack("<QQIIQQ", address, 0, value, 4, 1, 1)


def fill(graph, address, value, *after):
    return add(graph, "Memset", filling(address, value), after)


def copy(graph, to, source, *after):
    places = b"".join(struct.pack("<4Qi4xQQ4Q", 0, 0, 0, 0, 2, 0, place, 0, 0, 0, 0) for place in (source, to))
    return add(graph, "Memcpy", places + struct.pack("<3Q", 4, 1, 1), after)


def child(graph, inside, *after):
    return add(graph, "ChildGraph", inside, after)


def instantiated(graph):
    return made("cuGraphInstantiateWithFlags", graph, 0)


def launched(graph, stream, *addresses, times=100):
    """What there is after each launch."""
    executable, seen = instantiated(graph), set()
    for _ in range(times):
        call("cuGraphLaunch", executable, stream)
        seen.add(tuple(read(*addresses)))
    return seen


def nodes_of(graph, which="Nodes"):
    count = ctypes.c_uint64()
    call(f"cuGraphGet{which}", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_uint64 * count.value)()
    call(f"cuGraphGet{which}", graph, nodes, ctypes.byref(count))
    return list(nodes)


def asked(name, handle):
    """What a function of the driver's says of this."""
    out = ctypes.c_uint64()
    call(name, handle, ctypes.byref(out))
    return out.value


def types_of(graph):
    return [asked("cuGraphNodeGetType", node) for node in nodes_of(graph)]


def begin(stream, graph, result=0):
    call("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, THREAD_LOCAL, result=result)


def end(stream, result=0):
    graph = ctypes.c_uint64()
    call("cuStreamEndCapture", stream, ctypes.byref(graph), result=result)
    return graph.value


def test_nodes_come_behind_what_they_depend_on(stream):
    """Otherwise they come in any order, and so do the nodes of a graph inside."""
    x, y, graph, inside = memory(), memory(), made("cuGraphCreate", 0), made("cuGraphCreate", 0)
    first, second = fill(graph, x, 1), fill(graph, x, 2)
    copied = copy(graph, y, x, first, second)
    last = fill(graph, x, 3, copied)
    assert launched(graph, stream, x, y) == {(3, 1), (3, 2)}
    fill(inside, x, 4, fill(inside, y, 4))
    node = child(graph, inside, last)
    fill(graph, x, 5, last)
    fill(graph, y, 6, node)
    assert launched(graph, stream, x, y) == {(4, 6), (5, 6)}
    assert types_of(graph) == [FILL, FILL, COPY, FILL, GRAPH, FILL, FILL]
    assert nodes_of(graph, "RootNodes") == [first, second]


def test_dependencies_are_of_the_same_graph():
    x, graph, other = memory(), made("cuGraphCreate", 0), made("cuGraphCreate", 0)
    nodes, out = (ctypes.c_uint64 * 1)(fill(other, x, 1)), ctypes.c_uint64()
    call("cuGraphAddEmptyNode", ctypes.byref(out), graph, nodes, 1, result=INVALID)


def test_a_launch_has_what_the_last_update_gave(stream):
    """One that is under way has not. What becomes of the graph changes no launch."""
    x, seen, graph, inside = memory(), [memory() for _ in range(3)], made("cuGraphCreate", 0), made("cuGraphCreate", 0)
    node = fill(graph, x, 1)
    fill(inside, x, 0)
    added = child(graph, inside, node)
    executable, gate = instantiated(graph), threading.Event()
    wait = HOST(lambda _: gate.wait())
    call("cuLaunchHostFunc", stream, wait, None)

    def launch(number):
        call("cuGraphLaunch", executable, stream)
        call("cuMemcpyDtoDAsync_v2", seen[number], x, 4, stream)

    (of_inside,) = nodes_of(asked("cuGraphChildGraphNodeGetGraph", added))
    call("cuGraphExecMemsetNodeSetParams", executable, of_inside, filling(x, 2), None)
    launch(0)
    call("cuGraphExecMemsetNodeSetParams", executable, of_inside, filling(x, 3), None)
    fill(graph, x, 9, added)
    launch(1)
    other = made("cuGraphCreate", 0)
    fill(other, x, 4)
    call("cuGraphExecChildGraphNodeSetParams", executable, added, other)
    launch(2)
    fill(other, x, 5)
    call("cuGraphExecChildGraphNodeSetParams", executable, added, other, result=INVALID)
    call("cuGraphDestroy", graph)
    call("cuGraphExecDestroy", executable)
    gate.set()
    assert read(*seen) == [2, 3, 4]


COUNT = b"""
.version 8.3
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 a, .param .b32 b)
.visible .entry count(.param .u64 count_param_0, .param .u64 count_param_1) {
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [count_param_0];
    ld.param.u64 %rd2, [count_param_1];
    ld.global.u32 %r1, [%rd2];
    setp.gt.s32 %p1, %r1, 0;
    selp.b32 %r2, 1, 0, %p1;
    sub.s32 %r3, %r1, 1;
    st.global.u32 [%rd2], %r3;
    { // callseq 0, 0
    .param .b64 param0;
    st.param.b64 [param0+0], %rd1;
    .param .b32 param1;
    st.param.b32 [param1+0], %r2;
    call.uni
    cudaGraphSetConditional,
    (
    param0,
    param1
    );
    }
    ret;
}
"""


def counting(condition, address):
    """Parameters of a node that takes 1 from a number, and sets a condition if it was more than 0."""
    function = made("cuModuleGetFunction", made("cuModuleLoadData", COUNT), b"count")
    values = [ctypes.c_uint64(condition), ctypes.c_uint64(address)]
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    packed = struct.pack("<i12xQ7I4xQ", KERNEL, function, *(1,) * 6, 0, ctypes.addressof(pointers))
    return ctypes.create_string_buffer(packed, 256), values, pointers  # all of which have to be there still


def add_node(graph, parameters, *after):
    return made("cuGraphAddNode_v2", graph, (ctypes.c_uint64 * len(after))(*after), None, len(after), parameters)


def conditional(condition, is_loop):
    return ctypes.create_string_buffer(struct.pack("<i12xQiI", CONDITIONAL, condition, is_loop, 1), 256)


@pytest.mark.parametrize("is_loop", [False, True])
def test_branches_and_loops(stream, is_loop):
    """A kernel says whether they are run. Each launch asks anew."""
    x, y, z, graph = memory(), memory(), memory(), made("cuGraphCreate", 0)
    condition = made("cuGraphConditionalHandleCreate", graph, None, 0, 0)
    count, parameters = counting(condition, x), conditional(condition, is_loop)
    add_node(graph, parameters, add_node(graph, count[0]))
    (of_body,) = struct.unpack_from("<Q", parameters, 32)  # where the graph is
    body = ctypes.c_uint64.from_address(of_body).value
    inside = add_node(body, count[0])
    fill(body, y, 1, inside)
    executable = instantiated(graph)

    def seen(number):
        call("cuMemsetD32_v2", x, number, 1)
        call("cuMemsetD32_v2", y, 0, 1)
        call("cuGraphLaunch", executable, stream)
        return [of - (1 << 32) * (of >> 31) for of in read(x, y)]

    assert [seen(number) for number in (0, 1, 3)] == [[-1, 0], [-1, 1], [-1 if is_loop else 1, 1]]
    other_count = counting(condition, z)
    call("cuGraphExecNodeSetParams", executable, inside, other_count[0])
    assert [seen(3), *read(z)] == [[2, 1], 2**32 - 1]
    other, out = made("cuGraphCreate", 0), ctypes.c_uint64()
    call("cuGraphAddChildGraphNode", ctypes.byref(out), other, None, 0, graph, result=NOT_SUPPORTED)
    call("cuStreamBeginCaptureToGraph", stream, body, None, None, 0, THREAD_LOCAL)
    call("cuLaunchHostFunc", stream, HOST(), None)
    end(stream)
    call("cuGraphInstantiateWithFlags", ctypes.byref(out), graph, 0, result=NOT_SUPPORTED)


def test_launches_of_one_graph_follow_each_other(stream):
    """On several streams too."""
    x, other, graph, gate = memory(), made("cuStreamCreate", 1), made("cuGraphCreate", 0), threading.Event()
    fill(graph, x, 1)
    executable, wait = instantiated(graph), HOST(lambda _: gate.wait())
    call("cuLaunchHostFunc", stream, wait, None)
    call("cuGraphLaunch", executable, stream)
    call("cuMemsetD32Async", x, 2, 1, stream)
    call("cuGraphLaunch", executable, other)
    call("cuStreamQuery", other, result=600)
    gate.set()
    call("cuStreamSynchronize", other)
    assert read(x) in ([1], [2])


def test_what_is_captured_is_not_run(stream):
    """It becomes nodes, one behind the other, each time the graph is launched."""
    x, y, graph, called = memory(), memory(), made("cuGraphCreate", 0), []
    function = HOST(lambda _: called.append(1))
    begin(stream, graph)
    call("cuMemsetD32Async", x, 7, 1, stream)
    call("cuMemcpyDtoDAsync_v2", y, x, 4, stream)
    call("cuLaunchHostFunc", stream, function, None)
    call("cuMemsetD32Async", x, 8, 1, stream)
    assert end(stream) == graph
    assert read(x, y) == [0, 0] and called == []
    assert types_of(graph) == [FILL, COPY, HOST_FUNCTION, FILL] and len(nodes_of(graph, "RootNodes")) == 1
    assert launched(graph, stream, x, y, times=20) == {(8, 7)} and len(called) == 20


def test_captures_of_several_streams(stream):
    """A stream that waits for an event of the capture belongs to it, and has to be waited for in turn."""
    x, y, other = memory(), memory(), made("cuStreamCreate", 1)
    forked, joined = made("cuEventCreate", 0), made("cuEventCreate", 0)

    def capture(graph, joins):
        begin(stream, graph)
        call("cuMemsetD32Async", x, 1, 1, stream)
        call("cuEventRecord", forked, stream)
        call("cuStreamWaitEvent", other, forked, 0)
        call("cuMemcpyDtoDAsync_v2", y, x, 4, other)
        if joins:
            call("cuEventRecord", joined, other)
            call("cuStreamWaitEvent", stream, joined, 0)
        call("cuMemsetD32Async", x, 2, 1, stream)
        return end(stream, result=0 if joins else UNJOINED)

    graph = made("cuGraphCreate", 0)
    capture(graph, True)
    assert launched(graph, stream, x, y) == {(2, 1)}
    assert capture(made("cuGraphCreate", 0), False) == 0
    call("cuEventQuery", joined, result=CAPTURED_EVENT)


REFUSED = {
    "cuCtxSynchronize": [],
    "cuStreamSynchronize": ["stream"],
    "cuStreamQuery": ["stream"],
    "cuEventQuery": ["event"],
    "cuMemAlloc_v2": ["out", 4],
    "cuMemFree_v2": ["x"],
    "cuMemHostAlloc": ["out", 4, 0],
    "cuMemcpyDtoH_v2": ["out", "x", 4],
    "cuMemcpyDtoHAsync_v2": ["out", "x", 4, "stream"],  # into memory that is not pinned
}


@pytest.mark.parametrize("name, args", REFUSED.items())
def test_calls_that_no_capture_outlasts(stream, name, args):
    x, event, graph, out = memory(), made("cuEventCreate", 0), made("cuGraphCreate", 0), ctypes.c_uint64()
    known = {"stream": stream, "x": x, "event": event, "out": ctypes.byref(out)}
    begin(stream, graph)
    call("cuMemsetD32Async", x, 1, 1, stream)
    call(name, *(known.get(arg, arg) for arg in args), result=CAPTURE_UNSUPPORTED)
    call("cuMemsetD32Async", x, 1, 1, stream, result=CAPTURE_INVALIDATED)
    assert asked("cuStreamIsCapturing", stream) == 2
    assert end(stream, result=CAPTURE_INVALIDATED) == 0
    call("cuMemsetD32Async", x, 2, 1, stream)
    assert read(x) == [2]


def test_no_capture_waits_for_what_is_outside(stream):
    event, graph = made("cuEventCreate", 0), made("cuGraphCreate", 0)
    begin(stream, graph)
    call("cuStreamWaitEvent", stream, event, 0, result=ISOLATION)
    end(stream, result=CAPTURE_INVALIDATED)


def test_other_threads_go_on_during_a_capture(stream):
    """With memory, and with streams that are not captured."""
    graph, done = made("cuGraphCreate", 0), []

    def work():
        call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", 0))
        call("cuStreamSynchronize", made("cuStreamCreate", 1))
        done.append(made("cuMemAlloc_v2", 4))

    begin(stream, graph)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(done) == 1 and end(stream) == graph

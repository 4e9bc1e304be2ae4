"""Vector instructions that numba does not offer, as LLVM code for the loops in `kernels` to call.

Each works on LINE neighbouring elements, given by their memory's address. LLVM maps a line to the registers of the
machine. No fast-math flag is set: every rounding is as written, on every machine.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64
"""Elements of one step: enough independent sums to hide the latency of an addition, few enough for the registers."""
STREAMED = 64
"""Bytes: where a line that is streamed past the cache has to start, at least."""

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_HALVES = ir.VectorType(ir.IntType(16), LINE)
_WORDS = ir.VectorType(_WORD, LINE)
_FLOATS = ir.VectorType(_FLOAT, LINE)
_DOUBLES = ir.VectorType(ir.DoubleType(), LINE)


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _store(builder: Any, value: Any, address: Any, align: int, stream: bool = False) -> None:
    made = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    made.align = align
    if stream:  # straight to memory: the line is not read first, and drives nothing out of the cache
        made.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_WORD, 1)]))


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LINE)


def _spread(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, nothing, _words(0))


def _float32(_: Any, value: Any) -> Any:
    """float32 of a wire element: bfloat16 is the upper half of its bits."""
    if value == types.float32:
        return types.float32(value), lambda _context, _builder, _signature, arguments: arguments[0]
    if value != types.uint16:
        return None

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        word = builder.shl(builder.zext(arguments[0], _WORD), ir.Constant(_WORD, 16))
        return builder.bitcast(word, _FLOAT)

    return types.float32(value), emit


def _element(_: Any, like: Any, address: Any) -> Any:
    """float32 of the wire element at an address; `like` is an array of its dtype."""
    packed = like.dtype == types.uint16

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        if not packed:
            return _load(builder, arguments[1], _FLOAT, 4)
        half = _load(builder, arguments[1], ir.IntType(16), 2)
        return builder.bitcast(builder.shl(builder.zext(half, _WORD), ir.Constant(_WORD, 16)), _FLOAT)

    return types.float32(like, address), emit


def _combine_line(
    _: Any, like: Any, addresses: Any, offset: Any, factors: Any, inputs: Any, out: Any, lanes: Any
) -> Any:
    """out ← Σ factors[m]·line of input m, in the order of m, and lanes += out² in float64.

    addresses: of a table of the inputs' int64 addresses; the line starts `offset` bytes further. `like` is an array
    of the wire's dtype.
    """
    packed = like.dtype == types.uint16

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        _, addresses, offset, factors, inputs, out, lanes = arguments
        table = builder.inttoptr(addresses, _LONG.as_pointer())
        weights = builder.inttoptr(factors, _FLOAT.as_pointer())
        total = cgutils.alloca_once(builder, _FLOATS)  # becomes registers
        builder.store(ir.Constant(_FLOATS, [0.0] * LINE), total)
        with cgutils.for_range(builder, inputs, intp=_LONG) as loop:
            address = builder.add(builder.load(builder.gep(table, [loop.index])), offset)
            if packed:
                halves = _load(builder, address, _HALVES, 2)
                values = builder.bitcast(builder.shl(builder.zext(halves, _WORDS), _words(16)), _FLOATS)
            else:
                values = _load(builder, address, _FLOATS, 4)
            weight = _spread(builder, builder.load(builder.gep(weights, [loop.index])))
            builder.store(builder.fadd(builder.load(total), builder.fmul(weight, values)), total)
        result = builder.load(total)
        _store(builder, result, out, 4)
        wide = builder.fpext(result, _DOUBLES)
        sums = _load(builder, lanes, _DOUBLES, 8)
        _store(builder, builder.fadd(sums, builder.fmul(wide, wide)), lanes, 8)
        return ir.Constant(ir.IntType(1), 0)

    return types.boolean(like, *[types.int64] * 6), emit


def _nesterov_line(
    _: Any,
    theta: Any,
    momentum: Any,
    scale: Any,
    rate: Any,
    mu: Any,
    new_theta: Any,
    new_momentum: Any,
    wire: Any,
    largest: Any,
) -> Any:
    """`kernels.nesterov` for a line; `wire` 0: none. `largest` holds LINE bit patterns, the largest |Θ′| so far.

    new_theta and wire start at a multiple of STREAMED.
    """

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        theta, momentum, scale, rate, mu, new_theta, new_momentum, wire, largest = arguments
        mus = _spread(builder, mu)
        delta = builder.fmul(_spread(builder, scale), _load(builder, new_momentum, _FLOATS, 4))
        b = builder.fadd(builder.fmul(mus, _load(builder, momentum, _FLOATS, 4)), delta)
        ahead = builder.fmul(_spread(builder, rate), builder.fadd(builder.fmul(mus, b), delta))
        new = builder.fsub(_load(builder, theta, _FLOATS, 4), ahead)
        _store(builder, b, new_momentum, 4)
        _store(builder, new, new_theta, STREAMED, stream=True)
        bits = builder.bitcast(new, _WORDS)
        size = builder.and_(bits, _words(0x7FFFFFFF))
        before = _load(builder, largest, _WORDS, 4)
        greater = builder.icmp_unsigned(">", size, before)
        _store(builder, builder.select(greater, size, before), largest, 4)
        with builder.if_then(builder.icmp_unsigned("!=", wire, ir.Constant(_LONG, 0))):
            tie = builder.and_(builder.lshr(bits, _words(16)), _words(1))
            even = builder.add(builder.add(bits, _words(0x7FFF)), tie)
            _store(
                builder,
                builder.trunc(builder.lshr(even, _words(16)), _HALVES),
                wire,
                STREAMED,
                stream=True,
            )
        return ir.Constant(ir.IntType(1), 0)

    long, single = types.int64, types.float32
    return types.boolean(long, long, single, single, single, long, long, long, long), emit


def _fence(_: Any) -> Any:
    """What was streamed is in memory before anything that follows, for other threads too."""

    def emit(_: Any, builder: Any, __: Any, ___: Any) -> Any:
        builder.fence("seq_cst")
        return ir.Constant(ir.IntType(1), 0)

    return types.boolean(), emit


def _fetch_add(_: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address, one thread after the other; gives what it was."""

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        address, amount = arguments
        return builder.atomic_rmw("add", builder.inttoptr(address, _LONG.as_pointer()), amount, "seq_cst")

    return types.int64(types.int64, types.int64), emit


def _fetch_load(_: Any, address: Any) -> Any:
    """The int64 at an address as other threads have left it, with all that they wrote before."""

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], _LONG.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


def _give_way(_: Any) -> Any:
    """Offers the core to another thread (POSIX sched_yield)."""

    def emit(_: Any, builder: Any, __: Any, ___: Any) -> Any:
        kind = ir.FunctionType(_WORD, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.int32(), emit


float32 = intrinsic(_float32)
element = intrinsic(_element)
combine_line = intrinsic(_combine_line)
nesterov_line = intrinsic(_nesterov_line)
fence = intrinsic(_fence)
fetch_add = intrinsic(_fetch_add)
fetch_load = intrinsic(_fetch_load)
give_way = intrinsic(_give_way)

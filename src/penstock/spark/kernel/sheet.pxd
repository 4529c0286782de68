cimport cython
from penstock.spark.kernel.decode cimport Decoder

cdef extern from "spark/kernel/arenas.h" nogil:
    void *arena_new(long long size)
    unsigned char *arena_bytes(void *arena)
    int *arena_words(void *arena)
    long long *arena_quads(void *arena)
    long long arena_size(void *arena)
    bint arena_idle(void *arena)
    void arena_drop(void *arena)
    void *batch_new(void *arena, long long rows, long long columns)
    void batch_column(void *batch, long long column, long long nulls, long long bits, long long values, long long data)
    long long batch_address(void *batch)

cdef void *_made(long long size) except NULL

@cython.final
cdef class Sheet:
    cdef readonly long long rows
    cdef readonly long long used
    cdef readonly bint full
    cdef readonly bint packed
    cdef readonly bint foreign
    cdef readonly long long rows_max
    cdef readonly long long bytes_max
    cdef readonly long long room
    cdef bint scans
    cdef bint body
    cdef bint copied
    cdef long long columns
    cdef int[::1] kinds
    cdef int[::1] spans
    cdef int[::1] deltas
    cdef long long[::1] places
    cdef long long[::1] sizes
    cdef long long[::1] nulls
    cdef void *arenas[4]
    cdef void *spare
    cdef void *arena
    cdef unsigned char *out
    cdef int *words
    cdef long long *quads
    cdef unsigned char *records
    cdef int[::1] table

    @cython.locals(column=cython.longlong, i=cython.longlong)
    cpdef object begin(self, long long stored)

    @cython.locals(at=cython.longlong, column=cython.longlong, kind=cython.longlong)
    cdef long long _layout(self) noexcept

    cdef long long _width(self, long long kind) noexcept
    cdef long long _aligned(self, long long size) noexcept

    @cython.locals(i=cython.longlong)
    cdef object _take(self, long long size)

    @cython.locals(column=cython.longlong, i=cython.longlong, at=cython.longlong, bits=cython.longlong, home="void *",
                   made="void *")
    cpdef object batch(self)

    @cython.locals(at=cython.longlong, column=cython.longlong, kind=cython.longlong, part=cython.longlong,
                   size=cython.longlong, to="unsigned char *")
    cdef long long _moved(self, void *home, bint really) noexcept

    @cython.locals(done=cython.longlong, taken=cython.longlong)
    cpdef int fill(self, Decoder decoder, long long row) except -1

    @cython.locals(n=cython.longlong, p=cython.longlong, size=cython.longlong, column=cython.longlong)
    cdef long long _block(self, Decoder decoder, long long row) noexcept nogil

    @cython.locals(kind=cython.longlong)
    cdef void _copy(self, long long column, long long n) noexcept nogil

    @cython.locals(i=cython.longlong, to=cython.longlong, at=cython.longlong, delta=cython.longlong, p=cython.longlong)
    cdef void _ints(self, long long column, long long n) noexcept nogil

    @cython.locals(i=cython.longlong, to=cython.longlong, at=cython.longlong, delta=cython.longlong, p=cython.longlong)
    cdef void _longs(self, long long column, long long n) noexcept nogil

    @cython.locals(i=cython.longlong, to=cython.longlong, at=cython.longlong, delta=cython.longlong, p=cython.longlong,
                   ms=cython.longlong)
    cdef void _times(self, long long column, long long n) noexcept nogil

    @cython.locals(i=cython.longlong, to=cython.longlong, at=cython.longlong, p=cython.longlong,
                   offsets=cython.longlong, bits=cython.longlong, total=cython.longlong, length=cython.longlong,
                   row=cython.longlong)
    cdef void _spans(self, long long column, long long n) noexcept nogil

    @cython.locals(at=cython.longlong, end=cython.longlong, seen=cython.longlong)
    cdef void _look(self, long long column) noexcept

cimport cython

@cython.final
cdef class Decoder:
    cdef readonly object owner
    cdef readonly object extra
    cdef readonly object lost
    cdef readonly long long count
    cdef readonly long long rows
    cdef readonly long long last
    cdef long long packed
    cdef unsigned char *records
    cdef unsigned char *inflated
    cdef long long size
    cdef unsigned char *tags
    cdef long long tags_size
    cdef unsigned char *keys
    cdef long long keys_size
    cdef unsigned char *topics
    cdef long long topics_size
    cdef long long since
    cdef long long before
    cdef bint verify
    cdef bint raw
    cdef bint halves
    cdef readonly long long broken
    cdef readonly long long broken_at
    cdef object _topics
    cdef object _tags
    cdef object _keys
    cdef int[::1] starts
    cdef int[::1] table
    cdef object _table

    @cython.locals(done=cython.longlong, need=cython.longlong)
    cpdef int load(self, object records, long long first, long long until) except -1

    @cython.locals(done=cython.longlong, need=cython.longlong)
    cpdef int place(self, object owner, object starts, long long first, long long base) except -1

    cpdef object choose(self, tuple topics, long long since, long long before, bint verify, bint raw, bint halves=*)

    @cython.locals(done=cython.longlong, need=cython.longlong)
    cpdef int sweep(self, object owner, long long until, long long base) except -1

    @cython.locals(i=cython.longlong, p=cython.longlong, kept=cython.longlong, at=cython.longlong)
    cpdef int only(self, object wanted) except -1

    @cython.locals(total=cython.longlong, p=cython.longlong, kept=cython.longlong)
    cdef long long _sweep(self, long long until, long long base) noexcept nogil

    @cython.locals(i=cython.longlong, p=cython.longlong, kept=cython.longlong)
    cdef long long _look(self, long long need, long long first, long long base) noexcept nogil

    @cython.locals(stored=cython.longlong, tags=cython.longlong, tags_length=cython.longlong)
    cdef bint _wanted(self) noexcept nogil

    @cython.locals(p=cython.longlong, length=cython.longlong)
    cdef bint _sums_match(self) noexcept nogil

    @cython.locals(p=cython.longlong, total=cython.longlong, kept=cython.longlong, offset=cython.longlong,
                   at=cython.longlong)
    cdef long long _walk(self, long long first, long long until) noexcept nogil

    @cython.locals(total=cython.longlong, at=cython.longlong, born=cython.longlong, store=cython.longlong,
                   topic=cython.longlong, magic=cython.longlong, length=cython.longlong, flags=cython.longlong)
    cdef long long _frame(self, long long p, long long left, long long at) noexcept nogil

    @cython.locals(p=cython.longlong, end=cython.longlong, stop=cython.longlong, cut=cython.longlong,
                   span=cython.longlong)
    cdef void _scan(self, long long at) noexcept nogil

    @cython.locals(p=cython.longlong, length=cython.longlong)
    cdef bint _among(self, const unsigned char *wanted, long long size, long long start, long long n) noexcept nogil

    @cython.locals(p=cython.longlong, end=cython.longlong, stop=cython.longlong)
    cdef bint _any_key(self, long long start, long long n) noexcept nogil

    @cython.locals(n=cython.longlong)
    cpdef int frame(self, long long row, long long rows_max, long long bytes_max, bint inflate) except -1

    @cython.locals(n=cython.longlong, used=cython.longlong, p=cython.longlong, size=cython.longlong)
    cdef long long _cut(self, long long row, long long rows_max, long long bytes_max) noexcept nogil

    @cython.locals(i=cython.longlong, at=cython.longlong, p=cython.longlong, start=cython.longlong,
                   flags=cython.longlong)
    cdef object _inflate(self)

    cpdef int size_of(self, long long row) except -1

    cdef object reserve(self, long long rows)

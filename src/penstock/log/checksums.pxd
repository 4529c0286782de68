cimport cython


@cython.final
cdef class Sidecar:
    cdef public object path
    cdef public long long first
    cdef public long long size
    cdef public long long count
    cdef public long long allocated
    cdef public long long flushed
    cdef public long long covers_from
    cdef public long long covers_to
    cdef public int fd
    cdef public object map
    cdef public object files
    cdef unsigned char *base

    @cython.locals(base=cython.p_uchar, version=cython.longlong, first=cython.longlong, used=cython.longlong, whole=cython.bint, summed=cython.bint)
    cpdef open(self, bint mend)
    @cython.locals(n=cython.longlong)
    cpdef long long seek(self, long long start, long long crc)
    @cython.locals(need=cython.longlong, want=cython.longlong, have=cython.longlong)
    cpdef int room(self, long long records)
    cpdef void put(self, long long start, long long crc) noexcept
    @cython.locals(low=cython.longlong, high=cython.longlong, middle=cython.longlong, start=cython.longlong)
    cpdef long long find(self, long long start)
    @cython.locals(n=cython.longlong)
    cpdef void trim(self, long long start)
    cpdef long long start(self, long long n)
    cpdef long long sum(self, long long n)
    cdef bint _empty(self, long long n)


@cython.final
cdef class Checksums:
    cdef public object folder
    cdef public long long segment_size
    cdef public dict sidecars
    cdef public object files
    cdef Sidecar current
    cdef public long long strict_from
    cdef public long long fresh_from
    cdef public bint mend
    cdef public long long damaged
    cdef public list doubtful
    cdef long long _hint
    cdef Sidecar _last_used

    @cython.locals(sidecar=Sidecar)
    cpdef int room(self, long long records)
    @cython.locals(sidecar=Sidecar)
    cdef void put(self, long long start, long long crc) noexcept
    @cython.locals(sidecar=Sidecar, n=cython.longlong)
    cdef int verdict(self, long long segment_first, long long start, long long crc)
    @cython.locals(n=cython.longlong, wrong=cython.longlong)
    cdef int _weigh(self, Sidecar sidecar, long long segment_first, long long start, long long crc)

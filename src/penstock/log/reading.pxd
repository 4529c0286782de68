cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.commitlog cimport CommitLog


@cython.final
cdef class ReadResult:
    cdef public long long next_offset
    cdef public long long min_offset
    cdef public long long max_offset
    cdef public long long count
    cdef public long long bytes_
    cdef public int run_count
    cdef public CommitLog log
    cdef object _runs
    cdef unsigned char *_at
    cdef int _limit

    cpdef void begin(self, CommitLog log)
    @cython.locals(last=cython.longlong)
    cdef void add(self, long long physical, long long size)
    @cython.locals(last=cython.longlong)
    cdef long long place(self)
    @cython.locals(n=cython.int, physical=cython.longlong, size=cython.longlong, segment=Segment)
    cdef long long copy_out(self, unsigned char *to, long long pos)

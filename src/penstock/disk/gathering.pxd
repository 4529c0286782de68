cimport cython

from penstock.disk.readysegment cimport ReadySegment


@cython.final
cdef class Gathering:
    cdef public object buffer
    cdef unsigned char *base
    cdef public ReadySegment segment
    cdef public long long room, begins, start

    cpdef bint take(self, ReadySegment segment, long long length) except -1
    cpdef int settle_of(self, ReadySegment segment) except -1
    @cython.locals(segment=ReadySegment, size=cython.longlong)
    cpdef int settle(self) except -1
    cpdef drop(self, ReadySegment segment)

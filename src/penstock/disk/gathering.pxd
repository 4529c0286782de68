cimport cython

from penstock.disk.readysegment cimport ReadySegment


@cython.final
cdef class Gathering:
    cdef public object buffer
    cdef unsigned char *base
    cdef public ReadySegment segment
    cdef ReadySegment _ran
    cdef public bint scattering
    cdef public long long room, write_bytes_min, begins, start

    cpdef bint take(self, ReadySegment segment, long long length) except -1
    cpdef int settle_of(self, ReadySegment segment) except -1
    @cython.locals(segment=ReadySegment, size=cython.longlong)
    cpdef int settle(self) except -1
    cdef bint _write(self, ReadySegment segment, long long size)
    @cython.locals(p=cython.longlong, length=cython.longlong)
    cdef int _lay(self, ReadySegment segment, long long size) except -1
    cpdef drop(self, ReadySegment segment)

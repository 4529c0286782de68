cimport cython


@cython.final
cdef class Segment:
    cdef public object path
    cdef public bint scattered
    cdef public long long first
    cdef public long long size
    cdef public long long prefaulted
    cdef public long long allocated
    cdef public int fd
    cdef public object map
    cdef public object files
    cdef unsigned char *base

    cpdef Segment open(self)
    @cython.locals(have=cython.longlong, target=cython.longlong, piece=cython.longlong, most=cython.longlong)
    cpdef back(self, long long end, long long written=*)


@cython.final
cdef class SegmentedFile:
    cdef object _folder
    cdef public bint scattered
    cdef public long long size
    cdef public long long first
    cdef public long long end
    cdef public list segments
    cdef public object files

    @cython.locals(segment=Segment)
    cpdef Segment at(self, long long position)
    @cython.locals(segment=Segment)
    cdef void expect(self, long long position, long long size) except *
    cpdef Segment last(self)

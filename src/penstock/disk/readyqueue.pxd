cimport cython

from penstock.disk.gathering cimport Gathering
from penstock.disk.readysegment cimport ReadySegment
from penstock.disk.stream cimport Stream


cdef class ReadyQueue(Stream):
    cdef public object folder, files, pool
    cdef public str name
    cdef public long long segment_bytes, last_id, total, visible, kept_from, _number, _mark, _batch, _fresh_first, tag
    cdef public list segments
    cdef public ReadySegment last
    cdef ReadySegment _seen
    cdef Gathering _gathering
    cdef bint _gathers
    cdef public bint unflushed, renamed, stamped

    cpdef int ready(self, long long length, long long records) except -1
    @cython.locals(answer=cython.int)
    cpdef int gather(self, long long length, long long records) except -1
    @cython.locals(segment=ReadySegment, sums=cython.longlong)
    cdef int _make_room(self, long long length, long long records) except -1
    @cython.locals(segment=ReadySegment)
    cpdef int _roll(self, long long length) except -1
    @cython.locals(segment=ReadySegment, end=cython.longlong, to=cython.longlong, crc=cython.longlong, base=cython.p_uchar, large=cython.bint)
    cdef void append(self, long long now_ns, long long attempts, long long message_id, const unsigned char *body, long long at, long long length, long long more) noexcept
    @cython.locals(segment=ReadySegment)
    cpdef list marked(self)
    @cython.locals(segment=ReadySegment)
    cpdef lend(self)
    cpdef void all_visible(self) noexcept
    cpdef long long begin(self) except -1
    cpdef long long end(self) except -1
    @cython.locals(segment=ReadySegment)
    cdef ReadySegment _segment(self, long long ordinal)
    @cython.locals(segment=ReadySegment)
    cpdef long long next(self, long long ordinal) except -1
    @cython.locals(segment=ReadySegment, last=ReadySegment, found=cython.longlong, begin=cython.longlong, end=cython.longlong)
    cpdef long long count(self, long long ordinal) except -1
    @cython.locals(segment=ReadySegment, n=cython.longlong, at=cython.longlong, length=cython.longlong)
    cpdef int find(self, long long ordinal) except -1
    @cython.locals(segment=ReadySegment, gone=cython.longlong)
    cpdef int drop_below(self, long long ordinal) except -1


cdef bint _is_copy(ReadySegment segment, long long n) noexcept

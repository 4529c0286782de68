cimport cython

from penstock.disk.segments cimport Segment, SegmentedFile
from penstock.log.checksums cimport Checksums, Sidecar
from penstock.log.draft cimport Draft


@cython.locals(total=cython.longlong, magic=cython.longlong, q=cython.longlong, body_len=cython.longlong,
               t=cython.longlong, tl=cython.longlong, props_len=cython.longlong)
cdef long long measure(unsigned char *b, long long at, long long room, long long physical)

@cython.locals(at=cython.longlong)
cdef long long _body_length_at(long long sys) noexcept

@cython.locals(q=cython.longlong, crc=cython.longlong, body_len=cython.longlong)
cdef bint body_matches(unsigned char *b, long long at)

@cython.locals(t=cython.longlong, tl=cython.longlong, p=cython.longlong)
cdef bint proves_itself(unsigned char *b, long long at)


@cython.final
cdef class CommitLog:
    cdef public SegmentedFile file
    cdef public Checksums sums
    cdef public long long end
    cdef public long long unproven
    cdef public long long store_ms
    cdef public object prepared
    cdef public object making
    cdef str _trouble
    cdef public long long body_max
    cdef object _host_object
    cdef unsigned char *_host
    cdef int _host_len
    cdef Segment _segment
    cdef unsigned char *_base
    cdef object _buffer
    cdef unsigned char *_gathered
    cdef long long _room
    cdef long long _at
    cdef long long _settled
    cdef public long long gather_bytes
    cdef public long long write_bytes_min
    cdef public bint streaming
    cdef long long _by_write
    cdef long long _by_map
    cdef long long _limit
    cdef long long _backed
    cdef public object backing

    cdef long long record_size(self, Draft d)
    @cython.locals(remaining=cython.longlong)
    cpdef int room(self, long long size, long long records)
    @cython.locals(segment=Segment, sidecar=Sidecar)
    cpdef void seek(self, long long end)
    @cython.locals(segment=Segment)
    cpdef int _back(self, long long size)
    @cython.locals(segment=Segment, sidecar=Sidecar, room=cython.int)
    cpdef int _roll(self, long long size)
    @cython.locals(b=cython.p_uchar, at=cython.longlong, p=cython.longlong, sys=cython.longlong, crc=cython.longlong)
    cdef void put(self, Draft d, long long queue_offset, long long now_ms) noexcept
    @cython.locals(room=cython.int, n=cython.longlong, at=cython.longlong)
    cdef int put_block(self, unsigned char *b, long long pos, long long size, long long sums, long long count)
    cpdef void note(self, long long store_ms, long long unproven) noexcept
    cpdef int turn(self)
    cpdef int begin_at(self, long long position)
    cpdef long long settled_end(self) noexcept
    @cython.locals(size=cython.longlong, head=cython.longlong)
    cpdef void settle(self)
    @cython.locals(segment=Segment, at=cython.longlong)
    cdef void _write(self, long long begin, long long end)
    @cython.locals(to=cython.p_uchar, b=cython.p_uchar, at=cython.longlong, p=cython.longlong, following=cython.longlong,
                   stop=cython.longlong, start=cython.longlong)
    cdef void _lay(self, long long begin, long long end) noexcept
    @cython.locals(segment=Segment, at=cython.longlong)
    cdef long long size_of(self, long long physical)
    @cython.locals(segment=Segment, at=cython.longlong, size=cython.longlong)
    cpdef long long size_at(self, long long physical)
    @cython.locals(segment=Segment, at=cython.longlong, size=cython.longlong, verdict=cython.int)
    cpdef long long check(self, long long physical)
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef bint stands_for(self, long long physical, long long queue_id, long long offset)

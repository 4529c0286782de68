cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.checksums cimport Sidecar
from penstock.log.consumequeue cimport ConsumeQueue
from penstock.log.draft cimport Draft
from penstock.log.store cimport LogStore


@cython.final
cdef class Feeder:
    cdef public LogStore store
    cdef public long long position
    cdef public long long checked_to
    cdef public long long count
    cdef public long long size
    cdef public long long begin
    cdef public bint damaged
    cdef public bint last
    cdef Segment _segment
    cdef object _buffer
    cdef unsigned char *_sums

    @cython.locals(store=LogStore, segment=Segment, at=cython.longlong, stop=cython.longlong)
    cpdef bint next(self, long long most) except -1
    @cython.locals(n=cython.longlong, begin=cython.longlong, b=cython.p_uchar, size=cython.longlong, crc=cython.longlong, known=cython.bint)
    cdef _cut(self, Segment segment, Sidecar sidecar, long long at, long long stop, long long most)
    @cython.locals(following=cython.longlong)
    cdef long long _torn(self, Segment segment, Sidecar sidecar, long long n, long long at, long long stop)
    cdef _found(self, long long physical)
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef tuple parts(self)
    cpdef bytes block(self)


@cython.final
cdef class Follower:
    cdef public LogStore store
    cdef Draft draft
    cdef public long long bad
    cdef list _recent

    @cython.locals(b=cython.p_uchar, store=LogStore, pos=cython.longlong, first=cython.longlong, room=cython.int, n=cython.longlong, at=cython.longlong, crc=cython.longlong)
    cpdef int take(self, bytearray owner, long long sums, long long count, long long end, bint damaged) except -1
    @cython.locals(first=cython.longlong, following=cython.longlong, n=cython.longlong, at=cython.longlong, size=cython.longlong)
    cdef bint _sound(self, unsigned char *b, long long pos, long long sums, long long count, long long end, bint damaged) noexcept
    @cython.locals(store=LogStore, d=Draft, size=cython.longlong, holes=cython.bint)
    cdef bint _derive(self, unsigned char *b, long long at, long long end, long long physical, long long crc, bint damaged) except -1
    @cython.locals(queue=ConsumeQueue, n=cython.longlong)
    cdef ConsumeQueue _queue_of(self, Draft d)
    @cython.locals(store=LogStore, segment=Segment, sidecar=Sidecar, at=cython.longlong, n=cython.longlong, following=cython.longlong)
    cdef bint _derive_rest(self) except -1
    @cython.locals(store=LogStore, segment=Segment, d=Draft, queue=ConsumeQueue, at=cython.longlong, size=cython.longlong)
    cpdef bint derive_again(self, long long physical) except -1
    cpdef int turn(self)
    cpdef int begin_at(self, long long position)


@cython.final
cdef class Pieces:
    cdef public Follower follower
    cdef public LogStore store
    cdef public long long bad
    cdef long long _passed
    cdef long long _sought
    cdef object _held
    cdef long long _skipped
    cdef object _buffer
    cdef unsigned char *_sums

    @cython.locals(skipped=cython.longlong, outcome=cython.int, going=cython.bint)
    cpdef int take(self, bytearray owner, long long pos, long long end) except -1
    @cython.locals(b=cython.p_uchar, total=cython.longlong, size=cython.longlong, first=cython.longlong, at=cython.longlong,
                   count=cython.longlong, found=cython.longlong, table=cython.longlong, room=cython.longlong, outcome=cython.int)
    cdef tuple _cut(self)
    @cython.locals(size=cython.longlong)
    @cython.locals(b=cython.p_uchar, total=cython.longlong, size=cython.longlong, first=cython.longlong, end=cython.longlong,
                   room=cython.longlong, found=cython.longlong, at=cython.longlong, magic=cython.longlong)
    cdef long long _gap(self) except *
    @cython.locals(size=cython.longlong, outcome=cython.int)
    cdef tuple _pass(self, long long size)
    cdef long long _whole(self, unsigned char *b, long long at, long long room, long long physical) noexcept

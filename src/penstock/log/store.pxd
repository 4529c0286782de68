cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.consumequeue cimport ConsumeQueue, TagCodes
from penstock.log.draft cimport Draft
from penstock.log.lookup cimport Lookup
from penstock.log.reading cimport ReadResult


cdef int _nothing(long long scanned, long long fillers, long long gone, bint waits) noexcept


@cython.final
cdef class LogStore(Lookup):
    cdef public object upkeep

    cpdef void begin_turn(self, long long now_ms)
    cpdef void catch_up(self, long long now_ms)
    cpdef void end_turn(self)
    cpdef void settle(self)
    @cython.locals(outcome=cython.int)
    cpdef int append(self, Draft d)
    @cython.locals(size=cython.longlong, room=cython.int, queue=ConsumeQueue)
    cpdef int gather(self, Draft d)
    @cython.locals(e=Draft, queue=ConsumeQueue, p=cython.longlong, count=cython.longlong, total=cython.longlong, room=cython.int)
    cdef long long gather_batch(self, Draft d, unsigned char *b, long long pos, long long end)
    @cython.locals(e=Draft, p=cython.longlong, count=cython.longlong, total=cython.longlong, keys=cython.longlong, size=cython.longlong,
                   found=cython.int)
    cdef long long _weigh(self, Draft d, unsigned char *b, long long pos, long long end)
    @cython.locals(e=Draft, keys=cython.longlong)
    cdef long long _keys_of(self, unsigned char *b, long long pos, long long end)
    cdef void announce(self, long long size) noexcept
    @cython.locals(e=Draft)
    cdef void _take_over(self, Draft d)
    @cython.locals(e=Draft, total=cython.longlong, body_len=cython.longlong, props_len=cython.longlong)
    cdef int _next_element(self, unsigned char *b, long long p, long long end)
    @cython.locals(limit=cython.longlong, base=cython.p_uchar, segment=Segment, at=cython.longlong, end=cython.longlong,
                   physical=cython.longlong, size=cython.longlong, scanned=cython.longlong, scan_max=cython.longlong,
                   fillers=cython.longlong, gone=cython.longlong, waits=cython.bint)
    cpdef int read(self, ConsumeQueue queue, long long offset, long long max_count, long long max_bytes, long long end_offset, TagCodes codes, ReadResult result)
    cdef bint _lost(self, ConsumeQueue queue, long long offset, long long physical, long long position) except -1
    cdef bint _awaits(self, ConsumeQueue queue, long long offset, long long physical) except -1
    cdef bint _sound(self, ConsumeQueue queue, long long offset, long long physical, long long size)
    cpdef list take_jobs(self, long long mono_ms)

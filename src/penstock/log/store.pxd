cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.commitlog cimport CommitLog
from penstock.log.consumequeue cimport ConsumeQueue, TagCodes
from penstock.log.draft cimport Draft
from penstock.log.reading cimport ReadResult


@cython.final
cdef class LogStore:
    cdef public object folder
    cdef public object options
    cdef public object files
    cdef public object clock
    cdef public CommitLog log
    cdef public dict queues
    cdef public list arrived
    cdef public list dirty_queues
    cdef public bint healthy
    cdef public bint is_open
    cdef public int refusal
    cdef public long long appended
    cdef public long long damaged
    cdef long long _now_ms
    cdef bint _in_turn
    cdef public tuple delays
    cdef Draft _element

    @cython.locals(segment=Segment)
    cpdef open(self)
    cpdef void begin_turn(self, long long now_ms)
    cpdef void end_turn(self)
    cpdef ConsumeQueue queue(self, bytes topic, int queue_id)
    @cython.locals(size=cython.longlong, status=cython.int, queue=ConsumeQueue)
    cpdef int append(self, Draft d)
    cdef void _dispatch(self, Draft d)
    @cython.locals(limit=cython.longlong, base=cython.p_uchar, segment=Segment, at=cython.longlong, end=cython.longlong,
                   physical=cython.longlong, size=cython.longlong, scanned=cython.longlong, scan_max=cython.longlong,
                   fillers=cython.longlong, gone=cython.longlong)
    cpdef int read(self, ConsumeQueue queue, long long offset, long long max_count, long long max_bytes, long long end_offset, TagCodes codes, ReadResult result)

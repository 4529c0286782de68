cimport cython

from penstock.disk.segments cimport Segment, SegmentedFile


@cython.final
cdef class TagCodes:
    cdef public object codes
    cdef object _array
    cdef unsigned char *_at
    cdef int _count

    @cython.locals(n=cython.int)
    cpdef bint match(self, long long code)


cdef class QueueState:
    cdef public long long min_offset
    cdef public long long dirty_from
    cdef public long long reserve_at
    cdef public long long hidden_from
    cdef public long long shown
    cdef public bint fresh
    cdef public bint watched
    cdef public bint arrived
    cdef public bint in_dirty

    cpdef bint arrive(self) noexcept


@cython.final
cdef class ConsumeQueue(QueueState):
    cdef public bytes topic
    cdef public int queue_id
    cdef public SegmentedFile file
    cdef public long long max_offset
    cdef public long long reserved
    cdef public str trouble
    cdef public list subscribers
    cdef public bint by_level
    cdef unsigned char *topic_at
    cdef int topic_len
    cdef long long key_hash
    cdef object _files
    cdef object _key_bytes
    cdef Segment _segment
    cdef unsigned char *_base
    cdef long long _at
    cdef long long _limit
    cdef long long _durable
    cdef long long _durable_at

    cpdef long long count_below(self, long long physical)
    cpdef int room(self)
    cdef bint ready(self)
    cpdef int room_for(self, long long count)
    @cython.locals(end=cython.longlong)
    cpdef long long visible_end(self)
    cdef Segment _make_next(self)
    @cython.locals(segment=Segment, found=Segment, byte=cython.longlong)
    cpdef int _turn(self)
    @cython.locals(p=cython.longlong)
    cdef void _fill(self, Segment segment, long long at, long long end)
    @cython.locals(n=cython.longlong, at=cython.longlong)
    cdef void put(self, long long offset, long long physical, long long size, long long code) noexcept
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef put_at(self, long long offset, long long physical, long long size, long long code)
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef tuple entry(self, long long offset)
    @cython.locals(segment=Segment, at=cython.longlong, size=cython.longlong, physical=cython.longlong)
    cdef bint _below(self, long long offset, long long limit, bint whole)
    @cython.locals(middle=cython.longlong)
    cdef long long _search(self, long long low, long long high, long long limit, bint whole)
    cpdef long long durable_end(self, long long flushed)
    @cython.locals(segment=Segment, at=cython.longlong, low=cython.longlong, high=cython.longlong, middle=cython.longlong, probe=cython.longlong, size=cython.longlong)
    cpdef long long first_at_or_after(self, long long physical)
    @cython.locals(segment=Segment, at=cython.longlong, used=cython.longlong, before=cython.longlong, physical=cython.longlong,
                   size=cython.longlong, ended=cython.bint)
    cpdef bint survey(self, long long limit)
    @cython.locals(segment=Segment, begin=cython.longlong, at=cython.longlong, first=cython.longlong)
    cpdef list cut(self, long long physical)
    cpdef void fill_to(self, long long offset)
    cdef void _touch(self, long long byte)

cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.commitlog cimport CommitLog
from penstock.log.consumequeue cimport ConsumeQueue, TagCodes
from penstock.log.draft cimport Draft
from penstock.log.keyindex cimport KeyIndex
from penstock.log.reading cimport ReadResult


@cython.final
cdef class LogStore:
    cdef public object folder
    cdef public object options
    cdef public object files
    cdef public object clock
    cdef public CommitLog log
    cdef public KeyIndex index
    cdef public object durability
    cdef public object upkeep
    cdef public dict queues
    cdef public list arrived
    cdef public list dirty_queues
    cdef public list short_queues
    cdef public list subscribers
    cdef public object sequences
    cdef public list fillers
    cdef public dict suspects
    cdef set _unmended
    cdef public tuple delays
    cdef public bint healthy
    cdef public bint is_open
    cdef public int refusal
    cdef public long long queue_file_size
    cdef public long long appended
    cdef public long long entry_count
    cdef public long long damaged
    cdef public long long skipped
    cdef public long long trusted_from
    cdef public long long index_from
    cdef public long long subscribe_from
    cdef unsigned char *_live
    cdef object _live_page
    cdef long long _now_ms
    cdef bint _in_turn
    cdef long long _looked_ms
    cdef long long _batch_keys
    cdef Draft _element

    cpdef list take_jobs(self, long long mono_ms)
    cpdef void want_flush(self)
    cpdef void begin_turn(self, long long now_ms)
    cpdef void end_turn(self)
    @cython.locals(queue=ConsumeQueue)
    cpdef ConsumeQueue queue(self, bytes topic, int queue_id)
    @cython.locals(size=cython.longlong, status=cython.int, queue=ConsumeQueue)
    cpdef int append(self, Draft d)
    @cython.locals(e=Draft, queue=ConsumeQueue, p=cython.longlong, count=cython.longlong, total=cython.longlong, status=cython.int)
    cdef long long append_batch(self, Draft d, unsigned char *b, long long pos, long long end)
    @cython.locals(e=Draft, p=cython.longlong, count=cython.longlong, total=cython.longlong, keys=cython.longlong, size=cython.longlong,
                   status=cython.int)
    cdef long long _weigh(self, Draft d, unsigned char *b, long long pos, long long end)
    cdef void _announce(self, long long size) noexcept
    @cython.locals(e=Draft)
    cdef void _take_over(self, Draft d)
    @cython.locals(e=Draft, total=cython.longlong, body_len=cython.longlong, props_len=cython.longlong)
    cdef int _next_element(self, unsigned char *b, long long p, long long end)
    @cython.locals(queue=ConsumeQueue, tx=cython.int, code=cython.longlong)
    cdef void _dispatch(self, Draft d)
    @cython.locals(queue=ConsumeQueue, offset=cython.longlong)
    cdef _dispatch_again(self, Draft d, long long code)
    cdef long long _delay(self, long long queue_id)
    @cython.locals(h=cython.longlong)
    cdef void _index(self, Draft d, long long pos, long long n) noexcept
    @cython.locals(p=cython.longlong, q=cython.longlong, end=cython.longlong)
    cdef void _index_words(self, Draft d) noexcept
    @cython.locals(limit=cython.longlong, base=cython.p_uchar, segment=Segment, at=cython.longlong, end=cython.longlong,
                   physical=cython.longlong, size=cython.longlong, scanned=cython.longlong, scan_max=cython.longlong,
                   fillers=cython.longlong, gone=cython.longlong)
    cpdef int read(self, ConsumeQueue queue, long long offset, long long max_count, long long max_bytes, long long end_offset, TagCodes codes, ReadResult result)
    cpdef long long store_time(self, ConsumeQueue queue, long long offset)
    @cython.locals(segment=Segment, at=cython.longlong)
    cdef long long _store_time_at(self, long long physical)
    @cython.locals(low=cython.longlong, high=cython.longlong, middle=cython.longlong, probe=cython.longlong, when=cython.longlong)
    cdef long long _first_since(self, ConsumeQueue queue, long long ms)
    @cython.locals(h=cython.longlong)
    cpdef list query(self, bytes topic, bytes key, long long max_num, long long begin_ms, long long end_ms)
    @cython.locals(d=Draft)
    cdef bint _carries(self, bytes record, bytes topic, bytes key)
    cpdef void set_live(self, object page)
    @cython.locals(d=Draft, segment=Segment, size=cython.longlong)
    cpdef long long replay(self, long long position)
    @cython.locals(d=Draft, segment=Segment, size=cython.longlong)
    cpdef long long next_indexed(self, long long position, long long end, long long most)

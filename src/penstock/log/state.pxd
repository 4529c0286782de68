cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.commitlog cimport CommitLog
from penstock.log.consumequeue cimport ConsumeQueue
from penstock.log.draft cimport Draft
from penstock.log.durability cimport Durability
from penstock.log.keyindex cimport KeyIndex


cdef class LogState:
    cdef public object folder
    cdef public object options
    cdef public object files
    cdef public object clock
    cdef public CommitLog log
    cdef public KeyIndex index
    cdef public Durability durability
    cdef public dict queues
    cdef public list arrived
    cdef public list dirty_queues
    cdef public list short_queues
    cdef public list subscribers
    cdef public object sequences
    cdef public list fillers
    cdef public dict damaged_entries
    cdef public object repair
    cdef set _unmended
    cdef public tuple delays
    cdef public bint healthy
    cdef public bint is_open
    cdef public bint following
    cdef public long long confirmed
    cdef public long long confirmed_flushed
    cdef public int refusal
    cdef public long long queue_file_size
    cdef public long long appended
    cdef public long long entry_count
    cdef public long long damaged
    cdef public long long skipped
    cdef public long long underived
    cdef public long long trusted_from
    cdef public long long index_from
    cdef unsigned char *_live
    cdef object _live_page
    cdef long long _now_ms
    cdef bint _in_turn
    cdef long long _looked_ms
    cdef long long _batch_keys
    cdef Draft _element

    @cython.locals(queue=ConsumeQueue)
    cpdef ConsumeQueue queue(self, bytes topic, int queue_id)
    @cython.locals(queue=ConsumeQueue, tx=cython.int, code=cython.longlong)
    cdef void dispatch(self, Draft d)
    @cython.locals(queue=ConsumeQueue, offset=cython.longlong)
    cdef _dispatch_again(self, Draft d, long long code)
    cdef long long _delay(self, long long queue_id)
    @cython.locals(h=cython.longlong)
    cdef void _index(self, Draft d, long long pos, long long n) noexcept
    @cython.locals(p=cython.longlong, q=cython.longlong, end=cython.longlong)
    cdef void _index_words(self, Draft d) noexcept
    @cython.locals(d=Draft, segment=Segment, size=cython.longlong)
    cpdef long long replay(self, long long position)
    @cython.locals(d=Draft, segment=Segment, size=cython.longlong)
    cpdef long long next_indexed(self, long long position, long long end, long long most)
    cpdef void want_flush(self)
    cpdef bint blocked(self, long long mono_ms)
    cpdef void set_live(self, object page)

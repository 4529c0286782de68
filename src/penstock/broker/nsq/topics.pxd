cimport cython

from penstock.delivery.channel cimport Channel
from penstock.disk.readyqueue cimport ReadyQueue


cdef long long _RECORD_BYTES


cdef class Topic:
    cdef public bytes name
    cdef public object registry
    cdef public long long level, message_count, message_bytes
    cdef public bint ephemeral, paused, open, marked
    cdef list _marks
    cdef public dict channels

    cpdef int ready(self, long long size, long long count, bint gathers=*) except -1
    cdef int put(self, long long now_ns, const unsigned char *body, long long at, long long length, long long more) except -1
    cpdef put_bytes(self, long long now_ns, bytes body, long long more)
    cpdef int placed(self) except -1
    @cython.locals(channel=Channel)
    cpdef pump(self, long long mono_ms)
    cpdef int mark(self) except -1
    cpdef int trim(self) except -1


cdef class QueueTopic(Topic):
    cdef public ReadyQueue stream
    cdef public long long floor, durable
    cdef public list passing

    cpdef int ready(self, long long size, long long count, bint gathers=*) except -1
    cdef int put(self, long long now_ns, const unsigned char *body, long long at, long long length, long long more) except -1
    cpdef int placed(self) except -1
    cdef void _make_visible(self) noexcept
    @cython.locals(stream=ReadyQueue)
    cpdef int trim(self) except -1

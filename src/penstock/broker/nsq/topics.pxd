cimport cython

from penstock.delivery.channel cimport Channel
from penstock.delivery.source cimport MemorySource
from penstock.disk.readyqueue cimport ReadyQueue
from penstock.disk.runs cimport RunWriter


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


cdef class MemoryTopic(Topic):
    cdef public MemorySource source
    cdef public list pending
    cdef RunWriter _writer
    cdef public long long _last_id
    cpdef long long new_id(self, long long now_ns) except -1

    cpdef int ready(self, long long size, long long count, bint gathers=*) except -1
    @cython.locals(writer=RunWriter, to=cython.longlong)
    cdef int put(self, long long now_ns, const unsigned char *body, long long at, long long length, long long more) except -1
    @cython.locals(channel=Channel, source=MemorySource, writer=RunWriter, begin=cython.longlong, end=cython.longlong, count=cython.longlong, buffer=object)
    cpdef int placed(self) except -1
    cpdef pump(self, long long mono_ms)

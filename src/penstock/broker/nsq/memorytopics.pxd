cimport cython

from penstock.broker.nsq.topics cimport Topic
from penstock.delivery.channel cimport Channel
from penstock.delivery.source cimport MemorySource
from penstock.disk.runs cimport RunWriter


cdef class MemoryTopic(Topic):
    cdef MemorySource _source
    cdef public list pending
    cdef bint _keeps
    cdef long long _spare, _spare_bytes
    cdef dict _later
    cdef object _told
    cdef RunWriter _writer
    cdef public long long _last_id
    cpdef long long new_id(self, long long now_ns) except -1

    cpdef int ready(self, long long size, long long count, bint gathers=*) except -1
    @cython.locals(writer=RunWriter, to=cython.longlong)
    cdef int put(self, long long now_ns, const unsigned char *body, long long at, long long length, long long more) except -1
    @cython.locals(writer=RunWriter, begin=cython.longlong, end=cython.longlong, count=cython.longlong, buffer=object)
    cpdef int settle(self) except -1
    @cython.locals(channel=Channel, source=MemorySource, writer=RunWriter, begin=cython.longlong, end=cython.longlong, count=cython.longlong, buffer=object, tight=cython.bint)
    cpdef int placed(self) except -1
    cpdef pump(self, long long mono_ms)
    @cython.locals(again_ms=cython.longlong, channel=Channel, source=MemorySource)
    cdef _spill(self, long long mono_ms)
    @cython.locals(left=cython.longlong, moved=cython.longlong, channel=Channel)
    cpdef _hand_over(self)

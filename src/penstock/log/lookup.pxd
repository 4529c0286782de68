cimport cython

from penstock.disk.segments cimport Segment
from penstock.log.consumequeue cimport ConsumeQueue
from penstock.log.draft cimport Draft
from penstock.log.state cimport LogState


cdef class Lookup(LogState):
    cpdef long long store_time(self, ConsumeQueue queue, long long offset)
    @cython.locals(segment=Segment, at=cython.longlong)
    cdef long long _store_time_at(self, long long physical)
    @cython.locals(low=cython.longlong, high=cython.longlong, middle=cython.longlong, probe=cython.longlong, when=cython.longlong)
    cdef long long _first_since(self, ConsumeQueue queue, long long ms)
    @cython.locals(h=cython.longlong)
    cpdef list query(self, bytes topic, bytes key, long long max_num, long long begin_ms, long long end_ms)
    @cython.locals(d=Draft)
    cdef bint _carries(self, bytes record, bytes topic, bytes key)

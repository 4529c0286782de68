cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.broker.nsq.topics cimport Topic
from penstock.log.store cimport LogStore


@cython.final
cdef class Ticket:
    cdef readonly long long number
    cdef GroupFlush _flush


@cython.final
cdef class GroupFlush:
    cdef BrokerClock _time
    cdef LogStore _store
    cdef object _folder, _moving
    cdef public bint healthy
    cdef readonly bint wanted
    cdef public str error
    cdef readonly long long done
    cdef public long long dirty_since
    cdef readonly object waiting
    cdef dict _dirty
    cdef list _files
    cdef set _folders
    cdef object _takers, _left, _told
    cdef long long _retry_ms
    cdef bint _running
    cdef long long _started
    cdef tuple _log

    cpdef note(self, Topic topic)
    cpdef forget(self, Topic topic)
    cpdef Ticket ticket(self, Topic topic)
    cpdef bint blocked(self)
    cpdef long long due_ms(self)
    cpdef finish(self)

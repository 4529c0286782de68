cimport cython

from penstock.broker.nsq.topics cimport Topic
from penstock.delivery.channel cimport Channel


@cython.final
cdef class Turns:
    cdef readonly list topics
    cdef readonly dict later
    cdef list _channels, _timers
    cdef dict _timed, _timer_of
    cdef long long _number

    cpdef list take_topics(self)
    cpdef list take_channels(self)
    cpdef bint published(self)
    cpdef bint marked(self)
    cpdef time(self, Channel channel)
    cpdef forget(self, Channel channel)
    @cython.locals(channel=Channel, number=cython.longlong)
    cpdef tick(self, long long mono_ms)
    @cython.locals(due_ms=cython.longlong)
    cpdef long long next_ms(self)

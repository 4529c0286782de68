cimport cython

from penstock.client.choosing cimport Choosing
from penstock.client.line cimport Line, TimedSocket
from penstock.client.nsqline cimport NsqLine
from penstock.client.outgoing cimport Outgoing
from penstock.client.plainsend cimport PlainSend, PlainSends
from penstock.clock cimport Clock


cdef class DirectSends:
    cdef object _attempts
    cdef Choosing _choosing
    cdef double _timeout_s
    cdef readonly dict _lines, _nsq_lines, _plain
    cdef readonly bint is_open
    cdef bint _by_loop, _signs
    cdef Clock _clock

    cpdef start(self)
    cpdef object send(self, Outgoing sent, double deadline, object queue, object selector)
    cdef object _try(self, Outgoing sent, object route, object to, double deadline, bint any_queue)
    @cython.locals(line=Line, left_s=double)
    cdef object _store(self, Outgoing sent, object to, object address, double deadline)
    @cython.locals(sends=PlainSends)
    cdef object _request(self, Outgoing sent, object to)
    @cython.locals(line=Line, deadline=double)
    cpdef bint send_oneway(self, Outgoing sent, object queue, object selector) except -1
    cdef object _route(self, Outgoing sent)
    cdef Line _line(self, object address, double deadline)
    cdef object _connect(self, object connect, double deadline)
    cdef _broken(self, TimedSocket line, Outgoing sent, object error)
    @cython.locals(line=NsqLine)
    cdef object _publish(self, Outgoing sent, object to, object address, double deadline)
    @cython.locals(line=TimedSocket)
    cdef TimedSocket _take(self, dict lines, object address)
    cdef _give_back(self, dict lines, object address, TimedSocket line)

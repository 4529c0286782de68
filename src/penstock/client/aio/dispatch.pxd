cimport cython

from penstock.client.aio.delivery cimport Handed


@cython.final
cdef class Acknowledged:
    cdef list _row
    cdef bint _told
    cdef object _loop

    cpdef begin(self, object loop)
    cpdef add(self, Handed handed)
    @cython.locals(taken=list)
    cpdef settle(self)


@cython.final
cdef class Dispatcher:
    cdef readonly object listeners, iterated
    cdef readonly Acknowledged acknowledged
    cdef object _iterated_as, _some, _ready, _row, _settling, _ramp
    cdef Py_ssize_t _concurrency, _at_work
    cdef bint _stopped

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t)
    cpdef offer(self, list hands, list messages)
    @cython.locals(hand=object, message=object)
    cpdef list _hold(self, object kind, list hands, list messages)
    @cython.locals(handed=Handed)
    cpdef _work(self, object loop)

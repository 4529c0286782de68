cimport cython

from penstock.client.uniquekeys cimport UniqueKeys
from penstock.clock cimport Clock


@cython.final
cdef class Outgoing:
    cdef readonly object messages, keys, avoid
    cdef readonly int unsure
    cdef object _group, _body
    cdef Clock _clock
    cdef Py_ssize_t _compress_over

    cpdef failed_at(self, object broker)
    cpdef lost(self)
    cpdef bint is_plain(self) except -1
    cpdef request(self, object to)


@cython.final
cdef class Outgoings:
    cdef object _group
    cdef Clock _clock
    cdef Py_ssize_t _compress_over
    cdef UniqueKeys _ids

    cpdef start(self, bytes address)
    @cython.locals(count=Py_ssize_t, now_ms=cython.longlong)
    cpdef Outgoing make(self, object messages)

cimport cython

from penstock.client.gathering cimport Waiting


cdef class Quick:
    cdef public object _state, _own, _result, _exception, _waiters, _done_callbacks


@cython.final
cdef class Handover:
    cdef object _lanes, _lock, _room
    cdef list _row
    cdef Py_ssize_t _body_bytes, _buffer_bytes, _bytes, _blocked
    cdef double _timeout_s
    cdef bint _blocks, _told

    @cython.locals(send=Waiting)
    cpdef put(self, object message, object sending)

cimport cython


@cython.final
cdef class Outgoing:
    cdef readonly object messages, keys, avoid
    cdef readonly int unsure
    cdef object _group, _clock, _body
    cdef Py_ssize_t _compress_over

    cpdef failed_at(self, object broker)
    cpdef lost(self)
    cpdef request(self, object to)

cimport cython

from penstock.log.store cimport LogStore


@cython.final
cdef class Veils:
    cdef LogStore _store
    cdef list _veils
    cdef long long _lowered
    cdef object _waiting

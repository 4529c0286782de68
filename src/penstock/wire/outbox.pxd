cimport cython

@cython.final
cdef class Outbox:
    cdef unsigned char *base
    cdef readonly long long size
    cdef long long capacity
    cdef object owner
    cdef unsigned char *_none(self)
    @cython.locals(capacity=cython.longlong, owner=object)
    cdef void room(self, long long n) except *
    cpdef put(self, bytes data)
    cdef void put_from(self, const unsigned char *source, long long pos, long long n) except *
    cdef void put_int32(self, long long value) except *
    @cython.locals(length=cython.longlong, rest=cython.longlong, at=cython.longlong)
    cdef void put_decimal(self, long long value) except *
    @cython.locals(at=cython.longlong, digit=cython.longlong)
    cdef void put_hex(self, long long value, long long digits) except *
    cdef void cut(self, long long size)
    @cython.locals(size=cython.longlong)
    cpdef bytes take(self)

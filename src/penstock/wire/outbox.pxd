cimport cython

@cython.final
cdef class Outbox:
    cdef unsigned char *base
    cdef public long long size, parted
    cdef public list parts
    cdef long long capacity
    cdef object owner
    @cython.locals(capacity=cython.longlong, owner=object)
    cdef int room(self, long long n) except -1
    cpdef put(self, bytes data)
    cdef int put_from(self, const unsigned char *source, long long pos, long long n) except -1
    cdef int put_int32(self, long long value) except -1
    @cython.locals(length=cython.longlong, rest=cython.longlong, at=cython.longlong)
    cdef int put_decimal(self, long long value) except -1
    @cython.locals(at=cython.longlong, digit=cython.longlong)
    cdef int put_hex(self, long long value, long long digits) except -1
    cdef void cut(self, long long size) noexcept
    cpdef put_part(self, part)
    cpdef bytes take(self)
    cpdef list take_parts(self)
    @cython.locals(size=cython.longlong)
    cdef bytes _take_buffer(self)

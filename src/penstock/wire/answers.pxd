cimport cython

from penstock.wire.outbox cimport Outbox


@cython.final
cdef class Answers:
    cdef list _texts
    cdef bytes _blob
    cdef unsigned char *base
    cdef long long at[24]
    cdef long long length[24]
    cdef int kind
    cdef long long opaque, start, ext

    cpdef int sent(self, Outbox out, int kind, long long opaque, long long physical, long long queue_id, long long queue_offset) except -1
    cpdef int begin_batch(self, Outbox out, int kind, long long opaque, long long physical, long long count) except -1
    cpdef int next_id(self, Outbox out, long long physical) except -1
    cpdef int end_batch(self, Outbox out, long long queue_id, long long queue_offset) except -1
    cpdef int found(self, Outbox out, int kind, long long opaque, long long max_offset, long long min_offset, long long next_offset, long long body, long long suggested=*) except -1
    cdef int _put(self, Outbox out, int text) except -1
    cdef int _begin(self, Outbox out, int kind, long long opaque) except -1
    @cython.locals(size=cython.longlong)
    cdef int _end(self, Outbox out, long long body) except -1
    @cython.locals(at=cython.longlong)
    cdef int _number(self, Outbox out, long long value) except -1
    cdef int _end_fields(self, Outbox out) except -1

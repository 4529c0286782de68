cdef class MessageView:
    cdef unsigned char *base
    cdef public long long at, length, stamp_ns, message_id, attempts

    cpdef bytes body(self)
    cpdef lend(self)


cdef class Stream(MessageView):
    cdef public bint awaits

    cpdef long long begin(self) except -1
    cpdef long long end(self) except -1
    cpdef long long next(self, long long ordinal) except -1
    cpdef long long count(self, long long ordinal) except -1
    cpdef int find(self, long long ordinal) except -1

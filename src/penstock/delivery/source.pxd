cimport cython

from penstock.disk.stream cimport MessageView


cdef class Source(MessageView):
    cdef public long long place, lane

    cpdef int take(self) except -1
    cpdef int point_at(self, long long lane, long long place) except -1
    cpdef int done(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef int full(self) except -1
    cpdef long long backend_depth(self) except -1


cdef class MemorySource(Source):
    cdef public long long limit, dropped
    cdef public object backend
    cdef public list over
    cdef list _ring, _slots, _finished
    cdef long long _head, _count, _behind, _over_bytes, _over_max, _refilled, _refill_at, _free, _stored
    cdef long long[::1] _next, _number
    cdef bytes _last

    @cython.locals(count=cython.longlong, room=cython.longlong)
    cpdef int put(self, list payloads) except -1
    cpdef int put_one(self, bytes payload) except -1
    @cython.locals(size=cython.longlong)
    cpdef int push(self, bytes payload) except -1
    cpdef long long waiting(self) noexcept
    cpdef bytes oldest(self)
    @cython.locals(size=cython.longlong)
    cpdef _put_over(self, list payloads)
    @cython.locals(payload=bytes, slot=cython.longlong, head=cython.longlong)
    cpdef int take(self) except -1
    cdef long long _more_slots(self) except -1
    cpdef bint _refill(self) except -1
    @cython.locals(base=cython.p_uchar, message_id=cython.longlong)
    cdef int _view(self, bytes payload) except -1
    cpdef bytes data(self)
    cpdef int point_at(self, long long lane, long long place) except -1
    @cython.locals(number=cython.longlong)
    cpdef int done(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef long long backend_depth(self) except -1
    cpdef _forget(self)
    cpdef _tell(self)
    @cython.locals(slot=cython.longlong)
    cpdef long long keep(self, bytes payload) except -1

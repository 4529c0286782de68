cimport cython

from penstock.delivery.overflow cimport Overflow
from penstock.disk.runs cimport Run, RunQueue
from penstock.disk.stream cimport MessageView


cdef class Source(MessageView):
    cdef public long long place, lane

    cpdef int take(self) except -1
    cpdef int point_at(self, long long lane, long long place) except -1
    cpdef int done(self, long long lane, long long place) except -1
    cpdef int detach(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef int full(self) except -1
    cpdef long long backend_depth(self) except -1


cdef class MemorySource(Source):
    cdef public long long limit, dropped
    cdef readonly Overflow overflow
    cdef RunQueue _waits
    cdef object _viewed
    cdef list _slots, _done, _served
    cdef Run _passing
    cdef long long _free, _stored, _done_at, _done_count
    cdef long long[::1] _at, _next, _number

    @cython.locals(run=Run)
    cpdef int put(self, list payloads) except -1
    @cython.locals(room=cython.longlong, overflow=Overflow, rest=Run, fits=Run)
    cpdef int put_run(self, object buffer, long long at, long long end, long long count) except -1
    @cython.locals(overflow=Overflow)
    cpdef long long spare(self) noexcept
    @cython.locals(overflow=Overflow)
    cpdef long long spare_bytes(self) noexcept
    cpdef int push(self, bytes payload) except -1
    cpdef long long waiting(self) noexcept
    cpdef bytes oldest(self)
    @cython.locals(waits=RunQueue, slot=cython.longlong, at=cython.longlong)
    cpdef int take(self) except -1
    @cython.locals(run=Run, source=MemorySource)
    cpdef long long pass_on(self, list to, long long limit) except -1
    cdef long long _more_slots(self) except -1
    @cython.locals(taken=Run)
    cpdef bint _refill(self) except -1
    @cython.locals(base=cython.p_uchar, size=cython.longlong, message_id=cython.longlong)
    cdef int _point(self, object buffer, long long at) except -1
    cpdef bytes data(self)
    cpdef lend(self)
    cpdef int point_at(self, long long lane, long long place) except -1
    @cython.locals(number=cython.longlong)
    cpdef int done(self, long long lane, long long place) except -1
    cdef int _note_done(self, long long number) except -1
    cpdef _tell(self)
    @cython.locals(own=Run)
    cpdef int detach(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef long long backend_depth(self) except -1
    cpdef _forget(self)
    @cython.locals(slot=cython.longlong)
    cpdef long long keep(self, bytes payload) except -1
    @cython.locals(overflow=Overflow)
    cpdef long long to_write(self, long long count) noexcept

cimport cython

from penstock.client.plainsend cimport PlainSend
from penstock.client.sentanswer cimport SentAnswer
from penstock.wire.frames cimport FrameCutter


cdef class TimedSocket:
    cdef readonly object _socket
    cdef int _fd
    cdef bint _tls, _by_system
    cdef double _patience, _rests_since_s, _broken_since_s
    cdef object _doubt, _queue, _asked

    cdef _use(self, object connection, double timeout_s)
    @cython.locals(deadline=double, at=cython.longlong, size=cython.longlong)
    cpdef _send(self, object data, double timeout_s)
    @cython.locals(part=bytes)
    cpdef bytes _some(self, long long most, double deadline, int flags)
    @cython.locals(left=double)
    cdef _wait_until(self, double deadline)
    cdef _wait_at_most(self, double seconds)
    cdef _begin(self, object queue)
    @cython.locals(now_s=double)
    cdef _look_at_times(self, double deadline)
    cdef _look(self, double deadline)
    cpdef rest(self)
    cpdef double has_rested(self)
    cpdef bint is_quiet(self) except -1
    cpdef close(self)


cdef class Line(TimedSocket):
    cdef object _security
    cdef str _address
    cdef bint _signs, _short
    cdef bytes _rest
    cdef double _heard_s
    cdef SentAnswer _answer
    cdef FrameCutter _cutter

    @cython.locals(deadline=double, data=bytes, cutter=FrameCutter, begin=cython.longlong)
    cpdef object store(self, PlainSend send, double timeout_s, object queue)
    cpdef _write(self, object frame, int code, double timeout_s)
    @cython.locals(cutter=FrameCutter, data=bytes, begin=cython.longlong)
    cpdef tuple _frame(self, double deadline)
    @cython.locals(cutter=FrameCutter, data=bytes)
    cdef bytes _short_frame(self, double deadline)
    cpdef bytes _exactly(self, long long size, double deadline)
    cpdef bint is_quiet(self) except -1

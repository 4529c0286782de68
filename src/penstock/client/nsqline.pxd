cimport cython

from penstock.client.line cimport TimedSocket
from penstock.client.nsqframes cimport FrameParser


cdef class NsqLine(TimedSocket):
    cdef object _address
    cdef FrameParser _parser

    @cython.locals(deadline=double, data=bytes)
    cpdef bytes call(self, bytes command, double timeout_s, object queue=*)

cimport cython

from penstock.wire.frames cimport FrameCutter
from penstock.wire.header cimport HeaderScan
from penstock.wire.outbox cimport Outbox


cdef class RemotingSession:
    cdef public object server, wake, rights, acting, limits
    cdef object _met, _met_among
    cdef public str remote, id, certificate
    cdef public Outbox out
    cdef public HeaderScan scan
    cdef FrameCutter cutter
    cdef public long long need, opaque_now, header_max, answers_max, parked_bytes
    cdef public int serialize
    cdef public bint oneway, closed, closing, full, parked
    cdef public dict _pending
    cdef public long long _opaque
    cdef unsigned char *base

    @cython.locals(base=cython.p_uchar, pos=cython.longlong, cutter=FrameCutter)
    cpdef long long feed(self, object owner, long long total) except -1
    cdef frame(self, int kind, long long header, long long size, long long end)
    cdef bytes cut(self, long long at, long long n)
    cpdef refuse_header(self, int kind, bytes header)
    cpdef decode(self, int kind, bytes header, bytes body)
    cpdef cold(self, int kind, bytes header, bytes body)
    cpdef identify(self, request)
    cpdef act_as(self, user)
    cpdef bytes take(self)
    cpdef answer(self, int code, remark, ext=*)
    cpdef refuse(self, int code, str remark)

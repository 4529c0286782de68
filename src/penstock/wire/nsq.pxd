cimport cython

from penstock.wire.outbox cimport Outbox


@cython.locals(end=cython.longlong, base=cython.p_uchar)
cdef int put_head(Outbox out, long long stamp_ns, long long attempts, long long message_id, long long length, long long room) except -1

cdef int put_message(Outbox out, long long stamp_ns, long long attempts, long long message_id, const unsigned char *body, long long at, long long length) except -1

cdef int put_fresh(unsigned char *to, long long tp, long long stamp_ns, long long message_id, const unsigned char *body, long long at, long long length) except -1

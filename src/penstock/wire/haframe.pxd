cimport cython

cdef bytes _fixed_of


@cython.final
@cython.freelist(8)
cdef class Head:
    cdef readonly long long kind, flags, entries, epoch, fixed, variable, end


@cython.final
@cython.freelist(8)
cdef class Positions:
    cdef readonly long long position, written, confirmed, confirmed_flushed, begin


@cython.final
@cython.freelist(8)
cdef class Ack:
    cdef readonly long long written, flushed, dispatched, free


@cython.locals(b=cython.p_uchar, kind=cython.longlong, length=cython.longlong, fixed=cython.longlong, known=cython.bint, at=cython.longlong,
               told=cython.longlong, flags=cython.longlong, entries=cython.longlong, epoch=cython.longlong)
cpdef tuple read_head(data, long long pos, long long total)
@cython.locals(n=cython.longlong, frame=bytearray)
cpdef bytes head(long long kind, long long epoch, bytes fixed, long long size, long long flags, long long count)
cdef void _finish(unsigned char *b, long long kind, long long flags, long long count, long long fixed, long long size, long long epoch) noexcept
cdef void _put_positions(unsigned char *b, Positions told) noexcept
@cython.locals(frame=bytearray, b=cython.p_uchar)
cpdef bytes data_head(long long epoch, Positions positions, long long count, long long size, long long flags)
@cython.locals(b=cython.p_uchar)
cpdef Positions read_positions(data, long long pos)
@cython.locals(frame=bytearray, b=cython.p_uchar)
cpdef bytes ack(long long epoch, Ack told, long long flags=*)
@cython.locals(b=cython.p_uchar)
cpdef Ack read_ack(data, long long pos)

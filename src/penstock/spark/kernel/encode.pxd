cimport cython


@cython.locals(o=cython.p_uchar, d=cython.p_uchar, p=cython.longlong, n=cython.longlong, row=cython.longlong, start=cython.longlong,
               body=cython.longlong, size=cython.longlong)
cpdef long long heads(unsigned char[::1] out, long long[::1] at, const long long[::1] rows, const unsigned char[::1] data,
                      const long long[::1] offsets, const long long[::1] sizes) except -1

@cython.locals(o=cython.p_uchar, d=cython.p_uchar, x=cython.p_uchar, p=cython.longlong, n=cython.longlong, row=cython.longlong,
               start=cython.longlong, size=cython.longlong, lead=cython.longlong)
cpdef int texts(unsigned char[::1] out, long long[::1] at, unsigned char[::1] begun, const long long[::1] rows, bytes prefix,
                const unsigned char[::1] data, const long long[::1] offsets, const unsigned char[::1] valid) except -1

@cython.locals(d=cython.p_uchar, row=cython.longlong, h=cython.longlong)
cpdef int spread(long long[::1] out, long long count, const unsigned char[::1] data, const long long[::1] offsets,
                 const unsigned char[::1] valid) except -1

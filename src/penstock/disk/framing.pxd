cimport cython

from penstock.disk.runs cimport Run


@cython.locals(run=Run, numbers=cython.ulonglong[::1], count=cython.longlong, p=cython.longlong, n=cython.longlong, length=cython.longlong, start=cython.ulonglong)
cpdef object weigh(object runs, long long at, long long least)

@cython.locals(numbers=cython.ulonglong[::1], n=cython.longlong)
cpdef bint rise(object entries) except -1

@cython.locals(b=cython.p_uchar, numbers=cython.ulonglong[::1], entry=cython.ulonglong, start=cython.longlong, crc=cython.longlong, first=cython.longlong, begin=cython.longlong, count=cython.longlong, n=cython.longlong, length=cython.longlong, stop=cython.longlong)
cpdef Run cut(bytes chunk, long long chunk_at, long long room, long long at, object entries, long long least, long long most)

cimport cython


@cython.locals(count=cython.longlong, total=cython.longlong, to=cython.p_uchar, entries_at=cython.p_uchar, p=cython.longlong, n=cython.longlong, length=cython.longlong, payload=bytes)
cpdef tuple frame(object payloads, long long at)

@cython.locals(total=cython.longlong, least=cython.longlong, length=cython.longlong, payload=bytes)
cpdef tuple weigh(object payloads)

@cython.locals(b=cython.p_uchar, entries_at=cython.p_uchar, begin=cython.longlong, count=cython.longlong, n=cython.longlong, start=cython.longlong, length=cython.longlong, stop=cython.longlong)
cpdef list cut(bytes chunk, long long chunk_at, long long room, long long at, object entries, long long least, long long most)

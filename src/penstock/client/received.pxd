cimport cython


@cython.final
cdef class RecordCutter:
    cdef bytes owner
    cdef object broker, topic, born, store, born_ms, store_ms
    cdef const unsigned char *base
    # where the parts of the record found last lie, and how long they are
    cdef long long stored, tried, body, body_bytes, name, name_bytes, properties_bytes
    # the same of what `topic`, `born` and `store` were made of
    cdef long long topic_at, topic_bytes, born_at, born_bytes, store_at, store_bytes

    @cython.locals(found=list, every=cython.bint, p=cython.longlong, end=cython.longlong, size=cython.longlong, properties=dict)
    cpdef list cut(self, long long first, frozenset tags)
    @cython.locals(size=cython.longlong, magic=cython.longlong, flags=cython.longlong, end=cython.longlong, at=cython.longlong, length=cython.longlong)
    cdef long long _find(self, long long p, long long left)
    @cython.locals(flags=cython.longlong, body=bytes)
    cdef object _message(self, long long p, long long size, dict properties)
    @cython.locals(at=cython.longlong, size=cython.longlong, none=cython.bint)
    cdef int _share(self, long long p) except -1


cpdef list cut_records(bytes records, object broker, long long first, frozenset tags)
@cython.locals(found=dict, stop=cython.longlong, cut=cython.longlong)
cdef dict _properties(const unsigned char *base, long long p, long long end)
@cython.locals(word=cython.longlong)
cdef object _name(const unsigned char *base, long long p, long long n)
cdef bytes piece(const unsigned char *base, long long p, long long n)
cdef object text(const unsigned char *base, long long p, long long n)

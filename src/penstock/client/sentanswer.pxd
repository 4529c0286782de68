cimport cython

# The numbers of an answer, the texts of its `extFields`, and those themselves.
cdef enum Member:
    CODE = 0
    FLAG = 1
    OPAQUE = 2
    MSG_ID = 3
    FIRST_TEXT = 3
    QUEUE_ID = 4
    QUEUE_OFFSET = 5
    TRANSACTION_ID = 6
    EXT_FIELDS = 7
    END = 8
    NAME_WIDTH = 16


@cython.final
cdef class SentAnswer:
    cdef readonly long long code, flag, opaque, queue_id, queue_offset
    cdef unsigned char *_names
    cdef unsigned char *_base
    cdef bytes _data
    cdef long long _seen
    cdef long long _at[8]
    cdef long long _size[8]

    @cython.locals(known=cython.bint)
    cpdef bint read(self, bytes data, long long begin, long long end) except -1
    @cython.locals(p=cython.longlong, n=cython.longlong, value=cython.longlong, i=cython.longlong, digit=cython.longlong)
    cdef long long _number(self, int member) noexcept
    cpdef object msg_id(self)
    cpdef object transaction_id(self)
    cdef object _text(self, int member)
    @cython.locals(base="unsigned char *", name=cython.longlong, member=cython.int, start=cython.longlong, letter=cython.int)
    cdef long long _object(self, long long p, long long end, bint ext) noexcept
    @cython.locals(base="unsigned char *", letter=cython.int)
    cdef long long _text_end(self, long long p, long long end) noexcept
    @cython.locals(member=cython.int, at=cython.longlong)
    cdef int _member(self, long long p, long long n, bint ext) noexcept
    cdef void _keep(self, int member, long long at, long long end) noexcept

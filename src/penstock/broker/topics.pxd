cimport cython

@cython.final
cdef class LogTopic:
    cdef public bytes name
    cdef public long long read_queues, write_queues, perm, level, sys_flag, keep_ms, keep_bytes
    cdef public bint order, open, protected, is_retry, traced, owed
    cdef public str filter_type
    cdef public list queues
    cdef public long long put_count, put_bytes, stored_before

    cpdef bint writable(self) noexcept
    cpdef void count(self, long long messages, long long size) noexcept

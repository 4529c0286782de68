cimport cython

from penstock.log.consumequeue cimport ConsumeQueue


@cython.final
cdef class Draft:
    cdef unsigned char *body
    cdef unsigned char *props
    cdef unsigned char *born
    cdef unsigned char *topic
    cdef unsigned char *tail
    cdef object _body_object
    cdef object _tail_object
    cdef object _props_object
    cdef object _born_object
    cdef public long long body_pos
    cdef public long long body_len
    cdef public long long props_pos
    cdef public long long props_len
    cdef public long long tail_pos
    cdef public long long tail_len
    cdef public long long all_props_len
    cdef public long long topic_pos
    cdef public long long topic_len
    cdef public int born_len
    cdef public ConsumeQueue queue
    cdef public int queue_id
    cdef public long long flag
    cdef public long long sys_flag
    cdef public long long born_ms
    cdef public long long reconsume_times
    cdef public long long prepared
    cdef public long long tags_code
    cdef public long long uniq_pos
    cdef public long long uniq_len
    cdef public long long keys_pos
    cdef public long long keys_len
    cdef public long long seq_pos
    cdef public long long seq_len
    cdef public bint indexed
    cdef public long long physical
    cdef public long long queue_offset
    cdef public long long store_ms
    cdef public long long size

    @cython.locals(p=cython.longlong, end=cython.longlong, eq=cython.longlong, stop=cython.longlong, n=cython.longlong, v=cython.longlong, word=cython.longlong)
    cpdef void scan(self)
    @cython.locals(b_pos=cython.longlong, tl=cython.longlong)
    cdef void load(self, unsigned char *b, long long at)

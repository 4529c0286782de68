cimport cython

from penstock.log.store cimport LogStore


@cython.final
cdef class Member:
    cdef readonly str node, address, unfit, why_not, unstaged, keeps_not
    cdef readonly long long broker_id, written, flushed, dispatched, free, loss, caught_up_ms
    cdef readonly bint takes, in_sync, fit, cannot_stage
    cdef long long _heard_ms, _end_then
    cdef bint _news

    cpdef heard(self, long long written, long long flushed, long long end, long long mono_ms)
    cpdef tell(self, long long dispatched, long long free)
    cpdef note_staged(self, str lacks, bint cannot)
    @cython.locals(news=cython.bint)
    cpdef bint take_news(self) noexcept
    cpdef judge(self, bint in_sync, str why_not)
    cpdef find(self, str why_not)


@cython.final
cdef class Copies:
    cdef object _config
    cdef LogStore _store
    cdef readonly bint following, leads, ever
    cdef readonly dict members, bare
    cdef readonly long long acknowledged, acknowledged_flushed, confirmed, confirmed_flushed, due_ms, number, master_written, heard_ms
    cdef readonly long long bad_blocks, version, inherited
    cdef readonly object roll, replica, engine_says, waiting, waiting_flushed
    cdef dict _orphan
    cdef readonly str master
    cdef list _wholes
    cdef bint _holds
    cdef long long _holds_until_ms, _holds_to, _holds_flushed, _holds_changes

    @cython.locals(whole=cython.longlong, begin=cython.longlong, end=cython.longlong)
    cdef long long _whole(self, long long position) except *
    cpdef look_at(self, long long mono_ms)
    cpdef rest(self)
    cpdef hear(self, str master, long long written, long long mono_ms)
    cpdef told(self, long long confirmed, long long confirmed_flushed)
    cdef _tell(self)
    @cython.locals(store=LogStore, end=cython.longlong, flushed=cython.longlong, confirmed=cython.longlong, confirmed_flushed=cython.longlong,
                   member=Member, holds=cython.bint, settled=cython.bint, noted=cython.bint, counted=list, whole=cython.longlong,
                   caught_up_ms=cython.longlong, written=cython.longlong)
    cpdef settle(self, long long mono_ms)
    @cython.locals(member=Member, written=cython.longlong, all_flushed=cython.longlong)
    cdef _raise_to(self, list counted, long long end, long long flushed)
    cpdef release(self)
    @cython.locals(lag=cython.longlong, why=str)
    cdef _judge(self, Member member, long long end, long long mono_ms)

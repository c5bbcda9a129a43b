# SPDX-License-Identifier: Apache-2.0
"""Groups: the ranks of a communicator with their buffers."""
from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from . import _structs, bindings
from ._config import Configured, ptr_of
from .allocator import AllocConfig
from .enums import Algorithm, Layout, NcclDataType, OverflowPolicy, ZeroCopyMode
from .errors import NcclInvalid
from .handle import Handle, HandleConfig, LayoutInfo
from .stream import hold, stream_ptr
from .tensor import Tensor

__all__ = ['Group', 'GroupConfig', 'NetCounts', 'NetTimes', 'ReachCounts']


@dataclass(kw_only=True)
class GroupConfig(Configured):
    """Equal on all ranks, except alloc. 0 and AUTO: the library chooses.

    num_experts: a multiple of the number of ranks. max_recv_tokens_per_rank: HT, rows of outputs; 0 = eager.
    max_token_bytes: of a row with its scales. rdma_buffer_size: LL, bytes of the window. enable_mask: LL, a rank that does
    not answer within timeout_ns is masked and the others continue. num_topk: the largest of any handle.
    dispatch_num_sms, combine_num_sms: in place of max_num_sms.
    """
    _STRUCT = _structs.GroupConfig
    algorithm: Algorithm = Algorithm.LOW_LATENCY
    num_experts: int = 0
    max_dispatch_tokens_per_rank: int = 0
    max_recv_tokens_per_rank: int = 0
    max_token_bytes: int = 0
    rdma_buffer_size: int = 0
    num_qp_per_rank: int = 0
    num_channels: int = 0
    max_num_sms: int = 0
    alloc: AllocConfig = field(default_factory=AllocConfig)
    enable_mask: bool = False
    timeout_ns: int = 0
    zero_copy: ZeroCopyMode = ZeroCopyMode.AUTO
    overflow_policy: OverflowPolicy = OverflowPolicy.AUTO
    num_topk: int = 0
    dispatch_num_sms: int = 0
    combine_num_sms: int = 0


@dataclass(frozen=True)
class NetCounts:
    """What this rank's engines have given to the transport; all zero in a group of one node."""
    puts: int
    bytes: int
    signals: int
    commands: int
    joined: int


@dataclass(frozen=True)
class NetTimes:
    """The group's transport ('' in a group of one node), and sums of times in ns: see anyEpNetTimes_t."""
    net: str
    device: str
    ordered: bool
    direct: bool
    operations: int
    popped: int
    given: int
    completed: int
    ended: int
    arrivals: int
    arrived: int


@dataclass(frozen=True)
class ReachCounts:
    """How this rank's HT operations accessed the tensors of other ranks: see anyEpReachCounts_t."""
    direct: int
    staged: int
    mapped: int
    peak: int
    unmapped: int
    refused: int
    evicted: int
    crossedDispatch: int
    crossedCombine: int


def _result(kind: Any, native: _structs.Native) -> Any:
    """A dataclass of what the library has written, by the names of the members."""
    values = {}
    for member in fields(kind):
        value = getattr(native, member.name)
        if isinstance(value, bytes):
            value = value.decode(errors='replace')
        values[member.name] = bool(value) if member.type == 'bool' else value
    return kind(**values)


def _mask_ptr(mask: Any) -> int:
    if not isinstance(mask, Tensor):
        return ptr_of(mask)
    if mask.datatype != NcclDataType.INT32:
        raise NcclInvalid(f'masks are int32, not {mask.datatype.name}')
    return mask.data


class Group:
    """An ncclEpGroup_t. Nothing destroys it but destroy(), which is collective and comes after that of its handles."""

    def __init__(self, ptr: int):
        self._ptr = int(ptr)
        self._keep: Any = None

    @classmethod
    def create(cls, comm: Any, config: GroupConfig) -> Group:
        """Collective over comm: a Communicator, or anything whose `.ptr` is an ncclComm_t. It must outlive the group."""
        group = cls(bindings.create_group(ptr_of(comm), ptr_of(config, GroupConfig)))
        group._keep = (comm, config)
        return group

    def _live(self, operation: str) -> int:
        if not self._ptr:
            raise NcclInvalid(f'Cannot {operation}: Group is not initialized or has been destroyed')
        return self._ptr

    @property
    def ptr(self) -> int:
        """The ncclEpGroup_t."""
        return self._live('access ptr')

    def create_handle(self, layout: Layout, topk_idx: Tensor, *, layout_info: LayoutInfo | None = None,
                      config: HandleConfig | None = None, stream: Any) -> Handle:
        """A handle with its first routing; see Handle.update."""
        handle = Handle(bindings.create_handle(self._live('create handle'), int(layout), ptr_of(topk_idx, Tensor),
                                               ptr_of(layout_info, LayoutInfo), ptr_of(config, HandleConfig),
                                               stream_ptr(stream)))
        hold(stream, topk_idx, layout_info)
        handle._routing = topk_idx
        return handle

    def handle_mem_size(self, layout: Layout, num_topk: int, *, config: HandleConfig | None = None) -> int:
        """Bytes of handle_mem that init_handle needs. num_topk -1 (HT): the group's, else the number of experts."""
        return bindings.handle_mem_size(self._live('get handle memory size'), int(layout), ptr_of(config, HandleConfig),
                                        num_topk)

    def init_handle(self, layout: Layout, num_topk: int, *, config: HandleConfig | None = None,
                    handle_mem: Tensor | None = None) -> Handle:
        """A handle without routing. handle_mem: None, or uint8 of at least handle_mem_size() that outlives the handle.

        In HT it holds the routing: a second handle over it may run backward passes without an update of its own.
        """
        handle = Handle(bindings.init_handle(self._live('init handle'), int(layout), ptr_of(config, HandleConfig), num_topk,
                                             ptr_of(handle_mem, Tensor)))
        handle._keep = handle_mem
        return handle

    def destroy(self) -> None:
        """Collective; a second call does nothing."""
        if self._ptr:
            bindings.group_destroy(self._ptr)
            self._ptr, self._keep = 0, None

    # ---- masks: one int32 per rank, 1 active, 0 masked ----

    def mask_query(self, mask: Any, stream: Any = None) -> None:
        """Writes the masks to device memory: an address, or a Tensor of int32 [R]."""
        bindings.mask_query(self._live('query mask'), _mask_ptr(mask), stream_ptr(stream))
        hold(stream, mask)

    def mask_update(self, mask: Any, stream: Any = None) -> None:
        """Takes the masks from host memory: an address, or a Tensor of int32 [R]."""
        bindings.mask_update(self._live('update mask'), _mask_ptr(mask), stream_ptr(stream))
        hold(stream, mask)

    def mask_clean(self, stream: Any = None) -> None:
        """Collective over the ranks that are left: a barrier, then all masks are 1 again."""
        bindings.mask_clean(self._live('clean mask'), stream_ptr(stream))

    # ---- errors after a call has returned ----

    def get_async_error(self) -> int:
        """0, or a value of AsyncError."""
        return bindings.get_async_error(self._live('get async error'))

    def error_clear(self) -> None:
        """Forgets the async error; after a timeout or a lost rank without enable_mask that is an error itself."""
        bindings.error_clear(self._live('clear error'))

    # ---- AnyEP's extensions ----

    def window_bytes(self) -> int:
        """Bytes of the group's windows on this rank."""
        return bindings.group_window_bytes(self._live('get window bytes'))

    def net_counts(self) -> NetCounts:
        """Puts, bytes and signals that went to the transport."""
        return _result(NetCounts, bindings.group_net_counts(self._live('get net counts')))

    def net_times(self) -> NetTimes:
        """Waits for what ended operations have sent. For measurements: the first call switches the clocks on."""
        return _result(NetTimes, bindings.group_net_times(self._live('get net times')))

    def barrier(self, stream: Any = None) -> None:
        """Collective, on the stream: what follows runs after everything that all ranks put in theirs before. Masked ranks are
        not waited for."""
        bindings.group_barrier(self._live('wait at a barrier'), stream_ptr(stream))

    def dump(self, why: str) -> None:
        """Writes what this rank is doing to NCCL_EP_DUMP_DIR, from any thread; ep_info --dump joins the ranks' files."""
        bindings.group_dump(self._live('dump'), why)

    def reach_counts(self) -> ReachCounts:
        """Which tensors of other ranks were accessed in place, and which were staged."""
        return _result(ReachCounts, bindings.group_reach_counts(self._live('get reach counts')))

    def _nranks(self, nranks: int | None) -> int:
        if nranks is None:
            comm = self._keep[0] if self._keep else None
            nranks = getattr(comm, 'nranks', None)
            if nranks is None:
                raise NcclInvalid('nranks is needed: the communicator of this group does not tell')
        return nranks

    def nodes(self, nranks: int | None = None) -> list[int]:
        """The node of each rank. nranks: only for a group that was not made by create() with a Communicator."""
        ptr = self._live('get nodes')
        return bindings.group_nodes(ptr, self._nranks(nranks))

    def all_gather(self, mine: bytes, nranks: int | None = None) -> list[bytes]:
        """Collective, on the host: the bytes of every rank, equally many, between operations. nranks: as for nodes()."""
        ptr = self._live('all-gather')
        return bindings.group_all_gather(ptr, mine, self._nranks(nranks))

    def __repr__(self) -> str:
        return f'<Group ptr={self._ptr:#x}>' if self._ptr else '<Group destroyed>'

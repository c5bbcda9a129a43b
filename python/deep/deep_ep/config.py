# SPDX-License-Identifier: Apache-2.0
"""Tuning parameters of the high-throughput calls."""
from __future__ import annotations

__all__ = ['Config']

_NODE = 8        # ranks of a node, by which the original sizes its buffers
_META_BYTES = 256  # of a row, besides the token: ids, weights and scales


class Config:
    """DeepEP's parameters. num_sms is how many multiprocessors a call may use. The library below sizes its own buffers, so
    that any other value works; the hints grow with them."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256, num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256):
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def _hint(self, peers: int, tokens: int, hidden_bytes: int) -> int:
        channels = max(self.num_sms // 2, 1)
        return -(-channels * peers * tokens * (hidden_bytes + _META_BYTES) // 128) * 128

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """num_nvl_bytes for a Buffer, of any number of ranks."""
        return self._hint(min(num_ranks, _NODE), self.num_max_nvl_chunked_recv_tokens, hidden_bytes)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """num_rdma_bytes for a Buffer; 0 for as many ranks as a node has."""
        if num_ranks <= _NODE:
            return 0
        return 2 * self._hint(-(-num_ranks // _NODE), self.num_max_rdma_chunked_recv_tokens, hidden_bytes)

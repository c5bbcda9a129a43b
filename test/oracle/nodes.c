/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/nodes.h"

#include <stddef.h>
#include <stdio.h>

/* The node of a rank, and its first rank. */
static int node_of(const struct far_nodes *nodes, int rank, int *first)
{
	int i = 0, node = 0;

	*first = 0;
	if (nodes->dealt || !nodes->size[0]) {
		*first = nodes->dealt ? rank % nodes->dealt : 0;
		return *first;
	}
	for (; rank >= *first + nodes->size[i]; node++) {
		*first += nodes->size[i];
		i += i + 1 < FAR_SIZES && nodes->size[i + 1];
	}
	return node;
}

int far_node(const struct far_nodes *nodes, int rank)
{
	int first;

	return node_of(nodes, rank, &first);
}

int far_local(const struct far_nodes *nodes, int rank)
{
	int first;

	node_of(nodes, rank, &first);
	return nodes->dealt ? rank / nodes->dealt : rank - first;
}

int far_count(const struct far_nodes *nodes, int ranks)
{
	if (nodes->dealt)
		return nodes->dealt < ranks ? nodes->dealt : ranks;
	return far_node(nodes, ranks - 1) + 1;
}

int far_relay(const struct far_nodes *nodes, int ranks, int src, int node)
{
	int size = 0, index;

	for (int r = 0; r < ranks; r++)
		size += far_node(nodes, r) == node;
	index = far_local(nodes, src) % size;
	for (int r = 0;; r++)
		if (far_node(nodes, r) == node && !index--)
			return r;
}

bool far_from_map(const int *node, int ranks, struct far_nodes *out)
{
	int nodes = 0, same = 1;

	*out = (struct far_nodes){ 0 };
	for (int r = 0; r < ranks; r++)
		nodes = node[r] >= nodes ? node[r] + 1 : nodes;
	if (nodes == 1)
		return true;
	for (int first = 0, i = 0, size = 0; first < ranks; first += size) {
		for (size = 0; first + size < ranks && node[first + size] == node[first]; size++)
			;
		if (i && out->size[i - 1] == size)
			continue;
		if (i == FAR_SIZES || size > UINT8_MAX)
			break;
		out->size[i++] = (uint8_t)size;
	}
	for (int r = 0; r < ranks; r++)
		same &= far_node(out, r) == node[r];
	if (same)
		return true;
	*out = (struct far_nodes){ .dealt = (uint8_t)(nodes <= UINT8_MAX ? nodes : 0) };
	for (int r = 0; r < ranks; r++)
		if (!out->dealt || far_node(out, r) != node[r])
			return false;
	return true;
}

void far_text(const struct far_nodes *nodes, char out[FAR_TEXT_MAX])
{
	size_t n = (size_t)snprintf(out, FAR_TEXT_MAX, "%d", nodes->size[0]);

	for (int i = 1; i < FAR_SIZES && nodes->size[i]; i++)
		n += (size_t)snprintf(out + n, FAR_TEXT_MAX - n, ",%d", nodes->size[i]);
}

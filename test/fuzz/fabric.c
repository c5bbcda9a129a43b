/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of fabric, over a provider that only reads the addresses it is given. */
#include "net/fabric/meet.c"

#include "fuzz.h"

#define RANKS 3
#define CONTEXTS 2

static struct ofi_fabric_attr fabric_attr = { .prov_name = (char *)"fuzz" };
static struct ofi_info info = { .fabric_attr = &fabric_attr };
static const struct fab_profile profile = { .name = "fuzz" };
static const struct fab_dev dev = { .info = &info, .profile = &profile };

static int av_insert(struct ofi_av *av, const void *addr, size_t count, uint64_t *out, uint64_t flags, void *context)
{
	uint8_t copy[FAB_ADDR];

	(void)av;
	(void)flags;
	(void)context;
	memcpy(copy, addr, sizeof(copy));
	MUST(strnlen((const char *)copy, sizeof(copy)) < sizeof(copy));
	*out = copy[0];
	return copy[1] == 0xff ? -22 : (int)count;
}

/* Instead of libfabric. */
const struct ofi_api *fab_api(void)
{
	return NULL;
}

uint32_t fab_version(void)
{
	return 0;
}

int fab_fail(const struct fab_dev *device, ssize_t rc, const char *what)
{
	(void)device;
	(void)what;
	return (int)rc;
}

static struct ofi_ops_av av_ops = { .insert = av_insert };
static struct ofi_av av = { .ops = &av_ops };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

struct scene {
	struct fab_comm comm;
	struct fab_ctx ctx[CONTEXTS];
	struct fab_conn conns[CONTEXTS][RANKS];
	uint64_t kin[RANKS];
	struct fab_listener listener;
	struct ep_watched watched[RANKS];
	struct fab_hello *page;
	struct fab_mr *mr;
};

static void scene_open(struct scene *s)
{
	memset(s, 0, sizeof(*s));
	s->page = calloc(2 * RANKS + 1, sizeof(*s->page));
	s->mr = calloc(1, sizeof(*s->mr) + RANKS * sizeof(s->mr->far[0]));
	MUST(s->page && s->mr);
	MUST(!ep_base_comm_open(&s->comm.base, "fabric", RANKS));
	s->comm.base.contexts = CONTEXTS;
	s->comm.dev = &dev;
	s->comm.nonce = 7;
	s->comm.page = s->page;
	s->comm.page_mr = s->mr;
	s->comm.kin = s->kin;
	s->comm.watch = (struct ep_watch){ .epoll = -1, .nranks = RANKS, .rank = s->watched };
	s->listener.comm = &s->comm;
	for (int i = 0; i < CONTEXTS; i++) {
		s->ctx[i] = (struct fab_ctx){ .comm = &s->comm, .dev = &dev, .av = &av, .conns = s->conns[i] };
		s->ctx[i].addr_len = 28;
		s->comm.ctx[i] = &s->ctx[i];
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	uint8_t *handles = calloc(RANKS, NCCL_EP_NET_HANDLE_SIZE);
	struct fab_handle h = { .magic = magic_of(&dev), .nranks = RANKS, .contexts = CONTEXTS };
	struct scene s;

	MUST(handles);
	scene_open(&s);
	for (int i = 0; i < CONTEXTS; i++)
		h.addr_len[i] = 28;
	for (int r = 0; r < RANKS; r++) {
		memcpy(handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, &h, sizeof(h));
		feed_patch(&f, handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, sizeof(h));
	}
	/* Every rank gets a hello with the nonce of its handle, or is absent. */
	if (!meet_begin(&s.listener, handles))
		for (int r = 0; r < RANKS; r++)
			MUST(ep_base_handle_blank(handles, r) ||
			     !memcmp(&s.page[RANKS + r].nonce,
				     handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE + offsetof(struct fab_handle, nonce),
				     8));
	free(handles);
	ep_base_comm_close(&s.comm.base);
	free(s.page);
	free(s.mr);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of verbs, and the datagrams that connect queue pairs, over a NIC that accepts what it is given. */
#include "net/verbs/meet.c"
enum { HANDLE_MAGIC = MAGIC };
#undef MAGIC
#include "net/verbs/ud.c"

#include <errno.h>

#include "fuzz.h"

#define RANKS 3
#define NOTES 4u

/* ---- the NIC ---- */

static uint32_t qp_next;
static int refusals; /* calls until the next is refused; 0: none is */

static bool refused(void)
{
	errno = ENOMEM;
	return refusals && !--refusals;
}

static struct ib_qp *create_qp(struct ib_pd *pd, struct ib_qp_init *init)
{
	struct ib_qp *qp = refused() ? NULL : calloc(1, sizeof(*qp));

	(void)pd;
	(void)init;
	if (qp)
		qp->qp_num = qp_next += 64;
	return qp;
}

static int modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	(void)qp;
	MUST(!(mask & IB_QP_PATH_MTU) || (attr->path_mtu >= IB_MTU_256 && attr->path_mtu <= IB_MTU_4096));
	MUST(!(mask & IB_QP_DEST_QPN) || (attr->dest_qp_num < 1 << 24 && attr->rq_psn < 1 << 24));
	return refused() ? ENOMEM : 0;
}

static int destroy_qp(struct ib_qp *qp)
{
	free(qp);
	return 0;
}

static struct ib_mr *reg_mr(struct ib_pd *pd, void *addr, size_t length, int access)
{
	struct ib_mr *mr = refused() ? NULL : calloc(1, sizeof(*mr));

	(void)pd;
	(void)length;
	(void)access;
	if (mr)
		mr->addr = addr;
	return mr;
}

static int dereg_mr(struct ib_mr *mr)
{
	free(mr);
	return 0;
}

static void *create_ah(struct ib_pd *pd, struct ib_ah_attr *attr)
{
	(void)pd;
	(void)attr;
	return refused() ? NULL : malloc(1);
}

static int destroy_ah(void *ah)
{
	free(ah);
	return 0;
}

static int post_send(struct ib_qp *qp, struct ib_send_wr *wr, struct ib_send_wr **bad)
{
	(void)qp;
	(void)wr;
	(void)bad;
	return refused();
}

static int post_recv(struct ib_qp *qp, struct ib_recv_wr *wr, struct ib_recv_wr **bad)
{
	(void)qp;
	(void)wr;
	(void)bad;
	return 0;
}

static int poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	return 0;
}

const struct ib_api *vb_api(void)
{
	static const struct ib_api api = {
		.create_qp = create_qp,
		.modify_qp = modify_qp,
		.destroy_qp = destroy_qp,
		.reg_mr = reg_mr,
		.dereg_mr = dereg_mr,
		.create_ah = create_ah,
		.destroy_ah = destroy_ah,
	};

	return &api;
}

const char *vb_reason(int error, char *text, size_t n)
{
	snprintf(text, n, "%d", error);
	return text;
}

int vb_fail(const struct vb_dev *dev, int error, const char *what)
{
	(void)dev;
	(void)what;
	return -error;
}

/* ---- the ranks ---- */

static struct ib_context context = { .ops = { .post_send = post_send, .post_recv = post_recv, .poll_cq = poll_cq } };
static struct ib_mr ud_mr;
static struct ib_qp ud_qp;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

struct scene {
	struct vb_dev dev;
	struct vb_comm comm;
	struct vb_ctx ctx;
	struct vb_peer peers[RANKS];
	struct vb_conn conns[RANKS];
	struct ep_watched watched[RANKS];
	struct vb_listener listener;
};

static void scene_open(struct scene *s)
{
	memset(s, 0, sizeof(*s));
	s->dev.attr.max_qp_wr = 64;
	s->dev.attr.max_qp_init_rd_atom = 4;
	MUST(!ep_base_comm_open(&s->comm.base, "verbs", RANKS));
	s->comm.base.contexts = 1;
	s->comm.dev = &s->dev;
	s->comm.qps = VB_QPS;
	s->comm.nonce = 7;
	s->comm.peers = s->peers;
	s->comm.watch = (struct ep_watch){ .epoll = -1, .nranks = RANKS, .rank = s->watched };
	s->comm.ctx[0] = &s->ctx;
	s->listener.comm = &s->comm;
	s->ctx.comm = &s->comm;
	s->ctx.ops = &context.ops;
	s->ctx.conns = s->conns;
	s->ctx.ud = (struct vb_ud){ .qp = &ud_qp, .mr = &ud_mr, .receives = NOTES };
	s->ctx.ud.bytes = calloc(NOTES + VB_NOTES_OUT, SIZE);
	s->ctx.ud.missing = calloc(NOTES, sizeof(*s->ctx.ud.missing));
	MUST(s->ctx.ud.missing && s->ctx.ud.bytes);
	for (int r = 0; r < RANKS; r++)
		s->conns[r] = (struct vb_conn){ .ctx = &s->ctx, .peer = r };
}

static void scene_close(struct scene *s)
{
	refusals = 0;
	for (int r = 0; r < RANKS; r++)
		vb_conn_close(&s->conns[r]);
	if (s->ctx.bytes) {
		free(s->ctx.bytes->addr);
		free(s->ctx.bytes);
	}
	free(s->ctx.qps);
	free(s->ctx.ud.missing);
	free(s->ctx.ud.bytes);
	ep_base_comm_close(&s->comm.base);
}

static void datagram(struct scene *s, struct feed *f)
{
	uint8_t kind = feed_u8(f);
	struct note note = { .magic = MAGIC, .kind = kind & 1 ? NOTE_HELLO : NOTE_BYE, .count = 1 + kind % VB_QPS };
	uint32_t index = feed_u8(f) % (NOTES + 1);

	note.from = feed_u8(f) % RANKS;
	note.mine = s->peers[note.from].handle.nonce;
	note.yours = s->comm.nonce;
	note.got = kind & 2;
	note.done = kind & 4;
	feed_patch(f, &note, sizeof(note));
	memcpy(buffer(&s->ctx.ud, index % NOTES) + HEADER, &note, sizeof(note));
	vb_note_take(&s->ctx, index, kind & 128 ? (uint32_t)feed_number(f) : sizeof(note) + HEADER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	uint8_t *handles = calloc(RANKS, NCCL_EP_NET_HANDLE_SIZE);
	struct scene s;
	void *comm = NULL;

	MUST(handles);
	scene_open(&s);
	qp_next = 0;
	refusals = feed_u8(&f) % 32;
	for (int r = 0; r < RANKS; r++) {
		struct vb_handle h = { .magic = HANDLE_MAGIC, .nranks = RANKS, .mtu = IB_MTU_4096, .contexts = 1 };

		h.nonce = (uint64_t)r + 7;
		h.qps = 1 + feed_u8(&f) % VB_QPS;
		h.reads = 1;
		feed_patch(&f, &h, sizeof(h));
		memcpy(handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, &h, sizeof(h));
	}
	if (!vb_connect(&s.listener, handles, RANKS, 0, &comm))
		for (int i = 0; i < 16 && f.left; i++) {
			datagram(&s, &f);
			s.ctx.ud.gone = s.ctx.ud.sent;
		}
	scene_close(&s);
	free(handles);
	return 0;
}

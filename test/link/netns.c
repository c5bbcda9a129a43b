/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts as network and pid namespaces, two ranks on each, a veth link between them: LL and HT against the oracle,
 * with nodes detected by the library; then the link is cut in the middle of operations. Without masks every rank gets
 * an error in time that names a rank of the other host; with masks each host continues alone. HT's ranks are also dealt
 * to the hosts in turn, so that the order of ranks is not that of nodes.
 *   link_netns [-qv] [-c CASE] [NET]   without NET the library chooses; -q: few cases; -v: every rank's error
 * Needs root, ip and nsenter; exit status 77 without. The namespaces end with their processes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

enum { RANKS = 4, EACH = 2, FATAL = 12, SURE = 30, LOOSE = 60, TIMEOUT_MS = 3000, LATE_MS = 4000 };

enum cut { WHOLE, DOWN, SILENT };

enum kind { EM, RM, EM_MASKS, RM_MASKS, HT_FLAT, HT_EM };

struct job {
	struct rig_cfg cfg;
	struct ht_cfg ht;
	enum kind kind;
	enum cut cut;
	bool verbose;
};

/* On the board. */
struct meet {
	atomic_int host[2], all;
	double cut, told[RANKS]; /* when the link was cut, and when each rank got its error */
};

/* ---- hosts ---- */

static pid_t there; /* holds the other host's namespaces */
static bool dealt;  /* ranks are dealt to the hosts in turn; before the ranks start */

static int host_of(int rank)
{
	return dealt ? rank % 2 : rank / EACH;
}

static int sh(const char *format)
{
	char command[512];

	snprintf(command, sizeof(command), format, (int)there, (int)there);
	return system(command);
}

static int ns_enter(const char *name, int kind)
{
	char path[64];
	int fd, rc;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)there, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	rc = setns(fd, kind);
	close(fd);
	return rc;
}

/* Only a new child enters a pid namespace: its parent stays behind and exits as it does. */
static int host_enter(int seat)
{
	int status = 0;
	pid_t pid;

	if (host_of(seat) == 0)
		return 0;
	if (ns_enter("net", CLONE_NEWNET) || ns_enter("pid_for_children", CLONE_NEWPID) || ns_enter("mnt", CLONE_NEWNS))
		return 1;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return 0;
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		_exit(1);
	if (WIFSIGNALED(status))
		kill(getpid(), WTERMSIG(status));
	_exit(WEXITSTATUS(status));
}

/* The init process of the other host, with a /proc of its own. */
static void host_first(int ready)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL) ||
	    write(ready, "x", 1) != 1)
		_exit(1);
	alarm(300);
	pause();
	_exit(0);
}

static int host_make(void)
{
	int ready[2];
	char c;

	if (pipe2(ready, O_CLOEXEC))
		return -1;
	there = fork();
	if (there == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS))
			_exit(1);
		if (fork() == 0)
			host_first(ready[1]);
		close(ready[1]);
		wait(NULL);
		_exit(0);
	}
	close(ready[1]);
	c = (char)read(ready[0], &c, 1);
	close(ready[0]);
	return there > 0 && c == 1 ? 0 : -1;
}

/* The kernel reports a new link's carrier with up to a second of delay. */
static int hosts_make(void)
{
	if (unshare(CLONE_NEWNET) || system("ip link show >/dev/null 2>&1") || host_make())
		return -1;
	return sh("ip link set lo up && ip link add v0 type veth peer name v1 netns %d && ip link set v0 up && "
		  "ip addr add 10.78.0.1/24 dev v0") ||
	       sh("nsenter -t %d -n sh -c 'ip link set lo up && ip link set v1 up && ip addr add 10.78.0.2/24 dev "
		  "v1'") ||
	       sh("for i in 1 2 3 4 5 6 7 8 9 10; do ip link show v0 | grep -q 'state UP' && exit 0; sleep 0.3; done; "
		  "exit 1");
}

/* ---- ranks ---- */

/* The host sees the link go down. */
static int link_down(int fd)
{
	struct ifreq req = { .ifr_name = "v0" };

	if (ioctl(fd, SIOCGIFFLAGS, &req))
		return -1;
	req.ifr_flags &= ~IFF_UP;
	return ioctl(fd, SIOCSIFFLAGS, &req);
}

/* A static ARP entry with a wrong address: packets to the other host vanish without a reset, those of the other
 * direction still arrive. */
static int link_silence(int fd)
{
	struct arpreq req = { .arp_flags = ATF_PERM | ATF_COM, .arp_dev = "v0" };
	struct sockaddr_in host = { .sin_family = AF_INET };

	inet_pton(AF_INET, "10.78.0.2", &host.sin_addr);
	memcpy(&req.arp_pa, &host, sizeof(host));
	req.arp_ha.sa_family = ARPHRD_ETHER;
	memcpy(req.arp_ha.sa_data, "\x02\0\0\0\0\x99", 6);
	return ioctl(fd, SIOCSARP, &req);
}

struct cutter {
	enum cut cut;
	struct meet *meet;
};

/* By system calls: starting a command takes 0.1 s, which is many rounds. */
static void *cutter_main(void *arg)
{
	const struct cutter *cutter = arg;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

	cutter->meet->cut = world_now();
	rc = cutter->cut == DOWN ? link_down(fd) : link_silence(fd);
	close(fd);
	return (void *)(intptr_t)rc;
}

/* One dispatch and combine, results unchecked. */
static ncclResult_t round_ll(void *arg)
{
	struct rig *rig = arg;
	ncclResult_t rc = rig_dispatch(rig, 0, false);

	return rc == ncclSuccess ? rig_combine(rig, 0, false) : rc;
}

/* The same with Update. */
static ncclResult_t round_ht(void *arg)
{
	struct ht_rig *rig = arg;
	ncclResult_t rc = ht_call(rig, 0, HT_UPDATE, false);

	if (rc == ncclSuccess)
		rc = ht_call(rig, 0, HT_DISPATCH, false);
	return rc == ncclSuccess ? ht_call(rig, 0, HT_COMBINE, false) : rc;
}

/* The link is cut at a random point, but before SURE rounds are over. */
static ncclResult_t rounds_loose(struct seat *seat, const struct job *job, void *rig, int most)
{
	struct cutter cutter = { job->cut, seat_board(seat) };
	ncclResult_t rc = ncclSuccess;
	double end = world_now() + 30;
	pthread_t thread;
	void *failed = NULL;
	bool cutting = false;

	for (int i = 0; rc == ncclSuccess && i < most && world_now() < end; i++) {
		if (i == FATAL && seat_rank(seat) == 0)
			cutting = !pthread_create(&thread, NULL, cutter_main, &cutter);
		if (i == SURE && cutting) {
			pthread_join(thread, &failed);
			cutting = false;
		}
		rc = job->kind < HT_FLAT ? round_ll(rig) : round_ht(rig);
	}
	if (cutting)
		pthread_join(thread, &failed);
	if (failed)
		seat_fail(seat, "the link could not be cut");
	return rc;
}

static bool names_far_rank(const char *text, int rank)
{
	char name[16];

	for (int r = 0; r < RANKS; r++) {
		snprintf(name, sizeof(name), "rank %d", r);
		if (host_of(r) != host_of(rank) && strstr(text, name))
			return true;
	}
	return false;
}

static void lose(struct seat *seat, const struct job *job, void *rig, struct ll_verdict *verdict)
{
	struct meet *meet = seat_board(seat);
	int rank = seat_rank(seat);
	ncclResult_t rc = rounds_loose(seat, job, rig, 1 << 30);
	char text[512];

	meet->told[rank] = world_now();
	snprintf(text, sizeof(text), "%s", anyEpGetLastError());
	if (job->verbose)
		fprintf(stderr, "  rank %d, %.2f s after the cut: %s\n", rank, meet->told[rank] - meet->cut, text);
	ll_wrong(verdict, rc != ncclRemoteError && rc != ncclTimeout, "rank %d: returned %s (%s)", rank,
		 ncclGetErrorString(rc), text);
	ll_wrong(verdict, !names_far_rank(text, rank), "rank %d: \"%s\" names no rank behind the cut", rank, text);
}

/* Both ranks of the other host are masked, on both ranks of this one; sums are those of this host alone. */
static int part(struct rig *rig, const struct job *job, struct meet *meet)
{
	int rank = seat_rank(rig->seat), host = rank / EACH;

	if (rig_expect(rig, "an operation across the cut", rounds_loose(rig->seat, job, rig, LOOSE)))
		return -1;
	if (job->verbose)
		fprintf(stderr, "  rank %d continues %.2f s after the cut\n", rank, world_now() - meet->cut);
	for (int r = 0; r < RANKS; r++)
		rig->active[r] = r / EACH == host;
	if (rig_check_mask(rig) || seat_meet(rig->seat, &meet->host[host], EACH) ||
	    rig_expect(rig, "ncclEpErrorClear", ncclEpErrorClear(rig->group)))
		return -1;
	rig_set_round(rig, 100);
	for (int i = 0; i < 5; i++)
		if (rig_script(rig, i % 2 ? "dA xA cA xA" : "DA CA"))
			return -1;
	return 0;
}

static int whole(struct rig *rig)
{
	for (int i = 0; i < 20; i++)
		if (rig_script(rig, i % 2 ? "dA xA cA xA" : "DA CA"))
			return -1;
	return rig_check_crossed(rig); /* the bytes between two nodes of two ranks */
}

static int ht_job(struct seat *seat, const struct job *job)
{
	struct meet *meet = seat_board(seat);
	struct ht_rig rig;

	if (ht_open(&rig, seat, &job->ht))
		goto close;
	for (int i = 0; i < 10; i++)
		if (ht_script(&rig, i % 2 ? "UA EA BA" : "UA DA CA"))
			goto close;
	if (ht_check_crossed(&rig, 0) || seat_barrier(seat) || !job->cut)
		goto close;
	if (ht_round(&rig, 0) || ht_load(&rig, 0, HT_DISPATCH) || ht_load(&rig, 0, HT_COMBINE) || seat_barrier(seat))
		goto close;
	rig.parted = true;
	lose(seat, job, &rig, &rig.verdict);
	if (!seat_failed(seat))
		seat_meet(seat, &meet->all, RANKS);
close:
	ht_close(&rig);
	return ht_tell(&rig);
}

static int netns_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct rig rig;

	if (job->kind >= HT_FLAT)
		return ht_job(seat, job);
	if (rig_open(&rig, seat, &job->cfg) || whole(&rig) || seat_barrier(seat) || !job->cut)
		goto close;
	if (rig_load(&rig, 0) || rig_update(&rig, 0) || seat_barrier(seat))
		goto close;
	rig.parted = true;
	if (job->cfg.mask)
		part(&rig, job, meet);
	else
		lose(seat, job, &rig, &rig.verdict);
	if (!seat_failed(seat))
		seat_meet(seat, &meet->all, RANKS);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- */

static int told_check(const struct meet *meet, char *text, size_t room)
{
	double last = 0;

	for (int r = 0; r < RANKS; r++)
		last = meet->told[r] > last ? meet->told[r] : last;
	snprintf(text, room, "errors within %.1f s", last - meet->cut);
	return meet->cut > 0 && last - meet->cut < 1e-3 * (TIMEOUT_MS + LATE_MS) ? 0 : -1;
}

static struct job job_make(enum kind kind, enum cut cut)
{
	struct ll_shape shape = { .layout = kind == RM || kind == RM_MASKS ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
				  .ranks = RANKS,
				  .experts = 2 * RANKS,
				  .topk = 4,
				  .tmax = 16,
				  .hidden = 1024,
				  .token = NUM_BF16,
				  .combine = NUM_BF16 };
	struct job job = { .kind = kind, .cut = cut };

	job.cfg = (struct rig_cfg){ .shape = shape, .handles = 1, .spare = LL_ALL, .per_node = EACH };
	job.cfg.mask = kind == EM_MASKS || kind == RM_MASKS;
	job.cfg.data = (struct ll_data){ .seed = 21, .fill = LL_FILL_FULL };
	job.ht = (struct ht_cfg){ .handles = 1, .spare = LL_ALL, .counters = 32, .backward = true, .tell_topk = true };
	job.ht.shape = (struct ht_shape){ .base = shape, .expert_major = kind == HT_EM };
	job.ht.shape.capacity = ht_bound(&job.ht.shape);
	job.ht.shape.nodes.size[0] = EACH;
	job.ht.data = job.cfg.data;
	return job;
}

/* In a process of its own, with which its hosts end. */
static int case_run(const struct job *job)
{
	struct world_opts opts = {
		.seats = RANKS, .processes = true, .board = sizeof(struct meet), .enter = host_enter
	};
	struct world *world;
	char text[600] = "";
	int rc;

	if (hosts_make())
		return 77;
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, RANKS, netns_job, job, sizeof(*job), 90);
	if (rc)
		snprintf(text, sizeof(text), "%s", world_text(world));
	else if (job->cut && !job->cfg.mask)
		rc = told_check(world_board(world), text, sizeof(text));
	rc = world_close(world) || rc ? 1 : 0;
	printf("%s%s", text[0] ? ", " : "", text);
	fflush(stdout);
	kill(there, SIGKILL);
	waitpid(there, NULL, 0);
	return rc;
}

static const struct {
	const char *name;
	enum kind kind;
	enum cut cut;
	bool dealt, quick;
} cases[] = {
	{ "whole, em", EM, WHOLE, false, true },
	{ "whole, rm, masks", RM_MASKS, WHOLE, false, false },
	{ "the link goes down, em", EM, DOWN, false, true },
	{ "the link goes down, rm, masks", RM_MASKS, DOWN, false, false },
	{ "packets vanish, rm", RM, SILENT, false, false },
	{ "packets vanish, em, masks", EM_MASKS, SILENT, false, false },
	{ "whole, HT flat", HT_FLAT, WHOLE, false, false },
	{ "whole, HT em, ranks in turn", HT_EM, WHOLE, true, true },
	{ "the link goes down, HT em", HT_EM, DOWN, false, false },
	{ "packets vanish, HT flat", HT_FLAT, SILENT, false, false },
	{ "packets vanish, HT em, ranks in turn", HT_EM, SILENT, true, false },
};

static int case_fork(int i, const char *net, bool verbose)
{
	struct job job = job_make(cases[i].kind, cases[i].cut);
	double start = world_now();
	int status = -1;
	pid_t pid;

	job.verbose = verbose;
	dealt = cases[i].dealt;
	if (dealt)
		job.ht.shape.nodes = (struct far_nodes){ .dealt = 2 };
	printf("%d %s, net %s", i, cases[i].name, net ? net : "automatic");
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(case_run(&job));
	waitpid(pid, &status, 0);
	status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	printf(": %s (%.1f s)\n", status ? status == 77 ? "skipped" : "FAILED" : "ok", world_now() - start);
	fflush(stdout);
	return status;
}

int main(int argc, char **argv)
{
	int failed = 0, only = -1, c;
	const char *net;
	bool verbose = false, quick = false;
	char ms[16];

	while ((c = getopt(argc, argv, "c:qv")) != -1) {
		if (c == 'v')
			verbose = true;
		else if (c == 'q')
			quick = true;
		else if (c == 'c')
			only = atoi(optarg);
		else
			return 2;
	}
	net = optind < argc ? argv[optind] : NULL;
	if (net)
		setenv("NCCL_EP_NET", net, 1);
	else
		unsetenv("NCCL_EP_NET");
	snprintf(ms, sizeof(ms), "%d", TIMEOUT_MS);
	setenv("NCCL_EP_TIMEOUT_MS", ms, 1);
	/* Longer than any wait of an operation, so that the deadlines are tested; short enough for a quick close. */
	setenv("NCCL_EP_PEER_LOST_MS", "10000", 1);
	for (int i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++) {
		int rc;

		if (only >= 0 ? only != i : quick && !cases[i].quick)
			continue;
		rc = case_fork(i, net, verbose);
		if (rc == 77) {
			fprintf(stderr, "no network namespaces here (root, ip and nsenter are needed)\n");
			return 77;
		}
		failed += rc != 0;
	}
	return failed ? 1 : 0;
}

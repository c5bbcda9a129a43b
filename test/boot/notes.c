/* SPDX-License-Identifier: Apache-2.0 */
/* Notes between processes of a host: bytes under a key, with a file descriptor or without. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>

#include "ranks.h"

TestSuite(boot_notes, .timeout = 60);

enum { FULL = EP_BOOT_NOTE, SHORT = 80, KEY = 77 };

static void fill(uint8_t *note, int rank)
{
	for (int i = 0; i < FULL; i++)
		note[i] = (uint8_t)(rank * 50 + i);
}

static int make_file(int value)
{
	int fd = memfd_create("boot_notes", MFD_CLOEXEC);

	return fd < 0 || write(fd, &value, sizeof(value)) != sizeof(value) ? -1 : fd;
}

static int read_file(int fd)
{
	int value = -1;

	return pread(fd, &value, sizeof(value), 0) == sizeof(value) ? value : -1;
}

/* A long note with a file, a short one without, and a plain descriptor under the same key as the first. */
static void offers(struct rank *me)
{
	int file = make_file(me->rank + 100), plain = make_file(me->rank + 200);
	uint8_t note[FULL];

	fill(note, me->rank);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, KEY, note, FULL, file) == 0);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, 0, note, SHORT, -1) == 0);
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, KEY, plain) == 0);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, KEY, note, 1, -1) == -EEXIST);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, 5, note, 0, file) == -EP_EINTERNAL);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, 5, note, FULL + 1, file) == -EP_EINTERNAL);
	RANK_EXPECT(me, ep_boot_note_offer(me->boot, 5, note, FULL, 9999) == -EBADF);
	close(file);
	close(plain);
}

static void fetches(struct rank *me, const struct ep_fd_token *from, int rank)
{
	uint64_t deadline = ep_deadline_ms(10000);
	uint8_t want[FULL], note[FULL] = { 0 };
	int fd = -5;

	fill(want, rank);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, KEY, deadline, note, FULL, &fd) == 0);
	RANK_EXPECT(me, !memcmp(note, want, FULL) && read_file(fd) == rank + 100);
	RANK_EXPECT(me, fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, 0, deadline, note + 1, SHORT, &fd) == 0);
	RANK_EXPECT(me, fd == -1 && !memcmp(note + 1, want, SHORT) && note[SHORT + 1] == want[SHORT + 1]);
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, from, KEY, &fd) == 0 && read_file(fd) == rank + 200);
	close(fd);
}

/* Nothing is written if the reply does not match the request, and no descriptor leaks (the threads' test counts). */
static void refusals(struct rank *me, const struct ep_fd_token *from)
{
	uint64_t deadline = ep_deadline_ms(10000);
	uint8_t note[FULL] = { 9 };
	int fd = -5;

	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, KEY, deadline, note, SHORT, &fd) == -EPROTO);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, 0, deadline, note, FULL, &fd) == -EPROTO);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, 5, deadline, note, FULL, &fd) == -ENOENT);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, KEY, deadline, note, 0, &fd) == -EINVAL);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, from, KEY, deadline, note, FULL + 1, &fd) == -EINVAL);
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, from, 0, &fd) == -ENOENT);
	RANK_EXPECT(me, fd == -5 && note[0] == 9 && note[1] == 0);
}

static void exchange(struct rank *me)
{
	struct ep_fd_token mine, all[MAX_RANKS], nobody = { .bytes = "nobody is here" };
	uint8_t note[FULL];
	int fd = -5;

	offers(me);
	ep_boot_fd_token(me->boot, &mine);
	RANK_EXPECT(me, ep_boot_allgather(me->boot, &mine, sizeof(mine), all) == 0);
	for (int r = 0; r < me->all->n; r++) {
		fetches(me, &all[r], r);
		refusals(me, &all[r]);
	}
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, &nobody, KEY, ep_deadline_ms(10000), note, FULL, &fd) ==
				-ECONNREFUSED);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	ep_boot_note_withdraw(me->boot, KEY);
	ep_boot_note_withdraw(me->boot, 4711);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	RANK_EXPECT(me, ep_boot_note_fetch(me->boot, &all[0], KEY, ep_deadline_ms(10000), note, FULL, &fd) == -ENOENT);
	RANK_EXPECT(me,
		    ep_boot_fd_fetch(me->boot, &all[0], KEY, &fd) == 0); /* the descriptor under the same key stays */
	close(fd);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
}

Test(boot_notes, processes)
{
	struct ranks *all = ranks_new(4, exchange);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

Test(boot_notes, threads)
{
	struct ranks *all = ranks_new(4, exchange);
	int fds = count_fds();

	cr_expect_eq(ranks_threads(all), 0);
	cr_expect(UNTIL(count_fds() == fds), "%d descriptors before, %d after", fds, count_fds());
	ranks_free(all);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a domain that its peers reach, and the list of such areas that this process has mapped. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "test/efa/model.h"

static struct {
	pthread_mutex_t lock;
	struct m_seat *first;
} seats = { .lock = PTHREAD_MUTEX_INITIALIZER };

void m_lock(struct m_area *area)
{
	if (pthread_mutex_lock(&area->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&area->lock); /* counters move last, so nothing is half done */
}

void m_unlock(struct m_area *area)
{
	pthread_mutex_unlock(&area->lock);
}

void m_know(struct m_area *area, uint64_t nonce)
{
	uint64_t at = nonce;

	while (area->known[at % M_KNOWN] && area->known[at % M_KNOWN] != nonce)
		at++;
	area->known[at % M_KNOWN] = nonce;
}

bool m_knows(const struct m_area *area, uint64_t nonce)
{
	uint64_t at = nonce;

	while (area->known[at % M_KNOWN] && area->known[at % M_KNOWN] != nonce)
		at++;
	return area->known[at % M_KNOWN] == nonce;
}

static void area_init(struct m_area *area)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&area->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	area->pid = getpid();
	if (getrandom(&area->nonce, sizeof(area->nonce), 0) < 0)
		area->nonce = (uint64_t)(uintptr_t)area;
}

static struct m_seat *seat_add(struct m_area *area, uint64_t nonce, int fd)
{
	struct m_seat *seat = calloc(1, sizeof(*seat));

	*seat = (struct m_seat){ .next = seats.first, .area = area, .nonce = nonce, .refs = 1, .fd = fd };
	seats.first = seat;
	return seat;
}

struct m_seat *m_seat_make(void)
{
	int fd = memfd_create("ep_model", MFD_CLOEXEC);
	struct m_area *area;
	struct m_seat *seat;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* where Yama restricts process_vm_writev to children */
	if (fd < 0 || ftruncate(fd, sizeof(*area)))
		return NULL;
	area = mmap(NULL, sizeof(*area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		return NULL;
	area_init(area);
	pthread_mutex_lock(&seats.lock);
	seat = seat_add(area, area->nonce, fd);
	pthread_mutex_unlock(&seats.lock);
	return seat;
}

static struct m_area *area_map(const struct m_name *name)
{
	struct m_area *area;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", name->pid, name->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	area = mmap(NULL, sizeof(*area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (area == MAP_FAILED)
		return NULL;
	if (area->nonce == name->nonce)
		return area;
	munmap(area, sizeof(*area));
	return NULL;
}

struct m_seat *m_seat_find(const struct m_name *name)
{
	struct m_seat *seat;

	pthread_mutex_lock(&seats.lock);
	for (seat = seats.first; seat && seat->nonce != name->nonce; seat = seat->next)
		;
	if (seat)
		seat->refs++;
	else
		seat = seat_add(name->pid == getpid() ? NULL : area_map(name), name->nonce, -1);
	pthread_mutex_unlock(&seats.lock);
	return seat;
}

void m_seat_drop(struct m_seat *seat)
{
	struct m_seat **at = &seats.first;

	pthread_mutex_lock(&seats.lock);
	if (!--seat->refs) {
		while (*at != seat)
			at = &(*at)->next;
		*at = seat->next;
		if (seat->area)
			munmap(seat->area, sizeof(*seat->area));
		if (seat->fd >= 0)
			close(seat->fd);
		free(seat);
	}
	pthread_mutex_unlock(&seats.lock);
}

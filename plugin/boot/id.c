/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/id.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plugin/boot/mac.h"
#include "plugin/boot/shake.h"
#include "util/error.h"

static const char magic[8] = "AnyEPid";

void ep_boot_addr_set(struct ep_boot_addr *to, const union ep_sockaddr *from)
{
	*to = (struct ep_boot_addr){ 0 };
	if (from->any.sa_family == AF_INET) {
		to->family = 4;
		memcpy(to->ip, &from->v4.sin_addr, 4);
	} else {
		to->family = 6;
		to->scope = from->v6.sin6_scope_id;
		memcpy(to->ip, &from->v6.sin6_addr, 16);
	}
}

void ep_boot_addr_get(const struct ep_boot_addr *from, uint16_t port, union ep_sockaddr *to)
{
	memset(to, 0, sizeof(*to));
	if (from->family == 4) {
		to->v4.sin_family = AF_INET;
		to->v4.sin_port = htons(port);
		memcpy(&to->v4.sin_addr, from->ip, 4);
	} else {
		to->v6.sin6_family = AF_INET6;
		to->v6.sin6_port = htons(port);
		to->v6.sin6_scope_id = from->scope;
		memcpy(&to->v6.sin6_addr, from->ip, 16);
	}
}

int ep_boot_id_init(struct ep_boot_id *id)
{
	int rc;

	*id = (struct ep_boot_id){ 0 };
	memcpy(id->magic, magic, sizeof(magic));
	rc = ep_random(id->secret, sizeof(id->secret));
	return rc ? EP_FAIL(EP_BOOT, -rc, "cannot get random bytes for the secret of the id: %s", strerror(-rc)) : 0;
}

int ep_boot_id_check(const struct ep_boot_id *id)
{
	bool ok = !memcmp(id->magic, magic, sizeof(magic)) && id->port && id->naddr && id->naddr <= EP_BOOT_ADDRS;

	for (int i = 0; ok && i < id->naddr; i++)
		ok = id->addr[i].family == 4 || id->addr[i].family == 6;
	return ok ? 0
		  : EP_FAIL(EP_BOOT, EP_EARG,
			    "the unique id was not created by this library (were all 128 bytes sent?)");
}

uint64_t ep_boot_cookie(const uint8_t *secret)
{
	/* A pid is unique only together with the boot id and the pid namespace. */
	char text[256] = "", ns[64] = "", boot[64] = "";
	uint64_t cookie = 0;
	ssize_t n = readlink("/proc/self/ns/pid", ns, sizeof(ns) - 1);
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	ns[n > 0 ? n : 0] = '\0';
	n = fd < 0 ? 0 : read(fd, boot, sizeof(boot) - 1);
	boot[n > 0 ? n : 0] = '\0';
	if (fd >= 0)
		close(fd);
	snprintf(text, sizeof(text), "%s %s %d", boot, ns, (int)getpid());
	/* 0 without a MAC: the root then cannot tell which rank shares its process. */
	return ep_mac((uint8_t *)&cookie, sizeof(cookie), secret, text, strlen(text)) ? 0 : cookie;
}

int ep_boot_thread(pthread_t *out, void *(*fn)(void *), void *arg, bool detached)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int rc;

	rc = pthread_attr_init(&attr);
	if (rc)
		return -rc;
	pthread_attr_setstacksize(&attr, 256 << 10);
	pthread_attr_setdetachstate(&attr, detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
	/* Signals are handled by the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (!rc && out)
		*out = thread;
	return -rc;
}

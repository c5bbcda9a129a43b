/* SPDX-License-Identifier: Apache-2.0 */
#include "test/scribble/liar.h"

#include <unistd.h>

#include "test/oracle/data.h"

/* Values that go past a missing check: limits of signed and unsigned words, values just beside the right one, and
 * addresses that are not mapped. */
static uint64_t lie(uint64_t *random, uint64_t old)
{
	uint64_t r = ll_random(random);

	switch (r % 9) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX;
	case 2:
		return old ^ (1ull << (r >> 8) % 64);
	case 3:
		return (r >> 8) % 64;
	case 4:
		return old + (r >> 8) % 8 - 4;
	case 5:
		return (r & 0x100 ? 0x7fffffffull : 0x80000000ull) - (r >> 16) % 3;
	case 6:
		return (r >> 8) % (1ull << 20);
	case 7:
		return (r >> 17) & ~0xfull; /* 47 bits */
	default:
		return r;
	}
}

static void word_write(const struct liar *liar, uint64_t *random, void *word)
{
	uint64_t old, bad;

	if (liar->field.width == 8) {
		old = __atomic_load_n((uint64_t *)word, __ATOMIC_RELAXED);
		__atomic_store_n((uint64_t *)word, lie(random, old), __ATOMIC_RELAXED);
		if (liar->flip)
			__atomic_store_n((uint64_t *)word, old, __ATOMIC_RELEASE);
		return;
	}
	old = __atomic_load_n((uint32_t *)word, __ATOMIC_RELAXED);
	bad = lie(random, old);
	__atomic_store_n((uint32_t *)word, (uint32_t)bad, __ATOMIC_RELAXED);
	if (liar->flip)
		__atomic_store_n((uint32_t *)word, (uint32_t)old, __ATOMIC_RELEASE);
}

static void *liar_main(void *arg)
{
	struct liar *liar = arg;
	uint64_t random = liar->seed;
	const struct ncclEpGroup *group = liar->group;

	while (!atomic_load_explicit(&liar->stop, memory_order_acquire)) {
		int victim = (int)(ll_random(&random) % (uint64_t)(group->nranks - 1));
		void *word;

		victim += victim >= group->rank;
		word = field_word(group, &liar->field, victim, ll_random(&random));
		if (word)
			word_write(liar, &random, word);
		atomic_fetch_add_explicit(&liar->written, word ? 1 : 0, memory_order_relaxed);
		atomic_store_explicit(&liar->begun, true, memory_order_release);
		if (liar->nap_us || !word)
			usleep(liar->nap_us + 1);
	}
	return NULL;
}

int liar_start(struct liar *liar)
{
	atomic_init(&liar->stop, false);
	atomic_init(&liar->begun, false);
	if (pthread_create(&liar->thread, NULL, liar_main, liar))
		return -1;
	while (!atomic_load_explicit(&liar->begun, memory_order_acquire))
		usleep(10);
	return 0;
}

void liar_stop(struct liar *liar)
{
	atomic_store_explicit(&liar->stop, true, memory_order_release);
	pthread_join(liar->thread, NULL);
}

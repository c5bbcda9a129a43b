/* SPDX-License-Identifier: Apache-2.0 */
/* Notifies the sanitizers of fibers; empty in a build without them. */
#ifndef EP_SIMT_SAN_H
#define EP_SIMT_SAN_H

#include <stddef.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif

/* The emulator's own state is shared by all fibers of a thread: TSan would report every use as a race. */
#define SIMT_RAW __attribute__((no_sanitize("thread"), noinline))

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define SIMT_STACK (256 * 1024)
#define san_acquire(p) __tsan_acquire(p)
#define san_release(p) __tsan_release(p)
#define san_fiber_self() __tsan_get_current_fiber()
#define san_fiber_create() __tsan_create_fiber(0)
#define san_fiber_destroy(f) __tsan_destroy_fiber(f)
/* The switch itself must not order memory: only the barriers do. */
#define san_fiber_switch(f) __tsan_switch_to_fiber((f), __tsan_switch_to_fiber_no_sync)
#else
#define SIMT_STACK (128 * 1024)
#define san_acquire(p) ((void)(p))
#define san_release(p) ((void)(p))
#define san_fiber_self() NULL
#define san_fiber_create() NULL
#define san_fiber_destroy(f) ((void)(f))
#define san_fiber_switch(f) ((void)(f))
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define san_stack_leave(save, to, size) __sanitizer_start_switch_fiber((save), (to), (size))
#define san_stack_enter(saved) __sanitizer_finish_switch_fiber((saved), NULL, NULL)
#define san_stack_forget(p, size) __asan_unpoison_memory_region((p), (size))
#else
#define san_stack_leave(save, to, size) ((void)(save))
#define san_stack_enter(saved) ((void)(saved))
#define san_stack_forget(p, size) ((void)(p))
#endif

#endif

/* Named threads, locks, conditions on the monotonic clock, and the fork generation. */
#ifndef RP_BASE_THREAD_H
#define RP_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A lock. In builds without NDEBUG a thread that takes a second lock of ours aborts the process:
 * no thread holds two (architecture rule). */
typedef struct rp_lock {
    pthread_mutex_t mutex;
} rp_lock;

typedef struct rp_cond {
    pthread_cond_t cond;
} rp_cond;

/* Initialise; pairs with the _free below. Owner: storage is the caller's. Thread: one. Blocks:
 * never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_lock_init(rp_lock *lock, struct rp_error *err);
RP_CHECKED rp_status rp_cond_init(rp_cond *cond, struct rp_error *err);

/* Release what init took; nobody holds or waits. Owner: storage stays the caller's. Thread: one. */
void rp_lock_free(rp_lock *lock);
void rp_cond_free(rp_cond *cond);

/* Thread: any. Blocks: acquire, until the lock is free. Errors: none. */
void rp_lock_acquire(rp_lock *lock);
void rp_lock_release(rp_lock *lock);

/* Wait for a signal until `deadline_ns` on the monotonic clock. The lock is held on entry and exit.
 * Returns false once the deadline has passed. Wake-ups may be spurious: loop on the condition.
 * Owner: both are the caller's. Thread: any. Blocks: up to the deadline. */
bool rp_cond_wait(rp_cond *cond, rp_lock *lock, int64_t deadline_ns);

/* Wake one or all waiters. Thread: any, with or without the lock. Blocks: never. */
void rp_cond_signal(rp_cond *cond);
void rp_cond_broadcast(rp_cond *cond);

/* Nanoseconds of the monotonic clock; CPU nanoseconds of the calling thread. Thread: any. */
int64_t rp_now_ns(void);

typedef struct rp_thread {
    pthread_t id;
    bool running;
} rp_thread;

/* Start main(arg) in a thread named `name` (cut to 15 characters) with all signals blocked.
 * Owner: *out is the caller's and joined exactly once. Thread: any. Blocks: never.
 * Errors: RP_E_NOMEM when the system gives no thread. */
RP_CHECKED rp_status rp_thread_start(rp_thread *out, const char *name, void *(*main)(void *),
                                     void *arg, struct rp_error *err);

/* Join; does nothing when it never started. Thread: not the thread itself. Blocks: until it
 * ends. */
void rp_thread_join(rp_thread *thread);

/* Number of forks between the process that loaded the core and this one. A handle made under
 * another value belongs to a parent process: it is neither locked nor freed here.
 * Thread: any. Blocks: never. */
uint64_t rp_fork_generation(void);

/* Register the fork handlers; idempotent. Call before the first handle is made. Thread: any.
 * Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_fork_watch(struct rp_error *err);

/* Fork gate: calls into vendor libraries run between enter and leave, entered with no lock of ours
 * held, for one packet or less. fork() waits until the gate is empty, so a child never inherits a
 * vendor lock held by a thread that does not exist there. Thread: any. Blocks: enter, while a fork
 * is under way (microseconds). Errors: none. */
void rp_gate_enter(void);
void rp_gate_leave(void);

#endif

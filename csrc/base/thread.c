#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef NDEBUG
static __thread int held_locks; /* debug only: proves "no thread holds two locks" */
#endif

/* Process-wide by rule: fork gate and generation. */
static pthread_mutex_t gate_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_cond = PTHREAD_COND_INITIALIZER;
static int gate_inside;
static bool gate_closed;
static uint64_t fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_watch_result;

rp_status rp_lock_init(rp_lock *lock, struct rp_error *err)
{
    int rc = pthread_mutex_init(&lock->mutex, NULL);
    if (rc != 0) {
        RP_FAIL(err, RP_E_NOMEM, "pthread_mutex_init failed with errno %d", rc);
    }
    return RP_OK;
}

rp_status rp_cond_init(rp_cond *cond, struct rp_error *err)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc == 0) {
        rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        if (rc == 0) {
            rc = pthread_cond_init(&cond->cond, &attr);
        }
        (void)pthread_condattr_destroy(&attr); /* cannot fail on an initialised attribute */
    }
    if (rc != 0) {
        RP_FAIL(err, RP_E_NOMEM, "pthread_cond_init failed with errno %d", rc);
    }
    return RP_OK;
}

void rp_lock_free(rp_lock *lock)
{
    int rc = pthread_mutex_destroy(&lock->mutex);
    assert(rc == 0);
    (void)rc; /* only read by the assertion */
}

void rp_cond_free(rp_cond *cond)
{
    int rc = pthread_cond_destroy(&cond->cond);
    assert(rc == 0);
    (void)rc; /* only read by the assertion */
}

void rp_lock_acquire(rp_lock *lock)
{
    int rc = pthread_mutex_lock(&lock->mutex);
#ifndef NDEBUG
    assert(++held_locks == 1);
#endif
    assert(rc == 0);
    (void)rc; /* only read by the assertion */
}

void rp_lock_release(rp_lock *lock)
{
#ifndef NDEBUG
    held_locks--;
#endif
    int rc = pthread_mutex_unlock(&lock->mutex);
    assert(rc == 0);
    (void)rc; /* only read by the assertion */
}

bool rp_cond_wait(rp_cond *cond, rp_lock *lock, int64_t deadline_ns)
{
    if (deadline_ns < 0) {
        deadline_ns = 0;
    }
    struct timespec at = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                          .tv_nsec = (long)(deadline_ns % 1000000000)};
    int rc = pthread_cond_timedwait(&cond->cond, &lock->mutex, &at);
    return rc != ETIMEDOUT;
}

void rp_cond_signal(rp_cond *cond)
{
    (void)pthread_cond_signal(&cond->cond); /* fails only on an uninitialised condition */
}

void rp_cond_broadcast(rp_cond *cond)
{
    (void)pthread_cond_broadcast(&cond->cond); /* fails only on an uninitialised condition */
}

int64_t rp_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* always there on Linux */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

rp_status rp_thread_start(rp_thread *out, const char *name, void *(*main)(void *), void *arg,
                          struct rp_error *err)
{
    sigset_t all, before;
    (void)sigfillset(&all); /* cannot fail on valid storage */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&out->id, NULL, main, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        RP_FAIL(err, RP_E_NOMEM, "cannot start thread %s: %s", name, strerror(rc));
    }
    out->running = true;
    char text[16];
    (void)snprintf(text, sizeof(text), "%s", name); /* cut names are fine */
    (void)pthread_setname_np(out->id, text);        /* cosmetic */
    return RP_OK;
}

void rp_thread_join(rp_thread *thread)
{
    if (thread->running) {
        int rc = pthread_join(thread->id, NULL);
        assert(rc == 0);
        (void)rc; /* only read by the assertion */
        thread->running = false;
    }
}

uint64_t rp_fork_generation(void)
{
    return __atomic_load_n(&fork_generation, __ATOMIC_RELAXED);
}

static void before_fork(void)
{
    (void)pthread_mutex_lock(&gate_mutex);
    gate_closed = true;
    while (gate_inside > 0) {
        (void)pthread_cond_wait(&gate_cond, &gate_mutex);
        gate_closed = true; /* another thread's fork may have opened it meanwhile */
    }
}

static void after_fork_parent(void)
{
    gate_closed = false;
    (void)pthread_cond_broadcast(&gate_cond);
    (void)pthread_mutex_unlock(&gate_mutex);
}

static void after_fork_child(void)
{
    gate_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    gate_cond = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    gate_closed = false;
    gate_inside = 0;
    fork_generation++;
}

static void install_fork_handlers(void)
{
    fork_watch_result = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

rp_status rp_fork_watch(struct rp_error *err)
{
    int rc = pthread_once(&fork_once, install_fork_handlers);
    if (rc != 0 || fork_watch_result != 0) {
        RP_FAIL(err, RP_E_NOMEM, "pthread_atfork failed with errno %d", fork_watch_result);
    }
    return RP_OK;
}

void rp_gate_enter(void)
{
#ifndef NDEBUG
    assert(held_locks == 0);
#endif
    (void)pthread_mutex_lock(&gate_mutex);
    while (gate_closed) {
        (void)pthread_cond_wait(&gate_cond, &gate_mutex);
    }
    gate_inside++;
    (void)pthread_mutex_unlock(&gate_mutex);
}

void rp_gate_leave(void)
{
    (void)pthread_mutex_lock(&gate_mutex);
    gate_inside--;
    if (gate_closed && gate_inside == 0) {
        (void)pthread_cond_broadcast(&gate_cond);
    }
    (void)pthread_mutex_unlock(&gate_mutex);
}

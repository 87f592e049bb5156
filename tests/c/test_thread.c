/* Threads, conditions, the fork generation and the fork gate. */
#include "harness.h"

#include "base/thread.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static rp_lock lock;
static rp_cond cond;

static void set_up(void)
{
    REQUIRE_OK(rp_fork_watch(NULL), NULL);
    REQUIRE_OK(rp_lock_init(&lock, NULL), NULL);
    REQUIRE_OK(rp_cond_init(&cond, NULL), NULL);
}

static void tear_down(void)
{
    rp_cond_free(&cond);
    rp_lock_free(&lock);
}

RP_TEST(a_wait_ends_at_its_deadline)
{
    set_up();
    rp_lock_acquire(&lock);
    int64_t deadline = rp_now_ns() + 20000000;
    while (rp_cond_wait(&cond, &lock, deadline)) { /* true is a spurious wake-up */
    }
    (void)CHECK(rp_now_ns() >= deadline);
    (void)CHECK(!rp_cond_wait(&cond, &lock, 0)); /* long past */
    (void)CHECK(!rp_cond_wait(&cond, &lock, INT64_MIN));
    rp_lock_release(&lock);
    tear_down();
}

static int turn;

static void *take_turns(void *arg)
{
    int me = arg != NULL;
    for (int i = 0; i < 500; i++) {
        rp_lock_acquire(&lock);
        while (turn % 2 != me) {
            (void)rp_cond_wait(&cond, &lock, rp_now_ns() + 1000000000);
        }
        turn++;
        rp_cond_signal(&cond);
        rp_lock_release(&lock);
    }
    return NULL;
}

RP_TEST(signals_reach_the_other_thread)
{
    set_up();
    turn = 0;
    rp_thread a = {0}, b = {0};
    REQUIRE_OK(rp_thread_start(&a, "rp-test-with-a-long-name", take_turns, NULL, NULL), NULL);
    REQUIRE_OK(rp_thread_start(&b, "rp-b", take_turns, &turn, NULL), NULL);
    rp_thread_join(&a);
    rp_thread_join(&b);
    (void)CHECK_EQ(turn, 1000);
    rp_thread_join(&a); /* once more: nothing */
    tear_down();
}

static void *read_mask(void *arg)
{
    (void)pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

RP_TEST(signals_are_blocked_in_our_threads)
{
    sigset_t before, after, inside;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    rp_thread thread = {0};
    REQUIRE_OK(rp_thread_start(&thread, "rp-mask", read_mask, &inside, NULL), NULL);
    rp_thread_join(&thread);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    (void)CHECK(sigismember(&inside, SIGINT) == 1 && sigismember(&inside, SIGTERM) == 1);
    (void)CHECK(sigismember(&after, SIGINT) == sigismember(&before, SIGINT));
}

RP_TEST(a_thread_that_does_not_start)
{
    struct rp_fault fault = {.calls = RP_FAULT_THREAD, .nth = 1};
    struct rp_error err;
    rp_error_clear(&err);
    rp_thread thread = {0};
    rp_fault_arm(&fault);
    rp_status status = rp_thread_start(&thread, "rp-none", read_mask, NULL, &err);
    (void)CHECK(rp_fault_disarm());
    (void)CHECK_STATUS(status, RP_E_NOMEM, &err);
    (void)CHECK_CONTAINS(err.what, "rp-none");
    rp_thread_join(&thread);
    rp_fault_arm(&fault);
    status = rp_lock_init(&lock, &err);
    (void)rp_fault_disarm();
    (void)CHECK_EQ(status, RP_E_NOMEM);
    rp_fault_arm(&fault);
    status = rp_cond_init(&cond, &err);
    (void)rp_fault_disarm();
    (void)CHECK_EQ(status, RP_E_NOMEM);
}

/* Fork; the child's exit status is what `in_child` returns. */
static int fork_and_run(int (*in_child)(void))
{
    pid_t child = fork();
    if (child == 0) {
        _exit(in_child());
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : -1;
}

static uint64_t parent_generation;

static int generation_went_up(void)
{
    rp_gate_enter(); /* the gate is open in a child */
    rp_gate_leave();
    return rp_fork_generation() == parent_generation + 1 ? 0 : 1;
}

RP_TEST(a_child_knows_that_it_is_one)
{
    REQUIRE_OK(rp_fork_watch(NULL), NULL);
    REQUIRE_OK(rp_fork_watch(NULL), NULL); /* registers once */
    parent_generation = rp_fork_generation();
    (void)CHECK_EQ(fork_and_run(generation_went_up), 0);
    (void)CHECK(rp_fork_generation() == parent_generation);
}

static atomic_int inside;
static atomic_bool stop;

static void *pass_gate(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        rp_gate_enter();
        atomic_fetch_add(&inside, 1);
        (void)usleep(100);
        atomic_fetch_sub(&inside, 1);
        rp_gate_leave();
    }
    return NULL;
}

/* A child sees what the parent's threads were doing at the fork. */
static int nobody_is_inside(void)
{
    return atomic_load(&inside) == 0 ? 0 : 1;
}

static void *fork_often(void *arg)
{
    (void)arg;
    for (int i = 0; i < 6; i++) {
        (void)CHECK_EQ(fork_and_run(nobody_is_inside), 0);
    }
    return NULL;
}

static void fork_beside_the_gate(void)
{
    rp_thread passers[6] = {0}, forkers[2] = {0};
    atomic_store(&stop, false);
    for (int i = 0; i < 6; i++) {
        REQUIRE_OK(rp_thread_start(&passers[i], "rp-pass", pass_gate, NULL, NULL), NULL);
    }
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(rp_thread_start(&forkers[i], "rp-fork", fork_often, NULL, NULL), NULL);
    }
    rp_thread_join(&forkers[0]);
    rp_thread_join(&forkers[1]);
    atomic_store(&stop, true);
    for (int i = 0; i < 6; i++) {
        rp_thread_join(&passers[i]);
    }
}

/* Two threads fork, six pass the gate: nobody waits for ever, and no child is born with a thread
 * inside. */
RP_TEST(forks_wait_for_the_gate)
{
    REQUIRE_OK(rp_fork_watch(NULL), NULL);
    for (int round = 0; round < 10; round++) {
        fork_beside_the_gate();
    }
}

static int hold_two_locks(void)
{
    rp_lock second;
    (void)close(STDERR_FILENO); /* the assertion's text is no news */
    if (rp_lock_init(&second, NULL) == RP_OK) {
        rp_lock_acquire(&lock);
        rp_lock_acquire(&second);
    }
    return 0;
}

static int enter_gate_with_lock(void)
{
    (void)close(STDERR_FILENO);
    rp_lock_acquire(&lock);
    rp_gate_enter();
    return 0;
}

RP_TEST(the_lock_rules_are_asserted)
{
    set_up();
    (void)CHECK_EQ(fork_and_run(hold_two_locks), -1);       /* killed by abort */
    (void)CHECK_EQ(fork_and_run(enter_gate_with_lock), -1); /* likewise */
    tear_down();
}

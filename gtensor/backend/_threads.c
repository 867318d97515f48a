// A pool of threads for the CPU's compiled paths.
//
// A call hands out ranges of its items: each thread takes the next range when it is done with one,
// so a thread that other programs keep from its core does less, and delays the others by one range
// at most. The caller takes ranges, too. It never waits for a thread that has not taken one: waking
// a thread takes longer than a small call.
//
// A thread that has taken a range and loses its core delays the call until it has one again. So calls
// measure themselves: one that took longer than the caller alone would have makes the next ones do
// without the pool, four at first, twice as many each time that this happens again.
//
// One mutex guards all that is here. It is held while a range is taken or counted, never while one
// is done. Threads wait at a condition and use no time.
//
// At a fork the forking thread holds the mutex. The child has no other thread: it begins with an
// empty pool. Threads are detached, and signals are for the other threads of the program. At the
// end of the process they wait at the condition, or finish a range; they call nothing of Python.

#include "_threads.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

#define MOST_THREADS 256
#define MOST_ALONE 256  // calls that do without the pool before it is tried again
#define TOLERATED 1e-4  // seconds that a call may take longer: a thread wakes in half of that
#define RANGES 4  // per thread and call: what one is late by is a quarter of its part

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_is_there = PTHREAD_COND_INITIALIZER;
static pthread_cond_t range_is_done = PTHREAD_COND_INITIALIZER;
static pthread_once_t at_forks = PTHREAD_ONCE_INIT;

static int threads = 1;  // wanted, with the caller
static int started = 0;  // in this process, without the caller
static int without = 0;  // so many further calls do without the pool
static int next_without = 4;
static _Thread_local int alone = 0;

// The call that has the pool; work is NULL if there is none.
static struct {
    gt_range *work;
    void *job;
    int64_t next, count, step;  // the first item that is not taken; items of a range
    int helpers;               // threads of the pool that may take ranges
    int running;               // ranges being done by them
    int flags;                 // that they raised
    fenv_t environment;        // of the caller
} call;

// Take a range and do it; the mutex is held before and after. Returns the number of its items.
static int64_t do_next(void) {
    gt_range *work = call.work;
    void *job = call.job;
    int64_t begin = call.next, end = call.count;
    if (begin >= end) return 0;
    if (end - begin > call.step) end = begin + call.step;
    call.next = end;
    pthread_mutex_unlock(&lock);
    work(job, begin, end);
    pthread_mutex_lock(&lock);
    return end - begin;
}

static void *help(void *number) {
    int index = (int)(intptr_t)number;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!call.work || call.next >= call.count || index >= call.helpers)
            pthread_cond_wait(&work_is_there, &lock);
        call.running++;  // from now on the caller waits
        fesetenv(&call.environment);
        while (do_next()) {
        }
        call.flags |= fetestexcept(FE_ALL_EXCEPT);
        if (!--call.running) pthread_cond_signal(&range_is_done);
    }
    return NULL;
}

// Start threads until there are `wanted`, or the system has no more; the mutex is held.
static void start(int wanted) {
    sigset_t all, before;
    pthread_attr_t detached;
    if (started >= wanted || pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &detached, help, (void *)(intptr_t)started)) break;
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    started = 0;
    call.work = NULL;
    call.running = 0;
    // The parent's threads wait at its conditions, not at these.
    work_is_there = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    range_is_done = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&lock);
}

static void guard_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Note how long a call took, of which the caller did `own` of `count` items in `busy` seconds.
static void judge(double whole, double busy, int64_t own, int64_t count) {
    double one_thread = busy * (double)count / (double)own;
    if (whole < one_thread) next_without = 4;
    if (whole < one_thread + TOLERATED) return;
    without = next_without;
    if (next_without < MOST_ALONE) next_without *= 2;
}

void gt_parallel(gt_range *work, void *job, int64_t count, int64_t least) {
    if (least < 1) least = 1;
    int helps = !alone && count / least > 1;
    if (helps) {
        pthread_once(&at_forks, guard_forks);
        pthread_mutex_lock(&lock);
        if (!call.work && threads > 1) start(threads - 1);
        helps = !call.work && threads > 1 && started;
        if (helps && without) helps = 0, without--;
        if (!helps) pthread_mutex_unlock(&lock);
    }
    if (!helps) {
        if (count > 0) work(job, 0, count);
        return;
    }
    call.helpers = threads - 1 < started ? threads - 1 : started;
    call.step = count / ((int64_t)RANGES * (call.helpers + 1));
    if (call.step < least) call.step = least;
    call.next = 0;
    call.count = count;
    call.work = work;
    call.job = job;
    call.flags = 0;
    fegetenv(&call.environment);
    int64_t own = 0, done;
    double began = seconds();
    pthread_cond_broadcast(&work_is_there);
    while ((done = do_next())) own += done;
    double busy = seconds() - began;
    while (call.running) pthread_cond_wait(&range_is_done, &lock);
    judge(seconds() - began, busy, own, count);
    int flags = call.flags;
    call.work = NULL;
    pthread_mutex_unlock(&lock);
    if (flags) feraiseexcept(flags);
}

void gt_set_threads(int count) {
    pthread_mutex_lock(&lock);
    threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
    without = 0;
    next_without = 4;
    pthread_mutex_unlock(&lock);
}

int gt_get_threads(void) {
    pthread_mutex_lock(&lock);
    int count = alone ? 1 : threads;
    pthread_mutex_unlock(&lock);
    return count;
}

int gt_one_thread_here(int now) {
    int before = alone;
    alone = now;
    return before;
}

// Calls of the pool in gtensor/backend/_threads.c, each checked; prints what is wrong, if anything.
//
// threads_driver CALLS THREADS: three threads make so many calls each, while one of them forks.

#include "_threads.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ITEMS = 5000, CALLERS = 3 };

typedef struct {
    const float *x;
    float *y;
    int *times;  // how often each item was done
    int nested;
    pthread_t caller;
} Job;

static atomic_int by_others;  // ranges that the pool's threads did

static void wrong(const char *what) {
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void one_more(void *job, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) ((int *)job)[i]++;
}

static void transform(void *given, int64_t begin, int64_t end) {
    Job *job = given;
    if (!pthread_equal(job->caller, pthread_self()) && by_others++ % 8 == 0)
        usleep(300);  // the caller is done with its ranges by then
    for (int64_t i = begin; i < end; i++) {
        job->y[i] = sqrtf(job->x[i]) / 3.0f;
        job->times[i]++;
    }
    if (job->nested) {
        int inner[8] = {0};
        gt_parallel(one_more, inner, 8, 1);
        for (int i = 0; i < 8; i++)
            if (inner[i] != 1) wrong("a call within a range");
    }
}

static void check_call(unsigned *seed) {
    float x[ITEMS], y[ITEMS];
    int times[ITEMS] = {0};
    int64_t count = rand_r(seed) % ITEMS, least = 1 + rand_r(seed) % 50;
    for (int64_t i = 0; i < count; i++) x[i] = (float)(rand_r(seed) % 1000);
    Job job = {x, y, times, rand_r(seed) % 4 == 0, pthread_self()};
    gt_parallel(transform, &job, count, least);
    for (int64_t i = 0; i < count; i++)
        if (times[i] != 1 || y[i] != sqrtf(x[i]) / 3.0f) wrong("an item");
}

typedef struct {
    volatile double zero, quotient;
    pthread_t caller;
    atomic_int divided;
} Division;

// The pool's threads divide by zero, the caller does not.
static void divide(void *given, int64_t begin, int64_t end) {
    Division *job = given;
    if (fegetround() != FE_UPWARD) wrong("the rounding mode of a range");
    if (!pthread_equal(job->caller, pthread_self()) && !job->divided++)
        job->quotient = 1.0 / job->zero;
    for (volatile int64_t i = begin; i < end; i++) {
    }
}

static void check_flags(void) {
    int before = fegetround(), most = 20000;
    fesetround(FE_UPWARD);
    while (most--) {
        Division job = {0.0, 0.0, pthread_self(), 0};
        feclearexcept(FE_ALL_EXCEPT);
        feraiseexcept(FE_INVALID);
        gt_set_threads(2);
        gt_parallel(divide, &job, 1000, 1);
        int raised = fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
        if (raised != (job.divided ? FE_INVALID | FE_DIVBYZERO : FE_INVALID))
            wrong("the flags after a call");
        if (job.divided) break;
    }
    fesetround(before);
}

typedef struct {
    pthread_t caller;
    int64_t count;
    double began;
    atomic_int came;  // whether another thread has taken a range of this call
    atomic_llong done;  // items that the caller did
    atomic_int ended;
    int calls;        // in which one has
} Late;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// However busy the machine is, the caller waits until the other thread has come, and that one until
// the caller has done all the rest; it then takes longer than all before.
static void late(void *given, int64_t begin, int64_t end) {
    Late *job = given;
    if (end - begin == job->count) return;  // a call without other threads
    if (pthread_equal(job->caller, pthread_self())) {
        while (!job->came) sched_yield();
        job->done += end - begin;
    } else if (!job->came++) {
        job->calls++;
        while (job->done + end - begin < job->count) sched_yield();
        usleep((useconds_t)(1e6 * (seconds() - job->began)) + 1000);
        job->ended++;
    }
}

// Threads that are late are asked more and more rarely.
static void check_late(void) {
    Late job = {pthread_self(), 100000, 0.0, 0, 0, 0, 0};
    gt_set_threads(2);
    for (int i = 0; i < 200; i++) {
        job.came = 0;
        job.done = 0;
        job.ended = 0;
        job.began = seconds();
        gt_parallel(late, &job, job.count, 1);
        if (job.came != job.ended) wrong("a call that ended before its ranges");
    }
    if (!job.calls) wrong("a pool that is never asked");
    if (job.calls > 50) wrong("threads that are late, which were asked again and again");
}

static void check_fork(void) {
    pid_t child = fork();
    if (!child) {
        unsigned seed = 7;
        by_others = 0;
        for (int i = 0; i < 20 || (!by_others && i < 20000); i++) {
            gt_set_threads(2);
            check_call(&seed);
        }
        if (!by_others) wrong("the pool of a fork, whose threads did nothing");
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status) wrong("a call in a fork");
}

static void *caller(void *given) {
    unsigned *seed = given;
    int calls = (int)*seed >> 8, leads = (*seed & 255) == 0;
    for (int i = 0; i < calls; i++) {
        check_call(seed);
        if (leads && i % 50 == 0) check_flags();
        if (leads) gt_set_threads(2 + i / 70 % 3);
        if (leads && i % 200 == 100) check_fork();
    }
    return NULL;
}

static void check_alone(void) {
    if (gt_one_thread_here(1)) wrong("a thread that begins alone");
    if (gt_get_threads() != 1) wrong("the number of threads of a thread alone");
    if (gt_one_thread_here(0) != 1 || gt_get_threads() < 2) wrong("a thread no longer alone");
}

int main(int count, char **words) {
    if (count != 3) return 2;
    pthread_t threads[CALLERS];
    unsigned seeds[CALLERS];
    gt_set_threads(atoi(words[2]));
    check_alone();
    check_late();
    gt_set_threads(atoi(words[2]));
    for (unsigned i = 0; i < CALLERS; i++) {
        seeds[i] = (unsigned)atoi(words[1]) << 8 | i;
        pthread_create(&threads[i], NULL, caller, &seeds[i]);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    puts("right");
    return 0;
}

/* The limit of the machine: two pinned processes hand a cache line to each other, one line each way, no library.
 *
 *   handover CORE CORE        prints one way in nanoseconds: half the median round trip
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "ticks.h"

enum { TRIPS = 20000, WARM_UP = 2000, SECONDS = 60, PATIENCE = 1 << 14 };

struct lines {
    _Alignas(256) _Atomic uint64_t ping; /* apart, for processors that fetch lines in pairs */
    _Alignas(256) _Atomic uint64_t pong;
};

static uint64_t samples[TRIPS];

/* Polls without a pause, for this is the limit; gives way at times, for there may be others on the core. */
static inline void await(_Atomic uint64_t *line, uint64_t wanted) {
    for (;;) {
        int poll;
        for (poll = 0; poll < PATIENCE; poll++) {
            if (atomic_load_explicit(line, memory_order_acquire) == wanted) {
                return;
            }
        }
        sched_yield();
    }
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("handover: sched_setaffinity");
        _exit(EXIT_FAILURE);
    }
}

static void answer(struct lines *lines, int core) {
    uint64_t trip;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(SECONDS);
    pin(core);
    for (trip = 1; trip <= WARM_UP + TRIPS; trip++) {
        await(&lines->ping, trip);
        atomic_store_explicit(&lines->pong, trip, memory_order_release);
    }
    _exit(EXIT_SUCCESS);
}

static double ask(struct lines *lines, int core) {
    double begin = 0;
    uint64_t trip, last, now, first = 0;
    pin(core);
    last = ticks();
    for (trip = 1; trip <= WARM_UP + TRIPS; trip++) {
        if (trip == WARM_UP + 1) {
            begin = clock_ns();
            first = last;
        }
        atomic_store_explicit(&lines->ping, trip, memory_order_release);
        await(&lines->pong, trip);
        now = ticks();
        if (trip > WARM_UP) {
            samples[trip - WARM_UP - 1] = now - last;
        }
        last = now;
    }
    return (clock_ns() - begin) / (double)(last - first);
}

static int compare(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    struct lines *lines;
    double tick_ns;
    pid_t child;
    int status = 0;
    if (count != 3) {
        fprintf(stderr, "handover: give two cores: handover 0 1\n");
        return EXIT_FAILURE;
    }
    lines = mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lines == MAP_FAILED) {
        perror("handover: mmap");
        return EXIT_FAILURE;
    }
    alarm(SECONDS);
    child = fork();
    if (child == 0) {
        answer(lines, atoi(arguments[2]));
    }
    if (child < 0) {
        perror("handover: fork");
        return EXIT_FAILURE;
    }
    tick_ns = ask(lines, atoi(arguments[1]));
    waitpid(child, &status, 0);
    qsort(samples, TRIPS, sizeof *samples, compare);
    printf("%.2f\n", tick_ns * (double)samples[TRIPS / 2] / 2);
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

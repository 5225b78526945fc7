/* The limit of the machine: two pinned processes hand a cache line to each other, one line each way, no library.
 *
 *   handover CORE CORE        prints one way in nanoseconds: half the median round trip
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "handover.h"

enum { TRIPS = 10000, WARM_UP = 2000, SECONDS = 60 };

static uint64_t samples[TRIPS];

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("handover: sched_setaffinity");
        _exit(EXIT_FAILURE);
    }
}

static void serve(struct lines *lines, int core) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(SECONDS);
    pin(core);
    answer(lines, 0, WARM_UP + TRIPS);
    _exit(EXIT_SUCCESS);
}

int main(int count, char **arguments) {
    struct lines *lines;
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
    calibrate();
    child = fork();
    if (child == 0) {
        serve(lines, atoi(arguments[2]));
    }
    if (child < 0) {
        perror("handover: fork");
        return EXIT_FAILURE;
    }
    pin(atoi(arguments[1]));
    ask(lines, 0, WARM_UP, samples);
    ask(lines, WARM_UP, TRIPS, samples);
    waitpid(child, &status, 0);
    printf("%.2f\n", tick_ns * middle(samples, TRIPS) / 2);
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

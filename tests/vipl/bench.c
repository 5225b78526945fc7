/* Latency and bandwidth between two processes, beside a bare copy through shared memory.
 * `bench ROUNDS`: prints one line for each figure. */
#define _GNU_SOURCE
#include "common.h"

#include <sys/mman.h>
#include <time.h>

static int rounds = 20000;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static VIP_DESCRIPTOR *spin(side *own, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **)) {
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    long polls = 0;
    while ((code = done(own->vi, &found)) == VIP_NOT_DONE) {
        /* With fewer processors than processes, the other process must run. */
        if (++polls % 2000 == 0) usleep(0);
    }
    CHECK(code == VIP_SUCCESS);
    return found;
}

/* Messages of 4 bytes back and forth. */
static void latency(side *own) {
    int round, at;
    double start;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (at = 0; at < 64; at++) post_receive(own, (unsigned)at * 64, 4);
    connect_side(own);
    meet(own, 'b');
    start = now();
    for (round = 0; round < rounds; round++) {
        VIP_DESCRIPTOR *found;
        own->next = 64;
        if (!own->is_server) post_send(own, 8192, 4);
        found = spin(own, VipRecvDone);
        OK(VipPostRecv(own->vi, found, own->handle));
        if (own->is_server) post_send(own, 8192, 4);
        spin(own, VipSendDone);
    }
    if (own->is_server) {
        printf("%s memory: 4 bytes, one way: %.3f us\n", own->is_allocated ? "allocated" : "user",
               (now() - start) / rounds / 2 * 1e6);
        fflush(stdout);
    }
    meet(own, 'e');
    close_side(own);
}

enum { WINDOW = 8, LARGEST = 65536 };
static const unsigned lens[] = {4096, 16384, LARGEST};

static void print_bandwidth(const char *what, unsigned len, int count, double seconds) {
    printf("%s: %u bytes: %.2f GB/s\n", what, len, (double)len * count / seconds * 1e-9);
    fflush(stdout);
}

/* Messages of one size in one direction. The receiver returns a credit for each half of its window. */
static void bandwidth(side *own) {
    unsigned kind;
    int at;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (!own->is_server)
        for (at = 0; at < WINDOW; at++) post_receive(own, 0, 0);
    connect_side(own);
    for (kind = 0; kind < sizeof lens / sizeof *lens; kind++) {
        unsigned len = lens[kind];
        int count = rounds / 8 * 8, credits = WINDOW, done;
        double start;
        own->next = 2 * WINDOW;
        if (own->is_server)
            for (at = 0; at < WINDOW; at++) post_receive(own, (unsigned)at * len, len);
        meet(own, 'b');
        start = now();
        for (done = 0; done < count; done++) {
            if (own->is_server) {
                VIP_DESCRIPTOR *found = spin(own, VipRecvDone);
                if (done + WINDOW < count) OK(VipPostRecv(own->vi, found, own->handle));
                if (done % (WINDOW / 2) == WINDOW / 2 - 1) {
                    own->next = 100 + (unsigned)done % 32;
                    post_send(own, 0, 0);
                    spin(own, VipSendDone);
                }
            } else {
                if (credits == 0) {
                    OK(VipPostRecv(own->vi, spin(own, VipRecvDone), own->handle));
                    credits += WINDOW / 2;
                }
                credits--;
                own->next = 100;
                post_send(own, 0, len);
                spin(own, VipSendDone);
            }
        }
        while (!own->is_server && credits < WINDOW) {
            OK(VipPostRecv(own->vi, spin(own, VipRecvDone), own->handle));
            credits += WINDOW / 2;
        }
        meet(own, 'e');
        if (own->is_server)
            print_bandwidth(own->is_allocated ? "allocated memory" : "user memory", len, count, now() - start);
    }
    close_side(own);
}

/* The same by bare copies into shared memory: the most that a process can do. */
typedef struct {
    volatile int written, pad[31], read;
    char bytes[WINDOW][LARGEST];
} bare_memory;

static bare_memory *bare;

static void bare_copies(side *own) {
    static char source[LARGEST];
    unsigned kind;
    for (kind = 0; kind < sizeof lens / sizeof *lens; kind++) {
        double start;
        int done;
        long polls = 0;
        meet(own, 'b');
        start = now();
        for (done = 0; done < rounds; done++) {
            volatile int *awaited = own->is_server ? &bare->written : &bare->read;
            int least = own->is_server ? done + 1 : done + 1 - WINDOW;
            while (__atomic_load_n(awaited, __ATOMIC_ACQUIRE) < least)
                if (++polls % 2000 == 0) usleep(0);
            if (!own->is_server) memcpy(bare->bytes[done % WINDOW], source, lens[kind]);
            __atomic_store_n(own->is_server ? &bare->read : &bare->written, done + 1, __ATOMIC_RELEASE);
        }
        meet(own, 'e');
        if (own->is_server) {
            print_bandwidth("bare copies", lens[kind], rounds, now() - start);
            bare->written = bare->read = 0;
        }
        meet(own, 'z');
    }
}

int main(int count, char **arguments) {
    int is_allocated;
    if (count > 1) rounds = atoi(arguments[1]);
    CHECK(rounds >= 16);
    for (is_allocated = 1; is_allocated >= 0; is_allocated--) {
        two_processes("latency", is_allocated, latency);
    }
    for (is_allocated = 1; is_allocated >= 0; is_allocated--) {
        two_processes("bandwidth", is_allocated, bandwidth);
    }
    bare = mmap(NULL, sizeof *bare, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(bare != MAP_FAILED);
    two_processes("bare copies", 0, bare_copies);
    return 0;
}

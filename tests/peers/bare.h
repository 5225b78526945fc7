/* The layer of `oversubscription.c` without a library: processes that share memory, a few cache lines for each pair and
 * tag, and wait for one another in one way only. It measures the cost of the machine itself.
 *
 *   BARE_RANKS=N BARE_WAIT=yield|sleep oversubscription-bare TEST SECONDS
 *
 * `yield` gives the core away after each failed poll (sched_yield). `sleep` waits on a futex after the first failed
 * poll; a sender wakes the sleeper, but only for the last message that the sleeper lacks.
 */
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
    TAGS = 8,  /* tags from 0 on */
    SLOTS = 2  /* no sender is more than one message ahead of its receiver */
};

typedef struct {
    _Alignas(64) _Atomic uint64_t number;  /* of the message in it, from 1 on */
    uint64_t value;
} slot;

typedef struct {
    _Alignas(64) _Atomic uint32_t lacks;  /* the messages without which the sleeper can't go on; 0 while it is awake */
} bed;

typedef struct {
    int from, tag;
    uint64_t *value;  /* NULL for one that was sent */
} request;

static int rank, size, sleeps;
static bed *beds;
static slot *slots;
static uint64_t sent[MOST][TAGS], received[MOST][TAGS];

static void give_up(const char *problem) {
    fprintf(stderr, "oversubscription-bare: %s\n", problem);
    _exit(EXIT_FAILURE);
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        give_up("no memory to share");
    }
    return memory;
}

/* Makes this process rank 0; the others are its children. */
static void start(void) {
    const char *ranks = getenv("BARE_RANKS"), *way = getenv("BARE_WAIT");
    const pid_t parent = getpid();
    size = ranks == NULL ? 0 : atoi(ranks);
    if (size < 2 || size > MOST || way == NULL || (strcmp(way, "yield") != 0 && strcmp(way, "sleep") != 0)) {
        give_up("set BARE_RANKS to 2 to 256 and BARE_WAIT to yield or sleep");
    }
    sleeps = strcmp(way, "sleep") == 0;
    beds = shared(sizeof *beds * (size_t)size);
    slots = shared(sizeof *slots * (size_t)size * (size_t)size * TAGS * SLOTS);
    for (rank = size - 1; rank > 0; rank--) {
        const pid_t child = fork();
        if (child < 0) {
            give_up("no process to be had");
        }
        if (child == 0) {
            alarm(LIMIT);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) {
                _exit(EXIT_FAILURE);
            }
            return;
        }
    }
}

static inline void finish(void) {
    int status, left;
    for (left = rank == 0 ? size - 1 : 0; left > 0; left--) {
        if (wait(&status) < 0 || status != 0) {
            give_up("a process failed");
        }
    }
}

static inline slot *slot_of(int to, int from, int tag, uint64_t number) {
    return &slots[((((size_t)to * (size_t)size + (size_t)from) * TAGS + (size_t)tag) * SLOTS) + number % SLOTS];
}

static inline void wake_for_one(int to) {
    _Atomic uint32_t *lacks = &beds[to].lacks;
    uint32_t found;
    atomic_thread_fence(memory_order_seq_cst);
    found = atomic_load_explicit(lacks, memory_order_relaxed);
    while (found != 0 && !atomic_compare_exchange_weak(lacks, &found, found - 1)) {
    }
    if (found == 1) {
        syscall(SYS_futex, lacks, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static inline void transmit(int to, int tag, uint64_t value) {
    const uint64_t number = ++sent[to][tag];
    slot *out = slot_of(to, rank, tag, number);
    out->value = value;
    atomic_store_explicit(&out->number, number, memory_order_release);
    if (sleeps) {
        wake_for_one(to);
    }
}

/* Takes the messages that have arrived; returns the number still missing. */
static inline uint32_t take(int count, request *requests) {
    uint32_t lacking = 0;
    int at;
    for (at = 0; at < count; at++) {
        request *it = &requests[at];
        if (it->value != NULL) {
            const uint64_t number = received[it->from][it->tag] + 1;
            slot *in = slot_of(rank, it->from, it->tag, number);
            if (atomic_load_explicit(&in->number, memory_order_acquire) == number) {
                *it->value = in->value;
                received[it->from][it->tag] = number;
                it->value = NULL;
            } else {
                lacking++;
            }
        }
    }
    return lacking;
}

static void wait_all(int count, request *requests) {
    _Atomic uint32_t *lacks = &beds[rank].lacks;
    uint32_t lacking, again;
    while ((lacking = take(count, requests)) > 0) {
        if (!sleeps) {
            sched_yield();
            continue;
        }
        atomic_store_explicit(lacks, lacking, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        again = take(count, requests);
        while (again == lacking && (lacking = again = atomic_load(lacks)) > 0) {
            syscall(SYS_futex, lacks, FUTEX_WAIT, lacking, NULL, NULL, 0);
        }
        atomic_store_explicit(lacks, 0, memory_order_relaxed);
    }
}

/* Gives the core away or sleeps if the message is not there: in this layer every failed poll does. */
static inline int is_complete(request *it) {
    wait_all(1, it);
    return 1;
}

static inline void start_transmit(int to, int tag, const uint64_t *value, request *out) {
    transmit(to, tag, *value);
    out->value = NULL;
}

static inline void start_receive(int from, int tag, uint64_t *value, request *out) {
    *out = (request){from, tag, value};
}

static inline uint64_t receive(int from, int tag) {
    uint64_t value = 0;
    request one = {from, tag, &value};
    wait_all(1, &one);
    return value;
}

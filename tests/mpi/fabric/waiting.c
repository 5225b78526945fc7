/* Waits and threads: fabtests' groups rdm_pingpong with a wait object, rdm_stress, msg_epoll and dgram_waitset (their
 * waits, over this endpoint type). */
#define _GNU_SOURCE
#include "sides.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Sleeps on the descriptor of the queue until there is something to read. */
static void sleep_until(struct side *it, struct fi_cq_tagged_entry *entry) {
    const double end = now() + LIMIT;
    struct fid *fids[1] = {&it->cq->fid};
    int fd = -1, sleeper = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    OK(fi_control(&it->cq->fid, FI_GETWAIT, &fd));
    CHECK(fd >= 0 && sleeper >= 0 && epoll_ctl(sleeper, EPOLL_CTL_ADD, fd, &event) == 0);
    for (;;) {
        const ssize_t count = fi_cq_read(it->cq, entry, 1);
        if (count == 1) break;
        RETURNS(count, -FI_EAGAIN);
        CHECK(now() < end);
        const int status = fi_trywait(it->fabric, fids, 1);
        if (status == -FI_EAGAIN) continue;
        OK(status);
        CHECK(epoll_wait(sleeper, &event, 1, 1000 * LIMIT) == 1);
    }
    close(sleeper);
}

/* A ping-pong in which each side sleeps on a descriptor until the other has sent, short and long. */
static void descriptor(void) {
    struct side it;
    unsigned char *bytes = malloc(300000);
    open_side(&it, &(struct options){.wait = FI_WAIT_FD});
    CHECK(bytes != NULL);
    for (unsigned at = 0; at < 400; at++) {
        const size_t length = at % 10 == 9 ? 300000 : at;
        if (rank == (int)(at % 2)) {
            filled(bytes, length, at);
            POSTED(&it, fi_tsend(it.ep, bytes, length, NULL, it.peer, at, bytes));
        } else {
            OK(fi_trecv(it.ep, bytes, 300000, NULL, FI_ADDR_UNSPEC, at, 0, bytes));
        }
        struct fi_cq_tagged_entry entry;
        sleep_until(&it, &entry);
        CHECK(entry.op_context == bytes && (rank == (int)(at % 2) || is_filled(bytes, length, at)));
    }
    meet(&it);
    close_side(&it);
    free(bytes);
}

/* The same in calls that block. */
static void blocking(void) {
    const enum fi_wait_obj kinds[] = {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_NONE};
    for (int kind = 0; kind < 3; kind++) {
        struct side it;
        struct fi_cq_tagged_entry entry;
        int in;
        open_side(&it, &(struct options){.wait = kinds[kind], .threading = FI_THREAD_DOMAIN});
        for (int at = 0; at < 200; at++) {
            OK(fi_trecv(it.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 0, 0, &in));
            if (rank == at % 2) POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, 0));
            else POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.me, 0));
            if (rank == at % 2) POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.me, 0));
            const double end = now() + LIMIT;
            ssize_t count;
            while ((count = fi_cq_sread(it.cq, &entry, 1, NULL, 1000)) == -FI_EAGAIN) CHECK(now() < end);
            RETURNS(count, 1);
            CHECK(in == at);
            if (rank != at % 2) {
                /* That of the other process. */
                OK(fi_trecv(it.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 0, 0, &in));
                while ((count = fi_cq_sread(it.cq, &entry, 1, NULL, -1)) == -FI_EAGAIN) CHECK(now() < end);
                RETURNS(count, 1);
            }
            meet(&it);
        }
        RETURNS(fi_cq_sread(it.cq, &entry, 1, NULL, 20), -FI_EAGAIN);
        close_side(&it);
    }
}

static void *signaller(void *argument) {
    struct side *it = argument;
    /* Until the waiting thread has returned. */
    while (!__atomic_load_n(&it->me, __ATOMIC_ACQUIRE)) {
        OK(fi_cq_signal(it->cq));
        sched_yield();
    }
    return NULL;
}

/* Another thread ends a wait that nothing else would end. */
static void signalled(void) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    pthread_t thread;
    memset(&it, 0, sizeof it);
    const struct options options = {.threading = FI_THREAD_SAFE, .wait = FI_WAIT_UNSPEC};
    open_domain(&it, &options);
    open_endpoint(&it, &options);
    CHECK(pthread_create(&thread, NULL, signaller, &it) == 0);
    RETURNS(fi_cq_sread(it.cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    __atomic_store_n(&it.me, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    close_side(&it);
}

static int waiter; /* the number of the thread that waits */

/* Returns how often that thread has slept. */
static long sleeps(void) {
    char name[64], line[128];
    long count = -1;
    snprintf(name, sizeof name, "/proc/self/task/%d/status", __atomic_load_n(&waiter, __ATOMIC_ACQUIRE));
    FILE *file = fopen(name, "r");
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file)) sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    fclose(file);
    return count;
}

static void *cancelled_waiter(void *argument) {
    struct side *it = argument;
    struct fi_cq_tagged_entry entry;
    __atomic_store_n(&waiter, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    RETURNS(fi_cq_sread(it->cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    __atomic_store_n(&it->me, 1, __ATOMIC_RELEASE);
    pthread_testcancel();
    return NULL;
}

/* A thread that is cancelled while it waits ends when the wait has ended. */
static void cancelled(void) {
    struct side it;
    pthread_t thread;
    void *end = NULL;
    memset(&it, 0, sizeof it);
    const struct options options = {.threading = FI_THREAD_SAFE, .wait = FI_WAIT_UNSPEC};
    open_domain(&it, &options);
    open_endpoint(&it, &options);
    CHECK(pthread_create(&thread, NULL, cancelled_waiter, &it) == 0);
    const double until = now() + LIMIT;
    while (__atomic_load_n(&waiter, __ATOMIC_ACQUIRE) == 0 || sleeps() < 3) CHECK(now() < until);
    CHECK(pthread_cancel(thread) == 0);
    const long before = sleeps();
    while (sleeps() < before + 3) CHECK(now() < until);
    CHECK(signaller(&it) == NULL);
    CHECK(pthread_join(thread, &end) == 0 && end == PTHREAD_CANCELED);
    close_side(&it);
}

enum { THREADS = 4, ROUNDS = 2000 };

struct worker {
    struct side *it;
    unsigned number;
    unsigned long done;
    pthread_t thread;
};

/* Reads the queue for all threads, until this thread's messages are there. */
static unsigned long finished[2 * THREADS];

static void *work(void *argument) {
    struct worker *me = argument;
    struct side *it = me->it;
    const double end = now() + LIMIT;
    uint64_t out, in[2];
    for (unsigned long at = 1; at <= ROUNDS; at++) {
        out = me->number * 1000000ul + at;
        POSTED(it, fi_trecv(it->ep, in, sizeof out, NULL, FI_ADDR_UNSPEC, me->number, 0, &finished[me->number]));
        POSTED(it, fi_tinject(it->ep, &out, sizeof out, it->peer, me->number));
        while (__atomic_load_n(&finished[me->number], __ATOMIC_ACQUIRE) < at) {
            struct fi_cq_tagged_entry entry;
            const ssize_t count = at % 2 ? fi_cq_read(it->cq, &entry, 1) : fi_cq_sread(it->cq, &entry, 1, NULL, 5);
            if (count == 1) __atomic_fetch_add((unsigned long *)entry.op_context, 1, __ATOMIC_ACQ_REL);
            else RETURNS(count, -FI_EAGAIN);
            CHECK(now() < end);
        }
        CHECK(in[0] == out);
    }
    return NULL;
}

/* Threads share an endpoint and its queue: some poll, some sleep, and none starves another. */
static void threads(void) {
    struct side it;
    struct worker all[THREADS];
    open_side(&it, &(struct options){.threading = FI_THREAD_SAFE, .wait = FI_WAIT_UNSPEC});
    for (unsigned at = 0; at < THREADS; at++) {
        all[at] = (struct worker){.it = &it, .number = at};
        CHECK(pthread_create(&all[at].thread, NULL, work, &all[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++) pthread_join(all[at].thread, NULL);
    meet(&it);
    close_side(&it);
}

/* A send with FI_DELIVERY_COMPLETE completes when the message lies in memory that its receiver shares. To a peer that
 * is not connected yet, it completes after the message was received. */
static void delivered(void) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    int value = 4711, in = 0;
    char bytes[3000] = {0};
    open_side(&it, &(struct options){.tx_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION});
    if (rank == 0) {
        POSTED(&it, fi_tsend(it.ep, &value, sizeof value, NULL, it.peer, 5, &value));
        meet(&it);
        RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
        meet(&it);
        completed(&it, &value);
        for (unsigned tag = 6; tag <= 7; tag++) {
            POSTED(&it, fi_tsend(it.ep, bytes, tag == 6 ? 8 : sizeof bytes, NULL, it.peer, tag, bytes));
            completed(&it, bytes);
        }
        meet(&it);
    } else {
        meet(&it);
        meet(&it);
        OK(fi_trecv(it.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 5, 0, &in));
        completed(&it, &in);
        CHECK(in == value);
        meet(&it);
        for (unsigned tag = 7; tag >= 6; tag--) {
            OK(fi_trecv(it.ep, bytes, sizeof bytes, NULL, FI_ADDR_UNSPEC, tag, 0, bytes));
            completed(&it, bytes);
        }
    }
    meet(&it);
    close_side(&it);
}

/* Short messages, with data and without, are read several at a time, in order, beside a buffer for many. A receive with
 * a mask and one without may take the same message. */
static void in_batches(void) {
    enum { COUNT = 300, ROOM = 5, SIZES = 3 };
    static const size_t lengths[SIZES] = {8, 3, 60};
    static unsigned char in[COUNT][64], many[4096], out[64];
    struct side it;
    open_side(&it, &(struct options){0});
    if (rank == 0) {
        const struct iovec run = {many, sizeof many};
        const struct fi_msg buffer = {.msg_iov = &run, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = many};
        OK(fi_recvmsg(it.ep, &buffer, FI_MULTI_RECV));
        for (int at = 0; at < COUNT; at++) {
            OK(fi_trecv(it.ep, in[at], 64, NULL, it.peer, 7, at % 2 ? 1ull << 63 : 0, in[at]));
        }
        meet(&it);
        const double end = now() + LIMIT;
        for (unsigned done = 0; done < COUNT;) {
            struct fi_cq_tagged_entry entries[ROOM + 1];
            memset(entries, 0xee, sizeof entries);
            const ssize_t count = fi_cq_read(it.cq, entries, ROOM);
            CHECK(now() < end);
            if (count == -FI_EAGAIN) continue;
            CHECK(count > 0 && count <= ROOM && entries[count].tag == 0xeeeeeeeeeeeeeeeeu);
            for (int at = 0; at < count; at++, done++) {
                const size_t length = lengths[done % SIZES];
                const uint64_t data = done % 4 ? FI_REMOTE_CQ_DATA : 0;
                CHECK(entries[at].op_context == in[done] && entries[at].len == length && entries[at].tag == 7);
                CHECK(entries[at].flags == (FI_RECV | FI_TAGGED | data) && is_filled(in[done], length, done));
                CHECK(!data || entries[at].data == done);
            }
        }
    } else {
        meet(&it);
        for (unsigned at = 0; at < COUNT; at++) {
            const size_t length = lengths[at % SIZES];
            filled(out, length, at);
            if (at % 4) POSTED(&it, fi_tinjectdata(it.ep, out, length, at, it.peer, 7));
            else POSTED(&it, fi_tinject(it.ep, out, length, it.peer, 7));
        }
    }
    meet(&it);
    close_side(&it);
}

/* Binds this process to the first processor that it may use. */
static void bind_to_first(void) {
    cpu_set_t all, first;
    int at = 0;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(at, &all)) at++;
    CPU_ZERO(&first);
    CPU_SET(at, &first);
    CHECK(sched_setaffinity(0, sizeof first, &first) == 0);
}

/* A process that polls an empty queue sleeps if its peer has the same processor, and the next message wakes it. */
static void oversubscribed(void) {
    struct side it;
    struct fi_cq_tagged_entry entry;
    struct rusage usage;
    char byte = 'm';
    int in = 0;
    bind_to_first();
    open_side(&it, &(struct options){.threading = FI_THREAD_DOMAIN});
    for (int at = 0; at < 10; at++) {
        OK(fi_trecv(it.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 7, 0, &in));
        if (rank == 1) {
            /* This process sleeps until the other one has slept. */
            CHECK(at == 0 || recv(other, &byte, 1, 0) == 1);
            POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, 7));
            completed(&it, &in);
        } else if (at > 0) {
            const double end = now() + LIMIT;
            CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
            for (const long before = usage.ru_nvcsw; usage.ru_nvcsw < before + 3;) {
                RETURNS(fi_cq_read(it.cq, &entry, 1), -FI_EAGAIN);
                CHECK(now() < end && getrusage(RUSAGE_SELF, &usage) == 0);
            }
            CHECK(send(other, &byte, 1, MSG_NOSIGNAL) == 1);
        }
        if (rank == 0) {
            completed(&it, &in);
            POSTED(&it, fi_tinject(it.ep, &at, sizeof at, it.peer, 7));
        }
        CHECK(in == at);
    }
    meet(&it);
    close_side(&it);
}

static const struct test TESTS[] = {
    {"in_batches", in_batches, 2},
    {"descriptor", descriptor, 2}, {"blocking", blocking, 2}, {"signalled", signalled, 1}, {"cancelled", cancelled, 1},
    {"threads", threads, 2}, {"delivered", delivered, 2}, {"oversubscribed", oversubscribed, 2},
};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }

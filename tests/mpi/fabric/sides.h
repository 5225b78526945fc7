/* What the programs share that call libfabric itself: two processes, the endpoint of each, and checks with a limit.
 *
 * A program lists its tests if it is called without words, and runs the one that its word names. Process 0 makes
 * process 1 by fork before either calls libfabric. The two meet over a socket. */
#ifndef SIDES_H
#define SIDES_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 120, ADDRESS = 64, ENTRIES = 16 }; /* seconds; bytes; completions */

#define API FI_VERSION(1, 17)

static int rank; /* 0 or 1 */
static int other = -1; /* the socket to the other process */

/* Ends the process if a condition does not hold. */
#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "process %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                   \
            _exit(1);                                                                                           \
        }                                                                                                       \
    } while (0)

/* Ends the process if a call does not return this. */
#define RETURNS(call, expected)                                                                                 \
    do {                                                                                                        \
        const long long value_ = (long long)(call), expected_ = (long long)(expected);                          \
        if (value_ != expected_) {                                                                              \
            fprintf(stderr, "process %d: %s:%d: %s is %lld (%s), not %lld\n", rank, __FILE__, __LINE__, #call,  \
                    value_, fi_strerror((int)-value_), expected_);                                              \
            _exit(1);                                                                                           \
        }                                                                                                       \
    } while (0)

#define OK(call) RETURNS(call, 0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* One process's objects. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_cntr *progress; /* its reads make progress; it counts what the options name */
    struct fid_ep *ep;
    unsigned char own[ADDRESS], others[ADDRESS];
    fi_addr_t me, peer;
    struct side *next; /* makes progress with this one, or NULL */
};

/* How the endpoint of a side is opened; all zero is usual. */
struct options {
    uint64_t caps; /* 0: what the provider gives */
    uint64_t tx_flags, rx_flags, cq_flags;
    uint64_t counted;
    enum fi_cq_format format;
    enum fi_wait_obj wait;
    enum fi_threading threading;
    enum fi_av_type av;
};

static struct fi_info *new_hints(void) {
    struct fi_info *hints = fi_allocinfo();
    CHECK(hints != NULL);
    hints->fabric_attr->prov_name = strdup("nemesia");
    hints->ep_attr->type = FI_EP_RDM;
    return hints;
}

static inline void *filled(void *bytes, size_t length, unsigned seed) {
    unsigned char *to = bytes;
    for (size_t at = 0; at < length; at++) to[at] = (unsigned char)(seed * 31u + at + (at >> 8));
    return bytes;
}

static inline int is_filled(const void *bytes, size_t length, unsigned seed) {
    const unsigned char *from = bytes;
    for (size_t at = 0; at < length; at++) {
        if (from[at] != (unsigned char)(seed * 31u + at + (at >> 8))) return 0;
    }
    return 1;
}

/* Passes bytes to the other process, and takes as many from it. Makes progress meanwhile. */
static void exchange(struct side *it, const void *mine, void *theirs, size_t length) {
    unsigned char *to = theirs;
    const double end = now() + LIMIT;
    CHECK(send(other, mine, length, MSG_NOSIGNAL) == (ssize_t)length);
    for (size_t done = 0; done < length;) {
        const ssize_t count = recv(other, to + done, length - done, MSG_DONTWAIT);
        CHECK(count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR)));
        if (count > 0) done += (size_t)count;
        for (struct side *one = it; count <= 0 && one != NULL; one = one->next) fi_cntr_read(one->progress);
        CHECK(now() < end);
        if (count < 0) sched_yield();
    }
}

/* Waits until both processes are here. */
static inline void meet(struct side *it) {
    char byte = 'm', theirs;
    exchange(it, &byte, &theirs, 1);
    CHECK(theirs == byte);
}

static void open_domain(struct side *it, const struct options *options) {
    struct fi_info *hints = new_hints();
    hints->caps = options->caps;
    hints->domain_attr->threading = options->threading;
    hints->domain_attr->av_type = options->av;
    hints->tx_attr->op_flags = options->tx_flags;
    hints->rx_attr->op_flags = options->rx_flags;
    OK(fi_getinfo(API, NULL, NULL, 0, hints, &it->info));
    fi_freeinfo(hints);
    OK(fi_fabric(it->info->fabric_attr, &it->fabric, NULL));
    OK(fi_domain(it->fabric, it->info, &it->domain, NULL));
}

/* Opens an endpoint in the domain, bound to a queue of its own. */
static void open_endpoint(struct side *it, const struct options *options) {
    struct fi_cq_attr queue = {.format = options->format ? options->format : FI_CQ_FORMAT_TAGGED,
                               .wait_obj = options->wait};
    struct fi_av_attr vector = {.type = options->av};
    struct fi_cntr_attr counter = {.events = FI_CNTR_EVENTS_COMP};
    size_t length = ADDRESS;
    OK(fi_av_open(it->domain, &vector, &it->av, NULL));
    OK(fi_cq_open(it->domain, &queue, &it->cq, NULL));
    OK(fi_cntr_open(it->domain, &counter, &it->progress, NULL));
    OK(fi_endpoint(it->domain, it->info, &it->ep, NULL));
    OK(fi_ep_bind(it->ep, &it->av->fid, 0));
    OK(fi_ep_bind(it->ep, &it->cq->fid, FI_SEND | FI_RECV | options->cq_flags));
    if (options->counted) OK(fi_ep_bind(it->ep, &it->progress->fid, options->counted));
    OK(fi_enable(it->ep));
    OK(fi_getname(&it->ep->fid, it->own, &length));
    CHECK(length == ADDRESS);
}

/* Opens all objects, and makes the two processes known to each other. */
static inline void open_side(struct side *it, const struct options *options) {
    memset(it, 0, sizeof *it);
    open_domain(it, options);
    open_endpoint(it, options);
    exchange(it, it->own, it->others, ADDRESS);
    RETURNS(fi_av_insert(it->av, it->own, 1, &it->me, 0, NULL), 1);
    RETURNS(fi_av_insert(it->av, it->others, 1, &it->peer, 0, NULL), 1);
}

static inline void close_side(struct side *it) {
    OK(fi_close(&it->ep->fid));
    OK(fi_close(&it->cq->fid));
    OK(fi_close(&it->av->fid));
    OK(fi_close(&it->progress->fid));
    OK(fi_close(&it->domain->fid));
    OK(fi_close(&it->fabric->fid));
    fi_freeinfo(it->info);
}

/* Waits for the next completion, which may be an error. Returns 1, or -FI_EAVAIL. */
static ssize_t next_from(struct side *it, void *entry, fi_addr_t *source) {
    const double end = now() + LIMIT;
    for (;;) {
        const ssize_t count = source == NULL ? fi_cq_read(it->cq, entry, 1) : fi_cq_readfrom(it->cq, entry, 1, source);
        if (count != -FI_EAGAIN) return count;
        CHECK(now() < end);
    }
}

/* Waits for the completion of a context, which succeeds. */
static inline struct fi_cq_tagged_entry completed(struct side *it, const void *context) {
    struct fi_cq_tagged_entry entry;
    memset(&entry, 0xee, sizeof entry);
    RETURNS(next_from(it, &entry, NULL), 1);
    CHECK(entry.op_context == context);
    return entry;
}

/* Waits for the completion of a context, which fails with this error. */
static inline struct fi_cq_err_entry failed(struct side *it, const void *context, int error) {
    struct fi_cq_err_entry entry;
    struct fi_cq_tagged_entry good;
    memset(&entry, 0, sizeof entry);
    RETURNS(next_from(it, &good, NULL), -FI_EAVAIL);
    RETURNS(fi_cq_readerr(it->cq, &entry, 0), 1);
    CHECK(entry.op_context == context);
    RETURNS(entry.err, error);
    CHECK(fi_cq_strerror(it->cq, entry.prov_errno, NULL, NULL, 0) != NULL);
    return entry;
}

/* Repeats a call as long as it returns -FI_EAGAIN, and makes progress. */
#define POSTED(it, call)                                                                                        \
    do {                                                                                                        \
        const double end_ = now() + LIMIT;                                                                      \
        ssize_t posted_;                                                                                        \
        while ((posted_ = (call)) == -FI_EAGAIN) {                                                              \
            fi_cntr_read((it)->progress);                                                                       \
            CHECK(now() < end_);                                                                                \
        }                                                                                                       \
        RETURNS(posted_, 0);                                                                                    \
    } while (0)

/* A test, for two processes or for one. */
struct test {
    const char *name;
    void (*run)(void);
    int processes;
};

/* Runs the test that the word names, or lists all. */
static inline int run_test(int count, char **words, const struct test *tests, size_t many) {
    for (size_t at = 0; at < many; at++) {
        const struct test *test = &tests[at];
        int ends[2], status = 0;
        pid_t child = 0;
        if (count < 2) {
            puts(test->name);
            continue;
        }
        if (strcmp(words[1], test->name) != 0) continue;
        if (test->processes == 2) {
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
            child = fork();
            CHECK(child >= 0);
            rank = child == 0;
            if (rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
            other = ends[rank];
            close(ends[!rank]);
        }
        test->run();
        if (rank == 1) _exit(0);
        if (child > 0) {
            CHECK(waitpid(child, &status, 0) == child);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        printf("%s passed\n", test->name);
        return 0;
    }
    return count < 2 ? 0 : 2;
}

#endif

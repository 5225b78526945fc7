/* The completion queue, many requests at once, and inject, between two processes: `queue CASE`. */
#include "check.h"

#include <poll.h>
#include <string.h>

enum { COUNT = 40, LARGE = 100000 };
static const int64_t SECOND = 1000000000;
static const int64_t FOR_EVER = -1;

static nemesia_endpoint *endpoint;
static int32_t rank;
static int32_t peer;

static void barrier(void) {
    OK(nemesia_endpoint_barrier(endpoint));
}

static nemesia_operation operation(uint32_t kind, uint64_t user_context) {
    nemesia_operation it;
    memset(&it, 0, sizeof it);
    it.struct_size = sizeof it;
    it.kind = kind;
    it.flags = NEMESIA_OPERATION_COMPLETION;
    it.user_context = user_context;
    it.rank = peer;
    it.tag = user_context;
    return it;
}

static void start(const nemesia_operation *it) {
    OK(nemesia_endpoint_start(endpoint, it, NULL));
}

/* Both send many messages and receive as many: more than one call takes. */
static void completions(void) {
    static unsigned char sent[COUNT][LARGE], received[COUNT][LARGE];
    nemesia_completion done[3 * COUNT];
    size_t at, taken = 0, seen[2] = {0, 0};
    for (at = 0; at < COUNT; at++) {
        const size_t len = at % 2 ? LARGE : 8;
        nemesia_operation send = operation(NEMESIA_OPERATION_SEND, at);
        nemesia_operation receive = operation(NEMESIA_OPERATION_RECEIVE, at);
        memset(sent[at], (int)at + rank, len);
        send.buffer = sent[at];
        send.len = len;
        receive.buffer = received[at];
        receive.len = LARGE;
        start(&receive);
        start(&send);
    }
    while (taken < 2 * COUNT) {
        size_t some = 0;
        OK(nemesia_endpoint_wait_completions(endpoint, 60 * SECOND, sizeof done / sizeof *done - taken, done + taken,
                                             &some));
        CHECK(some > 0);
        taken += some;
    }
    for (at = 0; at < taken; at++) {
        const nemesia_completion *it = &done[at];
        const size_t len = it->user_context % 2 ? LARGE : 8;
        CHECK(it->code == NEMESIA_OK && it->rank == peer && it->tag == it->user_context && it->len == len);
        CHECK(it->total == len && it->flags == 0 && it->immediate == 0);
        if (it->kind == NEMESIA_COMPLETION_RECEIVE) {
            const unsigned char *bytes = received[it->user_context];
            CHECK(bytes[0] == it->user_context + (unsigned)peer && memcmp(bytes, bytes + 1, len - 1) == 0);
            seen[0]++;
        } else {
            CHECK(it->kind == NEMESIA_COMPLETION_SEND);
            seen[1]++;
        }
    }
    CHECK(seen[0] == COUNT && seen[1] == COUNT);
    OK(nemesia_endpoint_wait_completions(endpoint, 0, 1, done, &taken));
    CHECK(taken == 0);
    OK(nemesia_endpoint_wait_completions(endpoint, FOR_EVER, 0, NULL, &taken));
    CHECK(taken == 0);
}

/* Truncation, cancellation, and the errors of a start. */
static void errors(void) {
    nemesia_completion done[4];
    nemesia_operation receive = operation(NEMESIA_OPERATION_RECEIVE, 7), wrong;
    char word[4] = "";
    uint64_t request;
    size_t taken;
    bool cancelled = false;
    receive.buffer = word;
    receive.len = sizeof word;
    OK(nemesia_endpoint_start(endpoint, &receive, &request));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_test(endpoint, request, NULL));
    OK(nemesia_endpoint_cancel(endpoint, request, &cancelled));
    CHECK(cancelled);
    OK(nemesia_endpoint_completions(endpoint, 4, done, &taken));
    CHECK(taken == 1 && done[0].code == NEMESIA_ERR_CANCELLED && done[0].user_context == 7 && done[0].rank == -1);
    start(&receive);
    OK(nemesia_endpoint_send(endpoint, peer, 7, "truncated", 9));
    OK(nemesia_endpoint_wait_completions(endpoint, 60 * SECOND, 4, done, &taken));
    CHECK(taken == 1 && done[0].code == NEMESIA_ERR_TRUNCATED && done[0].len == 4 && done[0].total == 9);
    CHECK(done[0].rank == peer && done[0].tag == 7 && memcmp(word, "trun", 4) == 0);

    wrong = receive;
    wrong.kind = 99;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = receive;
    wrong.flags |= NEMESIA_OPERATION_NOTIFY;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = receive;
    wrong.flags = 0;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = receive;
    wrong.struct_size = 8;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = receive;
    wrong.buffer = NULL;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = receive;
    wrong.rank = 5;
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = operation(NEMESIA_OPERATION_PUT, 1);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_completions(endpoint, 1, NULL, &taken));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_completions(endpoint, 1, done, NULL));
    OK(nemesia_endpoint_completions(endpoint, 4, done, &taken));
    CHECK(taken == 0);
    barrier();
}

static void note(void *context, int32_t from, const void *header, size_t header_len, const void *payload, size_t len,
                 nemesia_incoming *message) {
    (void)header, (void)payload, (void)message;
    CHECK(from == peer && header_len == 0 && len == 8);
    ++*(int *)context;
}

/* Every other kind of operation, with and without the queue. */
static void kinds(void) {
    enum { KINDS = 9 };
    static uint64_t memory[8], words[8], old[3];
    static int notes;
    nemesia_remote_key mine, key;
    nemesia_completion done[KINDS];
    nemesia_operation it;
    nemesia_iovec list[2];
    uint64_t region, message, request;
    size_t taken = 0, at;
    OK(nemesia_endpoint_set_handler(endpoint, 3, note, &notes));
    OK(nemesia_endpoint_expose(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE, &region));
    OK(nemesia_endpoint_remote_key(endpoint, region, &mine));
    OK(nemesia_endpoint_send(endpoint, peer, 100, &mine, sizeof mine));
    OK(nemesia_endpoint_recv(endpoint, peer, 100, 0, sizeof key, &key, NULL));
    words[0] = 5;
    for (at = NEMESIA_OPERATION_ACTIVE; at <= NEMESIA_OPERATION_NOTIFIED; at++) {
        it = operation((uint32_t)at, at);
        it.key = &key;
        it.handler = 3;
        it.buffer = at == NEMESIA_OPERATION_FETCH           ? &old[1]
                    : at == NEMESIA_OPERATION_COMPARE_SWAP ? &old[2]
                    : at == NEMESIA_OPERATION_GET          ? &old[0]
                                                           : &words[0];
        it.len = 8;
        it.datatype = NEMESIA_TYPE_U64;
        it.op = NEMESIA_OP_SUM;
        it.operand = at == NEMESIA_OPERATION_NOTIFIED ? 1 : 2;
        it.expected = 7;
        it.region = region;
        if (at == NEMESIA_OPERATION_PUT) it.flags |= NEMESIA_OPERATION_NOTIFY;
        start(&it);
        /* One after the other, so that the values are known. */
        if (at == NEMESIA_OPERATION_ACCUMULATE) OK(nemesia_endpoint_flush(endpoint, peer));
    }
    OK(nemesia_endpoint_send(endpoint, peer, 101, "message", 8));
    OK(nemesia_endpoint_mprobe(endpoint, 0, peer, 101, 0, FOR_EVER, &message, NULL));
    it = operation(NEMESIA_OPERATION_MATCHED_RECEIVE, 0);
    list[0].base = &words[1];
    list[0].len = 3;
    list[1].base = &words[2];
    list[1].len = 5;
    it.message = message;
    it.list = list;
    it.count = 2;
    start(&it);
    while (taken < KINDS) {
        size_t some = 0;
        OK(nemesia_endpoint_wait_completions(endpoint, 60 * SECOND, KINDS - taken, done + taken, &some));
        CHECK(some > 0);
        taken += some;
    }
    for (at = 0; at < KINDS; at++) {
        static const uint32_t expected[] = {
            NEMESIA_COMPLETION_RECEIVE, 0, 0, 0, NEMESIA_COMPLETION_ACTIVE, NEMESIA_COMPLETION_PUT,
            NEMESIA_COMPLETION_GET, NEMESIA_COMPLETION_ATOMIC, NEMESIA_COMPLETION_ATOMIC, NEMESIA_COMPLETION_ATOMIC,
            NEMESIA_COMPLETION_FLUSH, NEMESIA_COMPLETION_NOTIFICATION};
        CHECK(done[at].code == NEMESIA_OK && done[at].kind == expected[done[at].user_context]);
    }
    CHECK(old[1] == 10 && old[2] == 12 && memcmp(&words[1], "mes", 3) == 0 && memcmp(&words[2], "sage", 5) == 0);
    barrier();
    /* Without the queue there is a request. */
    it = operation(NEMESIA_OPERATION_GET, 0);
    it.flags = 0;
    it.key = &key;
    it.buffer = &old[0];
    it.len = 8;
    OK(nemesia_endpoint_start(endpoint, &it, &request));
    OK(nemesia_endpoint_wait(endpoint, request, 60 * SECOND, NULL));
    CHECK(old[0] == 12);
    while (notes == 0) OK(nemesia_endpoint_progress(endpoint, NULL));
    barrier();
    OK(nemesia_endpoint_unexpose(endpoint, region));
}

static void run(const nemesia_operation *it) {
    OK(nemesia_endpoint_run(endpoint, it, NULL));
}

/* Every kind of operation to its end, without a request. */
static void runs(void) {
    static uint64_t memory[2], words[3] = {5, 0, 0}, old;
    static int notes;
    nemesia_remote_key mine, key;
    nemesia_operation it;
    nemesia_iovec list[2] = {{&words[1], 3}, {&words[2], 5}};
    nemesia_status status;
    uint64_t region;
    OK(nemesia_endpoint_set_handler(endpoint, 3, note, &notes));
    OK(nemesia_endpoint_expose(endpoint, memory, sizeof memory, NEMESIA_ACCESS_READ_WRITE, &region));
    OK(nemesia_endpoint_remote_key(endpoint, region, &mine));
    OK(nemesia_endpoint_send(endpoint, peer, 100, &mine, sizeof mine));
    OK(nemesia_endpoint_recv(endpoint, peer, 100, 0, sizeof key, &key, NULL));
    it = operation(NEMESIA_OPERATION_PUT, 0);
    it.flags = NEMESIA_OPERATION_NOTIFY | NEMESIA_OPERATION_DELIVERED;
    it.key = &key;
    it.buffer = &words[0];
    it.len = 8;
    run(&it);
    it.offset = 1000;
    GIVES(NEMESIA_ERR_BOUNDS, nemesia_endpoint_run(endpoint, &it, NULL));
    it.offset = 0;
    it.list = list;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_run(endpoint, &it, NULL));
    CHECK(strstr(nemesia_last_error_message(), "only tagged messages") != NULL);
    it.list = NULL;
    it.kind = NEMESIA_OPERATION_ACCUMULATE;
    it.flags = NEMESIA_OPERATION_DELIVERED;
    it.datatype = NEMESIA_TYPE_U64;
    it.op = NEMESIA_OP_SUM;
    run(&it);
    it.kind = NEMESIA_OPERATION_FETCH;
    it.flags = 0;
    it.operand = 2;
    it.buffer = &old;
    run(&it);
    CHECK(old == 10);
    it.kind = NEMESIA_OPERATION_COMPARE_SWAP;
    it.op = 0;
    it.expected = 12;
    it.operand = 7;
    run(&it);
    CHECK(old == 12);
    it.kind = NEMESIA_OPERATION_GET;
    run(&it);
    CHECK(old == 7);
    it.kind = NEMESIA_OPERATION_FLUSH;
    run(&it);
    it = operation(NEMESIA_OPERATION_NOTIFIED, 0);
    it.flags = 0;
    it.region = region;
    it.operand = 1;
    run(&it);
    it = operation(NEMESIA_OPERATION_ACTIVE, 0);
    it.flags = 0;
    it.handler = 3;
    it.buffer = &words[0];
    it.len = 8;
    run(&it);
    while (notes == 0) OK(nemesia_endpoint_progress(endpoint, NULL));
    OK(nemesia_endpoint_send(endpoint, peer, 101, "message", 8));
    it = operation(NEMESIA_OPERATION_MATCHED_RECEIVE, 0);
    it.flags = 0;
    it.list = list;
    it.count = 2;
    OK(nemesia_endpoint_mprobe(endpoint, 0, peer, 101, 0, FOR_EVER, &it.message, NULL));
    OK(nemesia_endpoint_run(endpoint, &it, &status));
    CHECK(status.len == 8 && status.tag == 101 && memcmp(&words[1], "mes", 3) == 0);
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_run(endpoint, &it, &status));
    barrier();
    CHECK(memory[0] == 7);
    OK(nemesia_endpoint_unexpose(endpoint, region));
}

/* An event loop sleeps until a completion is in the queue. */
static void sleep_for_completion(void) {
    nemesia_completion done[2];
    nemesia_operation receive = operation(NEMESIA_OPERATION_RECEIVE, 1);
    char word[8] = "";
    struct pollfd fd;
    size_t taken = 0;
    if (rank == 1) {
        OK(nemesia_endpoint_recv(endpoint, 0, 2, 0, 0, NULL, NULL));
        OK(nemesia_endpoint_send(endpoint, 0, 1, "nemesia", 8));
        return;
    }
    receive.buffer = word;
    receive.len = sizeof word;
    start(&receive);
    OK(nemesia_endpoint_event_fd(endpoint, &fd.fd));
    fd.events = POLLIN;
    OK(nemesia_endpoint_send(endpoint, 1, 2, NULL, 0));
    for (;;) {
        int32_t armed;
        OK(nemesia_endpoint_completions(endpoint, 2, done, &taken));
        if (taken > 0) break;
        armed = nemesia_endpoint_arm(endpoint);
        CHECK(armed == NEMESIA_OK || armed == NEMESIA_BUSY);
        if (armed == NEMESIA_OK) CHECK(poll(&fd, 1, 60000) >= 0);
    }
    CHECK(taken == 1 && done[0].user_context == 1 && strcmp(word, "nemesia") == 0);
}

/* wait_any, test_some, wait_progress, and waits with a limit of 0. */
static void many(void) {
    char words[COUNT][8];
    uint64_t requests[COUNT];
    nemesia_status statuses[COUNT], status;
    size_t indices[COUNT], at, count, ended = 0;
    if (rank == 1) {
        barrier();
        for (at = COUNT; at-- > 0;) OK(nemesia_endpoint_send(endpoint, 0, at, "nemesia", 8));
        barrier();
        return;
    }
    for (at = 0; at < COUNT; at++) {
        OK(nemesia_endpoint_irecv(endpoint, 1, at, 0, sizeof words[at], words[at], &requests[at]));
    }
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait(endpoint, requests[0], 0, NULL));
    CHECK(strstr(nemesia_last_error_message(), "within 0ns") != NULL && nemesia_last_error_rank() == -1);
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait_all(endpoint, COUNT, requests, 0, statuses));
    CHECK(statuses[0].code == NEMESIA_PENDING && statuses[COUNT - 1].code == NEMESIA_PENDING);
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait_any(endpoint, COUNT, requests, 0, &at, NULL));
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait_any(endpoint, COUNT, requests, 1000000, &at, NULL));
    OK(nemesia_endpoint_test_some(endpoint, COUNT, requests, &count, indices, statuses));
    CHECK(count == 0);
    barrier();
    OK(nemesia_endpoint_wait_any(endpoint, COUNT, requests, 60 * SECOND, &at, &status));
    CHECK(at < COUNT && status.tag == at && status.len == 8 && requests[at] == NEMESIA_REQUEST_DONE);
    for (ended = 1; ended < COUNT; ended += count) {
        OK(nemesia_endpoint_test_some(endpoint, COUNT, requests, &count, indices, statuses));
        for (at = 0; at < count; at++) {
            CHECK(requests[indices[at]] == NEMESIA_REQUEST_DONE && statuses[at].code == NEMESIA_OK);
            CHECK(statuses[at].tag == indices[at] && (at == 0 || indices[at] > indices[at - 1]));
        }
        if (count == 0) {
            const int32_t happened = nemesia_endpoint_wait_progress(endpoint, SECOND);
            CHECK(happened == NEMESIA_OK || happened == NEMESIA_PENDING);
        }
    }
    OK(nemesia_endpoint_wait_any(endpoint, COUNT, requests, FOR_EVER, &at, NULL));
    CHECK(at == COUNT);
    requests[3] = NEMESIA_REQUEST_NONE;
    OK(nemesia_endpoint_wait_any(endpoint, COUNT, requests, FOR_EVER, &at, NULL));
    CHECK(at == 3);
    barrier();
}

static void inject(void) {
    static unsigned char bytes[1 << 20], received[1 << 20];
    size_t most = 0, count = 0, at;
    OK(nemesia_endpoint_inject_bytes(endpoint, &most));
    CHECK(most > 0 && most < sizeof bytes);
    if (rank == 1) {
        barrier();
        OK(nemesia_endpoint_recv(endpoint, 0, 1000000, 0, sizeof count, &count, NULL));
        for (at = 0; at < count; at++) {
            nemesia_status status;
            OK(nemesia_endpoint_recv(endpoint, 0, 5, 0, sizeof received, received, &status));
            CHECK(status.len == most && received[0] == (unsigned char)at && received[most - 1] == (unsigned char)at);
        }
        return;
    }
    for (;;) {
        int32_t sent;
        memset(bytes, (int)count, most);
        sent = nemesia_endpoint_inject(endpoint, 0, 1, 5, bytes, most);
        if (sent == NEMESIA_OK) {
            count++;
            continue;
        }
        CHECK(sent == NEMESIA_BUSY);
        /* The first message may have to wait until the receiver has granted credit. */
        if (count > 0) break;
        OK(nemesia_endpoint_progress(endpoint, NULL));
    }
    CHECK(count > 0);
    GIVES(NEMESIA_ERR_TOO_LONG, nemesia_endpoint_inject(endpoint, 0, 1, 5, bytes, most + 1));
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_inject(endpoint, 0, 2, 5, bytes, 1));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_inject(endpoint, 0, 1, 5, NULL, 1));
    barrier();
    OK(nemesia_endpoint_send(endpoint, 1, 1000000, &count, sizeof count));
}

/* Buffers that receive one message after the other: 8 * 7 bytes, then as many, then one that is withdrawn. */
static void multi(void) {
    static unsigned char buffers[3][64];
    static char large[100000];
    nemesia_completion done[2 * COUNT];
    nemesia_operation it, wrong;
    uint64_t request = 0;
    size_t at, taken = 0, ends = 0, messages = 0;
    bool cancelled = false;
    if (rank == 1) {
        for (at = 0; at < 15; at++) {
            unsigned char bytes[7];
            memset(bytes, (int)at + 1, sizeof bytes);
            OK(nemesia_endpoint_send(endpoint, 0, 40 + at, bytes, sizeof bytes));
        }
        /* Longer than any buffer. */
        OK(nemesia_endpoint_send(endpoint, 0, 90, large, sizeof large));
        barrier();
        return;
    }
    for (at = 0; at < 3; at++) {
        it = operation(NEMESIA_OPERATION_MULTI_RECEIVE, 10 + at);
        it.tag = 0;
        it.ignore = UINT64_MAX;
        it.buffer = buffers[at];
        it.len = sizeof buffers[at];
        it.operand = 9;
        OK(nemesia_endpoint_start(endpoint, &it, &request));
    }
    wrong = it;
    wrong.flags = 0;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, &request));
    wrong = it;
    wrong.offset = 24;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    wrong = it;
    wrong.buffer = NULL;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &wrong, NULL));
    OK(nemesia_endpoint_recv(endpoint, 1, 90, 0, sizeof large, large, NULL));
    while (taken < 17) {
        size_t some = 0;
        OK(nemesia_endpoint_wait_completions(endpoint, 60 * SECOND, sizeof done / sizeof *done - taken, done + taken,
                                             &some));
        CHECK(some > 0);
        taken += some;
    }
    OK(nemesia_endpoint_cancel(endpoint, request, &cancelled));
    CHECK(cancelled && taken == 17);
    OK(nemesia_endpoint_completions(endpoint, 1, done + taken, &at));
    CHECK(at == 1);
    for (at = 0; at < 18; at++) {
        const nemesia_completion *one = &done[at];
        const size_t buffer = one->user_context - 10;
        if (one->kind == NEMESIA_COMPLETION_MULTI_RECEIVE_END) {
            CHECK(buffer == ends++ && one->offset == 0);
            CHECK(buffer == 2 ? one->code == NEMESIA_ERR_CANCELLED : one->code == NEMESIA_OK && one->len == 55);
            continue;
        }
        CHECK(one->kind == NEMESIA_COMPLETION_MULTI_RECEIVE && one->code == NEMESIA_OK && one->rank == 1);
        CHECK(one->tag == 40 + messages && one->len == 7 && one->total == 7);
        CHECK(buffer == messages / 7 && one->offset == messages % 7 * 8);
        CHECK(buffers[buffer][one->offset] == messages + 1 && buffers[buffer][one->offset + 6] == messages + 1);
        messages++;
    }
    CHECK(messages == 15 && ends == 3);
    barrier();
}

/* A probed message is received into several runs. */
static void lists(void) {
    char first[3], rest[8];
    nemesia_iovec list[2] = {{NULL, 3}, {NULL, 8}};
    nemesia_operation it = operation(NEMESIA_OPERATION_MATCHED_RECEIVE, 0);
    uint64_t request;
    if (rank == 0) {
        OK(nemesia_endpoint_send(endpoint, 1, 1, "0123456789", 10));
        return;
    }
    it.flags = 0;
    it.list = list;
    it.count = 2;
    OK(nemesia_endpoint_mprobe(endpoint, 0, 0, 1, 0, FOR_EVER, &it.message, NULL));
    /* An invalid list does not take the message. */
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_start(endpoint, &it, &request));
    list[0].base = first;
    list[1].base = rest;
    OK(nemesia_endpoint_start(endpoint, &it, &request));
    OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    CHECK(memcmp(first, "012", 3) == 0 && memcmp(rest, "3456789", 7) == 0);
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_start(endpoint, &it, &request));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"completions", completions}, {"errors", errors}, {"kinds", kinds},   {"runs", runs},
                 {"sleep", sleep_for_completion}, {"many", many}, {"inject", inject}, {"lists", lists},
                 {"multi", multi}};
    size_t at;
    OK(nemesia_endpoint_open(NULL, &endpoint));
    OK(nemesia_endpoint_rank(endpoint, &rank));
    peer = 1 - rank;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (argc == 2 && strcmp(argv[1], cases[at].name) == 0) {
            cases[at].run();
            barrier();
            OK(nemesia_endpoint_close(endpoint));
            return EXIT_SUCCESS;
        }
    }
    fprintf(stderr, "usage: queue CASE\n");
    return EXIT_FAILURE;
}

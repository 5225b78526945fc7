/* Tagged messages of the general form, between two processes: `general CASE`. */
#include "operation.h"

enum { TAG = 7, LARGE = 1 << 20, WINDOW = 64 };
static const int64_t FOR_EVER = -1;

static nemesia_endpoint *endpoint;
static int32_t rank;
static int32_t peer;

static void barrier(void) {
    OK(nemesia_endpoint_barrier(endpoint));
}

static void fill(unsigned char *bytes, size_t len, unsigned seed) {
    size_t at;
    for (at = 0; at < len; at++) bytes[at] = (unsigned char)(at * 31 + seed);
}

/* Immediate data travel with messages of every size, in one run and in several, and every probe shows them. */
static void immediate(void) {
    static unsigned char sent[LARGE], received[LARGE];
    static const size_t lens[] = {0, 8, 9, 200, 4096, LARGE};
    nemesia_operation it;
    nemesia_status status;
    uint64_t message, request;
    size_t at;
    for (at = 0; at < sizeof lens / sizeof *lens; at++) {
        const uint64_t value = at == 0 ? 0 : UINT64_MAX - at;
        size_t len = lens[at], part = len / 3;
        nemesia_iovec runs[2] = {{sent, part}, {sent + part, len - part}};
        fill(sent, len, (unsigned)at);
        memset(received, 0, len);
        if (rank == 0) {
            OK(send_op(endpoint, with_immediate(value, in_context(3, peer, 1, sent, len))));
            it = in_mode(NEMESIA_SEND_SYNCHRONOUS, with_immediate(value, in_context(3, peer, 2, NULL, 0)));
            it.list = runs;
            it.count = 2;
            OK(isend_op(endpoint, it, &request));
            CHECK(nemesia_endpoint_test(endpoint, request, NULL) == NEMESIA_PENDING);
            OK(nemesia_endpoint_send(endpoint, peer, 3, NULL, 0));
            OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
            runs[0].len = len;
            it.tag = 4;
            it.count = 1;
            OK(isend_op(endpoint, it, &request));
            OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
        } else {
            OK(recv_op(endpoint, in_context(3, peer, 1, received, len), &status));
            CHECK(status.has_immediate == 1 && status.immediate == value && status.len == len);
            CHECK(memcmp(sent, received, len) == 0);
            OK(nemesia_endpoint_recv(endpoint, peer, 3, 0, 0, NULL, &status));
            CHECK(status.has_immediate == 0 && status.immediate == 0);
            memset(received, 0, len);
            OK(nemesia_endpoint_mprobe(endpoint, 3, peer, 2, 0, FOR_EVER, &message, &status));
            CHECK(status.has_immediate == 1 && status.immediate == value && status.len == len);
            OK(nemesia_endpoint_mrecv(endpoint, message, len, received, &status));
            CHECK(status.has_immediate == 1 && status.immediate == value && status.len == len);
            CHECK(memcmp(sent, received, len) == 0);
            OK(irecv_op(endpoint, in_context(3, peer, 4, NULL, 0), &request));
            if (len == 0) {
                OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
            } else {
                GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
            }
            CHECK(status.has_immediate == 1 && status.immediate == value && status.total == len);
        }
    }
    it = with_immediate(5, in_context(0, peer, 1, sent, 1));
    GIVES(NEMESIA_ERR_ARGUMENT, recv_op(endpoint, it, NULL));
    CHECK(strstr(nemesia_last_error_message(), "no such flag") != NULL);
    it.flags = 0;
    GIVES(NEMESIA_ERR_ARGUMENT, send_op(endpoint, it));
    CHECK(strstr(nemesia_last_error_message(), "lack NEMESIA_OPERATION_IMMEDIATE") != NULL);
    barrier();
}

/* Segments of growing length, the first ones empty. */
static size_t cut(unsigned char *bytes, size_t len, size_t step, nemesia_iovec *list) {
    size_t at = 0, count = 0;
    while (at < len) {
        size_t run = count * step < len - at ? count * step : len - at;
        list[count].base = run ? bytes + at : NULL;
        list[count++].len = run;
        at += run;
    }
    return count;
}

/* A message of context 9 in several runs. */
static nemesia_operation of_list(uint32_t mode, const nemesia_iovec *list, size_t count) {
    nemesia_operation it = in_mode(mode, in_context(9, peer, TAG, NULL, 0));
    it.list = list;
    it.count = count;
    return it;
}

static void lists(void) {
    static unsigned char sent[LARGE], received[LARGE];
    static nemesia_iovec from[WINDOW * WINDOW], to[WINDOW * WINDOW];
    static const size_t lens[] = {0, 1, 63, 1000, 8192, 8193, 100000, LARGE};
    static const uint32_t modes[] = {NEMESIA_SEND_STANDARD, NEMESIA_SEND_SYNCHRONOUS, NEMESIA_SEND_READY};
    nemesia_operation send, receive;
    nemesia_status statuses[2];
    uint64_t requests[2];
    size_t at;
    for (at = 0; at < 3 * sizeof lens / sizeof *lens; at++) {
        size_t len = lens[at / 3], count = cut(sent, len, 1 + at, from);
        fill(sent, len, (unsigned)at);
        memset(received, 0, len);
        send = of_list(modes[at % 3], from, count);
        receive = of_list(0, to, cut(received, len, 5000, to));
        OK(isend_op(endpoint, send, &requests[0]));
        OK(irecv_op(endpoint, receive, &requests[1]));
        OK(nemesia_endpoint_wait_all(endpoint, 2, requests, FOR_EVER, statuses));
        CHECK(statuses[1].len == len && memcmp(sent, received, len) == 0);
        /* The blocking calls, one rank after the other. */
        memset(received, 0, len);
        if (rank == 0) OK(send_op(endpoint, send));
        OK(recv_op(endpoint, receive, &statuses[1]));
        CHECK(statuses[1].len == len && memcmp(sent, received, len) == 0);
        if (rank == 1) OK(send_op(endpoint, send));
    }
}

/* Neither a send nor a receive takes the operation. The library's reason contains `words`. */
static void refuse_both(nemesia_operation it, const char *words) {
    uint64_t request = 77;
    GIVES(NEMESIA_ERR_ARGUMENT, send_op(endpoint, it));
    CHECK(strstr(nemesia_last_error_message(), words) != NULL);
    GIVES(NEMESIA_ERR_ARGUMENT, isend_op(endpoint, it, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, recv_op(endpoint, it, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, irecv_op(endpoint, it, &request));
    CHECK(request == 77);
}

/* Lists and structures that are refused, each with its reason. */
static void refusals(void) {
    static unsigned char bytes[8];
    nemesia_iovec runs[2] = {{NULL, 1}, {NULL, 0}};
    nemesia_operation it = of_list(0, runs, 1);
    struct {
        nemesia_operation known;
        uint64_t unknown;
    } later = {in_context(9, peer, TAG, bytes, 8), 0};
    refuse_both(it, "list");
    runs[0].base = runs[1].base = bytes;
    runs[0].len = runs[1].len = (size_t)-1 / 2;
    refuse_both(of_list(0, runs, 2), "list");
    refuse_both(of_list(0, NULL, 1), "list is NULL");
    it.buffer = bytes;
    refuse_both(it, "a buffer and a list");
    refuse_both(in_context(1, peer, TAG, NULL, 1), "buffer is NULL");
    refuse_both(in_context(65534, peer, TAG, bytes, 1), "65534");
    refuse_both(in_mode(3, in_context(1, peer, TAG, bytes, 1)), "mode is 3");
    it = in_context(1, peer, TAG, bytes, 1);
    it.flags = NEMESIA_OPERATION_NOTIFY;
    refuse_both(it, "no such flag");
    it = in_mode(NEMESIA_SEND_SYNCHRONOUS, in_context(1, peer, TAG, bytes, 1));
    GIVES(NEMESIA_ERR_ARGUMENT, recv_op(endpoint, it, NULL));
    CHECK(strstr(nemesia_last_error_message(), "a receive has mode 0") != NULL);
    it = in_context(1, peer, TAG, bytes, 1);
    it.ignore = 1;
    GIVES(NEMESIA_ERR_ARGUMENT, send_op(endpoint, it));
    CHECK(strstr(nemesia_last_error_message(), "no ignore mask") != NULL);
    it.ignore = 0;
    GIVES(NEMESIA_ERR_ARGUMENT, isend_op(endpoint, it, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, irecv_op(endpoint, it, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_run(endpoint, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_run(endpoint, &it, NULL));
    CHECK(strstr(nemesia_last_error_message(), "kind is 0") != NULL);
    it.flags = NEMESIA_OPERATION_COMPLETION;
    GIVES(NEMESIA_ERR_ARGUMENT, send_op(endpoint, it));
    CHECK(strstr(nemesia_last_error_message(), "NEMESIA_OPERATION_COMPLETION") != NULL);
    GIVES(NEMESIA_ERR_RANK, send_op(endpoint, in_context(1, 2, TAG, bytes, 1)));
    GIVES(NEMESIA_ERR_RANK, send_op(endpoint, in_context(1, NEMESIA_ANY_SOURCE, TAG, bytes, 1)));
    it.struct_size = sizeof it - 1;
    refuse_both(it, "struct_size is 167");
    /* A program of a later header, which sets or does not set a field that this library does not know. */
    later.known.struct_size = sizeof later;
    later.known.rank = rank;
    later.known.kind = NEMESIA_OPERATION_SEND;
    OK(nemesia_endpoint_run(endpoint, &later.known, NULL));
    later.known.kind = NEMESIA_OPERATION_RECEIVE;
    OK(nemesia_endpoint_run(endpoint, &later.known, NULL));
    later.unknown = 1;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_run(endpoint, &later.known, NULL));
    CHECK(strstr(nemesia_last_error_message(), "does not know") != NULL);
    barrier();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"immediate", immediate}, {"lists", lists}, {"refusals", refusals}};
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
    fail_at(__FILE__, __LINE__, "no such case");
    return EXIT_FAILURE;
}

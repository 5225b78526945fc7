/* Two processes use the C interface: `pair CASE`, started twice by the launcher. */
#include "operation.h"

#include <poll.h>
#include <string.h>
#include <time.h>

enum { TAG = 7, LARGE = 1 << 20, WINDOW = 64 };
static const int64_t SECOND = 1000000000;
static const int64_t FOR_EVER = -1;

static nemesia_endpoint *endpoint;
static int32_t rank;
static int32_t peer;

static void barrier(void) {
    OK(nemesia_endpoint_send(endpoint, peer, 999, NULL, 0));
    OK(nemesia_endpoint_recv(endpoint, peer, 999, 0, 0, NULL, NULL));
}

static void fill(unsigned char *bytes, size_t len, unsigned seed) {
    size_t at;
    for (at = 0; at < len; at++) bytes[at] = (unsigned char)(at * 31 + seed);
}

static void ping_pong(void) {
    static unsigned char sent[LARGE], received[LARGE];
    static const size_t lens[] = {0, 1, 8, 63, 64, 65, 1000, 4096, 65536, LARGE};
    size_t at;
    for (at = 0; at < sizeof lens / sizeof *lens; at++) {
        nemesia_status status;
        size_t len = lens[at];
        fill(sent, len, (unsigned)at);
        memset(received, 0, len);
        if (rank == 0) OK(nemesia_endpoint_send(endpoint, peer, TAG + at, sent, len));
        OK(nemesia_endpoint_recv(endpoint, peer, TAG + at, 0, len, received, &status));
        CHECK(status.code == NEMESIA_OK && status.rank == peer);
        CHECK(status.tag == TAG + at && status.len == len && memcmp(sent, received, len) == 0);
        if (rank == 1) OK(nemesia_endpoint_send(endpoint, peer, TAG + at, received, len));
    }
}

/* Both send a window of messages that are larger than a cell, and receive one. */
static void window(void) {
    static unsigned char sent[WINDOW][65537], received[WINDOW][65537];
    uint64_t requests[2 * WINDOW];
    nemesia_status statuses[2 * WINDOW];
    size_t at;
    for (at = 0; at < WINDOW; at++) {
        OK(nemesia_endpoint_irecv(endpoint, peer, at, 0, sizeof received[at], received[at], &requests[at]));
    }
    for (at = 0; at < WINDOW; at++) {
        fill(sent[at], sizeof sent[at], (unsigned)at);
        OK(nemesia_endpoint_isend(endpoint, peer, at, sent[at], sizeof sent[at], &requests[WINDOW + at]));
    }
    OK(nemesia_endpoint_wait_all(endpoint, 2 * WINDOW, requests, FOR_EVER, statuses));
    for (at = 0; at < 2 * WINDOW; at++) {
        CHECK(requests[at] == NEMESIA_REQUEST_DONE && statuses[at].code == NEMESIA_OK);
    }
    for (at = 0; at < WINDOW; at++) {
        CHECK(statuses[at].rank == peer && statuses[at].tag == at && statuses[at].len == sizeof sent[at]);
        CHECK(memcmp(sent[at], received[at], sizeof sent[at]) == 0);
    }
    OK(nemesia_endpoint_wait_all(endpoint, 2 * WINDOW, requests, 0, NULL));
}

static void wildcards(void) {
    nemesia_status status;
    char word[8];
    size_t packets = 99;
    if (rank == 0) {
        OK(nemesia_endpoint_send(endpoint, peer, 0xab01, "one", 3));
        OK(nemesia_endpoint_send(endpoint, peer, 0xcd02, "two", 3));
        OK(nemesia_endpoint_send(endpoint, peer, 0xab03, "three", 5));
    } else {
        /* The high byte decides: the second message does not match. */
        OK(nemesia_endpoint_recv(endpoint, NEMESIA_ANY_SOURCE, 0xcd00, 0xff, sizeof word, word, &status));
        CHECK(status.rank == 0 && status.tag == 0xcd02 && memcmp(word, "two", 3) == 0);
        OK(nemesia_endpoint_recv(endpoint, NEMESIA_ANY_SOURCE, 0, NEMESIA_ANY_TAG, sizeof word, word, &status));
        CHECK(status.rank == 0 && status.tag == 0xab01 && status.len == 3);
        OK(nemesia_endpoint_recv(endpoint, 0, 0, NEMESIA_ANY_TAG, sizeof word, word, &status));
        CHECK(status.tag == 0xab03 && status.len == 5 && memcmp(word, "three", 5) == 0);
    }
    /* A message to this rank itself, received from any source. */
    OK(nemesia_endpoint_send(endpoint, rank, 1, "self", 4));
    OK(nemesia_endpoint_recv(endpoint, NEMESIA_ANY_SOURCE, 1, 0, sizeof word, word, &status));
    CHECK(status.rank == rank && memcmp(word, "self", 4) == 0);
    OK(nemesia_endpoint_progress(endpoint, &packets));
    CHECK(packets != 99);
    OK(nemesia_endpoint_progress(endpoint, NULL));
}

/* Counters of one rank and of all, for callers of this version and of an earlier one. */
static void counters(void) {
    nemesia_counters one, all, early;
    char word[8] = "nemesia";
    size_t len = 9;
    memset(&one, 7, sizeof one);
    memset(&all, 7, sizeof all);
    one.struct_size = all.struct_size = sizeof all;
    if (rank == 0) {
        OK(nemesia_endpoint_send(endpoint, peer, TAG, word, sizeof word));
        OK(nemesia_endpoint_send(endpoint, rank, TAG, word, 3));
        OK(nemesia_endpoint_recv(endpoint, rank, TAG, 0, sizeof word, word, NULL));
        OK(nemesia_endpoint_counters(endpoint, peer, &one));
        OK(nemesia_endpoint_counters(endpoint, NEMESIA_ALL_RANKS, &all));
        CHECK(one.struct_size == sizeof one && one.eager_sent == 1 && one.eager_sent_bytes == sizeof word);
        CHECK(one.fastbox_sent == 1 && one.cell_sent == 0 && one.puts == 0 && one.liveness_checks == 0);
        CHECK(all.eager_sent == 2 && all.eager_sent_bytes == sizeof word + 3 && all.unexpected == 1);
        CHECK(all.unexpected_most == 1 && all.unexpected_now == 0 && all.peers_died == 0);
        memset(&early, 7, sizeof early);
        early.struct_size = 8;
        CHECK(nemesia_endpoint_counters(endpoint, peer, &early) == NEMESIA_ERR_ARGUMENT && early.puts != 0);
        early.struct_size = sizeof early;
        CHECK(nemesia_endpoint_counters(endpoint, 2, &early) == NEMESIA_ERR_RANK && early.puts != 0);
        CHECK(nemesia_endpoint_counters(endpoint, peer, NULL) == NEMESIA_ERR_ARGUMENT);
        /* Without NEMESIA_TRACE there is no call tree. */
        OK(nemesia_endpoint_call_tree(endpoint, sizeof word, word, &len));
        CHECK(len == 0 && word[0] == 0);
    } else {
        OK(nemesia_endpoint_recv(endpoint, peer, TAG, 0, sizeof word, word, NULL));
        OK(nemesia_endpoint_counters(endpoint, peer, &one));
        CHECK(one.eager_received == 1 && one.eager_received_bytes == sizeof word);
        CHECK(one.matched_posted + one.matched_bypass + one.unexpected == 1);
    }
    barrier();
}

static void explanation(void) {
    static char text[4096];
    size_t len = 0;
    /* Afterwards the two are connected. */
    barrier();
    OK(nemesia_endpoint_explain(endpoint, sizeof text, text, &len));
    CHECK(len == strlen(text) && strstr(text, "over shm; fastbox: ") != NULL && strstr(text, "; not tcp: ") != NULL);
    text[9] = '!';
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_explain(endpoint, 9, text, &len));
    CHECK(strcmp(text, "nemesia:") == 0 && text[9] == '!' && len > 100);
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_explain(endpoint, 0, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_explain(endpoint, 1, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_explain(NULL, sizeof text, text, &len));
}

static void truncation(void) {
    nemesia_status status;
    char room[9] = "........";
    uint64_t request;
    if (rank == 0) {
        OK(nemesia_endpoint_send(endpoint, peer, TAG, "0123456789", 10));
        OK(nemesia_endpoint_send(endpoint, peer, TAG, "0123456789", 10));
        return;
    }
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_recv(endpoint, peer, TAG, 0, 4, room, &status));
    CHECK(strcmp(room, "0123....") == 0);
    CHECK(status.code == NEMESIA_ERR_TRUNCATED && status.rank == 0 && status.tag == TAG && status.len == 4);
    CHECK(status.total == 10);
    CHECK(strstr(nemesia_last_error_message(), "10 bytes") != NULL);
    OK(nemesia_endpoint_irecv(endpoint, peer, TAG, 0, 6, room, &request));
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
    CHECK(status.len == 6 && status.total == 10 && strcmp(room, "012345..") == 0);
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
}

static void contexts(void) {
    static unsigned char sent[LARGE], received[LARGE];
    nemesia_status status = {77, 77, 77, 77, 77, 77, 77};
    nemesia_operation it;
    uint64_t request, message = 77;
    if (rank == 0) {
        OK(send_op(endpoint, in_context(1, peer, TAG, "one", 3)));
        OK(send_op(endpoint, in_mode(NEMESIA_SEND_READY, in_context(2, peer, TAG, "two", 3))));
        fill(sent, sizeof sent, 5);
        OK(isend_op(endpoint, in_context(3, peer, TAG, sent, sizeof sent), &request));
        OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
        /* The peer receives it only after the next message. */
        OK(isend_op(endpoint, in_mode(NEMESIA_SEND_SYNCHRONOUS, in_context(4, peer, TAG, "four", 4)), &request));
        CHECK(request != NEMESIA_REQUEST_NONE);
        GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait(endpoint, request, SECOND / 100, NULL));
        barrier();
        OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
        OK(send_op(endpoint, in_mode(NEMESIA_SEND_SYNCHRONOUS, in_context(5, peer, TAG, "five", 4))));
        OK(isend_op(endpoint, in_mode(NEMESIA_SEND_READY, in_context(6, peer, TAG, "six", 3)), &request));
        OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
        return;
    }
    it = in_context(2, NEMESIA_ANY_SOURCE, 0, received, LARGE);
    it.ignore = NEMESIA_ANY_TAG;
    OK(recv_op(endpoint, it, &status));
    CHECK(status.len == 3 && memcmp(received, "two", 3) == 0);
    OK(irecv_op(endpoint, in_context(1, peer, TAG, received, LARGE), &request));
    OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
    CHECK(status.len == 3 && memcmp(received, "one", 3) == 0);
    /* The message is probed, removed and received. */
    OK(nemesia_endpoint_probe(endpoint, 3, peer, TAG, 0, FOR_EVER, &status));
    CHECK(status.rank == peer && status.tag == TAG && status.len == LARGE);
    OK(nemesia_endpoint_iprobe(endpoint, 3, NEMESIA_ANY_SOURCE, 0, NEMESIA_ANY_TAG, &status));
    OK(nemesia_endpoint_mprobe(endpoint, 3, peer, TAG, 0, FOR_EVER, &message, &status));
    CHECK(status.len == LARGE);
    GIVES(NEMESIA_PENDING, nemesia_endpoint_iprobe(endpoint, 3, peer, TAG, 0, NULL));
    OK(nemesia_endpoint_imrecv(endpoint, message, LARGE, received, &request));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_mrecv(endpoint, message, LARGE, received, &status));
    OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, &status));
    fill(sent, sizeof sent, 5);
    CHECK(status.len == LARGE && memcmp(sent, received, LARGE) == 0);
    while (nemesia_endpoint_improbe(endpoint, 4, peer, TAG, 0, &message, &status) == NEMESIA_PENDING) {
    }
    barrier();
    OK(nemesia_endpoint_mrecv(endpoint, message, LARGE, received, &status));
    CHECK(status.len == 4 && memcmp(received, "four", 4) == 0);
    OK(nemesia_endpoint_mprobe(endpoint, 5, peer, TAG, 0, 60 * SECOND, &message, NULL));
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_endpoint_mrecv(endpoint, message, 0, NULL, &status));
    CHECK(status.len == 0 && status.total == 4);
    OK(recv_op(endpoint, in_context(6, peer, TAG, received, LARGE), NULL));
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_probe(endpoint, 7, peer, TAG, 0, SECOND / 100, NULL));
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_mprobe(endpoint, 7, peer, TAG, 0, 0, &message, NULL));
}

static void refuse_pointers(void) {
    nemesia_status status;
    uint64_t request = 77;
    int32_t number = 77;
    bool cancelled;
    char byte = 'x';
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_rank(NULL, &number));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_rank(endpoint, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_size(endpoint, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_close(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open(NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(NULL, peer, TAG, &byte, 1));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(endpoint, peer, TAG, NULL, 1));
    CHECK(strstr(nemesia_last_error_message(), "buffer is NULL") != NULL);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(endpoint, peer, TAG, &byte, (size_t)-1));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_recv(endpoint, peer, TAG, 0, 1, NULL, &status));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_isend(endpoint, peer, TAG, &byte, 1, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_irecv(endpoint, peer, TAG, 0, 1, NULL, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_test(NULL, NEMESIA_REQUEST_NONE, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_wait(NULL, NEMESIA_REQUEST_NONE, 0, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_wait_all(endpoint, 1, NULL, 0, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_cancel(endpoint, request, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_cancel(NULL, request, &cancelled));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_peer_failure(endpoint, peer, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_acknowledge_failures(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_progress(NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_iprobe(NULL, 0, peer, TAG, 0, &status));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_improbe(endpoint, 0, peer, TAG, 0, NULL, &status));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_mprobe(endpoint, 0, peer, TAG, 0, 0, NULL, &status));
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_probe(endpoint, 0, 2, TAG, 0, 0, &status));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_mrecv(endpoint, 12345, 1, &byte, &status));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_mrecv(endpoint, 12345, 1, NULL, &status));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_imrecv(endpoint, NEMESIA_REQUEST_NONE, 1, &byte, &request));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_imrecv(endpoint, 12345, 1, &byte, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_event_fd(NULL, &number));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_event_fd(endpoint, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_arm(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_disarm(NULL));
    CHECK(nemesia_endpoint_warning(NULL, 0) == NULL && nemesia_endpoint_warning(endpoint, 1000) == NULL);
    CHECK(request == 77 && number == 77);
    OK(nemesia_endpoint_wait_all(endpoint, 0, NULL, 0, NULL));
}

static void refuse_configurations(void) {
    nemesia_endpoint *other = NULL;
    nemesia_config *config = NULL;
    char value[16] = "untouched";
    size_t len = 77;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_default(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_from_environment(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set(NULL, "NEMESIA_CELLS", "8"));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_get(NULL, "NEMESIA_CELLS", sizeof value, value, &len));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_read_file(NULL, "x"));
    OK(nemesia_config_default(&config));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set(config, NULL, "8"));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set(config, "NEMESIA_CELLS", NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set(config, "NEMESIA_CELLS", "\xff"));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_get(config, "NEMESIA_CELLS", sizeof value, NULL, &len));
    GIVES(NEMESIA_ERR_CONFIG, nemesia_config_get(config, "NEMESIA_CELS", sizeof value, value, &len));
    CHECK(strcmp(value, "untouched") == 0 && len == 77);
    GIVES(NEMESIA_ERR_CONFIG, nemesia_config_set(config, "NEMESIA_CELS", "8"));
    CHECK(strstr(nemesia_last_error_message(), "did you mean NEMESIA_CELLS?") != NULL);
    GIVES(NEMESIA_ERR_CONFIG, nemesia_config_set(config, "NEMESIA_CELLS", "many"));
    GIVES(NEMESIA_ERR_CONFIG, nemesia_config_read_file(config, "/nonexistent/nemesia.conf"));
    GIVES(NEMESIA_ERR_CONFIG, nemesia_config_set(config, "NEMESIA_CELLS", "5"));
    CHECK(strstr(nemesia_last_error_message(), "NEMESIA_CELLS=5: must be a power of two") != NULL);
    OK(nemesia_config_set(config, "NEMESIA_CELLS", "8"));
    OK(nemesia_config_get(config, "NEMESIA_CELLS", 2, value, &len));
    CHECK(strcmp(value, "8") == 0 && len == 1);
    /* The launcher's connection is in use, which is detected first. */
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open(config, &other));
    CHECK(other == NULL);
    nemesia_config_destroy(config);
    nemesia_config_destroy(NULL);
}

static void refuse_exchanges(void) {
    nemesia_endpoint *other = NULL;
    nemesia_exchange exchange;
    memset(&exchange, 0, sizeof exchange);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open_with(NULL, NULL, &other));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open_with(NULL, &exchange, &other));
    exchange.struct_size = sizeof exchange - 1;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open_with(NULL, &exchange, &other));
    CHECK(strstr(nemesia_last_error_message(), "sizeof(nemesia_exchange)") != NULL);
    exchange.struct_size = sizeof exchange;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open_with(NULL, &exchange, &other));
    CHECK(strstr(nemesia_last_error_message(), "nemesia_exchange.rank is NULL") != NULL);
    /* The launcher's connection is in use. */
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open(NULL, &other));
    CHECK(other == NULL);
}

static void errors(void) {
    static const int32_t nobody[] = {-2, 2, INT32_MAX, INT32_MIN};
    nemesia_status status = {77, 77, 77, 77, 77, 77, 77};
    uint64_t request = 77, sent;
    int32_t failure = 77;
    bool cancelled = false;
    char byte = 'x';
    size_t at;
    refuse_pointers();
    refuse_configurations();
    refuse_exchanges();
    for (at = 0; at < sizeof nobody / sizeof *nobody; at++) {
        GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_send(endpoint, nobody[at], TAG, &byte, 1));
        GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_irecv(endpoint, nobody[at], TAG, 0, 1, &byte, &request));
        GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_peer_failure(endpoint, nobody[at], &failure));
    }
    CHECK(strstr(nemesia_last_error_message(), "ranks 0 to 1") != NULL);
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_send(endpoint, NEMESIA_ANY_SOURCE, TAG, &byte, 1));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_test(endpoint, 12345, &status));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_wait(endpoint, NEMESIA_REQUEST_DONE, FOR_EVER, &status));
    CHECK(request == 77 && failure == 77 && status.code == 77 && status.len == 77);
    /* No message comes; then the receive is cancelled, and its request is stale. */
    OK(nemesia_endpoint_irecv(endpoint, peer, 1234, 0, 1, &byte, &request));
    GIVES(NEMESIA_PENDING, nemesia_endpoint_test(endpoint, request, &status));
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait(endpoint, request, 0, &status));
    GIVES(NEMESIA_ERR_TIMEOUT, nemesia_endpoint_wait(endpoint, request, SECOND / 100, &status));
    CHECK(status.code == 77);
    OK(nemesia_endpoint_cancel(endpoint, request, &cancelled));
    CHECK(cancelled);
    GIVES(NEMESIA_ERR_CANCELLED, nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_test(endpoint, request, NULL));
    OK(nemesia_endpoint_cancel(endpoint, request, &cancelled));
    CHECK(!cancelled);
    /* A small send is complete when it starts, once the peer has opened its endpoint and so granted credit. */
    barrier();
    OK(nemesia_endpoint_isend(endpoint, peer, TAG, &byte, 1, &sent));
    CHECK(sent == NEMESIA_REQUEST_NONE);
    OK(nemesia_endpoint_wait(endpoint, sent, FOR_EVER, NULL));
    OK(nemesia_endpoint_recv(endpoint, peer, TAG, 0, 1, &byte, NULL));
}

/* Waits for a request in an event loop. */
static void complete(uint64_t request) {
    struct pollfd loop = {-1, POLLIN, 0};
    OK(nemesia_endpoint_event_fd(endpoint, &loop.fd));
    while (nemesia_endpoint_test(endpoint, request, NULL) == NEMESIA_PENDING) {
        int32_t armed = nemesia_endpoint_arm(endpoint);
        CHECK(armed == NEMESIA_OK || armed == NEMESIA_BUSY);
        if (armed == NEMESIA_OK) CHECK(poll(&loop, 1, -1) == 1);
    }
}

static void event_loop(void) {
    uint64_t request, number, trip;
    for (trip = 0; trip < 200; trip++) {
        if (rank == 0) {
            OK(nemesia_endpoint_send(endpoint, peer, TAG, &trip, sizeof trip));
        }
        OK(nemesia_endpoint_irecv(endpoint, peer, TAG, 0, sizeof number, &number, &request));
        complete(request);
        CHECK(number == trip);
        if (rank == 1) {
            OK(nemesia_endpoint_send(endpoint, peer, TAG, &trip, sizeof trip));
        }
    }
    OK(nemesia_endpoint_disarm(endpoint));
}

static void agreement(void) {
    uint64_t flags = 0;
    int32_t gone = -1, count = -1, mine = -1, ranks[2] = {-1, -1};
    OK(nemesia_endpoint_agree(endpoint, rank == 0 ? 6 : 3, &flags, &gone));
    CHECK(flags == 2 && gone == 0);
    OK(nemesia_endpoint_agree(endpoint, 5, &flags, NULL));
    CHECK(flags == 5);
    OK(nemesia_endpoint_shrink(endpoint, ranks, &count, &mine));
    CHECK(count == 2 && mine == rank && ranks[0] == 0 && ranks[1] == 1);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_agree(endpoint, 0, NULL, &gone));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_shrink(endpoint, NULL, &count, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_shrink(endpoint, ranks, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_agree(NULL, 0, &flags, NULL));
}

static void peer_failure(void) {
    uint64_t flags = 0;
    int32_t gone = -1, count = -1, mine = -1, ranks[2] = {-1, -1};
    uint64_t requests[2];
    nemesia_status statuses[2];
    int32_t failure = -1;
    char first, second;
    barrier();
    if (rank == 1) abort();
    OK(nemesia_endpoint_irecv(endpoint, peer, TAG, 0, 1, &first, &requests[0]));
    OK(nemesia_endpoint_irecv(endpoint, NEMESIA_ANY_SOURCE, TAG, 0, 1, &second, &requests[1]));
    GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_wait_all(endpoint, 2, requests, 60 * SECOND, statuses));
    CHECK(statuses[0].code == NEMESIA_ERR_PEER_FAILED && statuses[1].code == NEMESIA_ERR_PEER_FAILED);
    CHECK(nemesia_last_error_rank() == 1 && strstr(nemesia_last_error_message(), "rank 1") != NULL);
    OK(nemesia_endpoint_peer_failure(endpoint, 1, &failure));
    CHECK(failure == NEMESIA_FAILURE_DIED);
    OK(nemesia_endpoint_peer_failure(endpoint, 0, &failure));
    CHECK(failure == NEMESIA_FAILURE_NONE);
    GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_send(endpoint, peer, TAG, "x", 1));
    GIVES(NEMESIA_ERR_PEER_FAILED,
          nemesia_endpoint_irecv(endpoint, NEMESIA_ANY_SOURCE, TAG, 0, 1, &first, &requests[0]));
    OK(nemesia_endpoint_acknowledge_failures(endpoint));
    OK(nemesia_endpoint_irecv(endpoint, NEMESIA_ANY_SOURCE, TAG, 0, 1, &first, &requests[0]));
    OK(nemesia_endpoint_send(endpoint, rank, TAG, "x", 1));
    OK(nemesia_endpoint_wait(endpoint, requests[0], 60 * SECOND, NULL));
    OK(nemesia_endpoint_agree(endpoint, 6, &flags, &gone));
    CHECK(flags == 6 && gone == 1);
    OK(nemesia_endpoint_shrink(endpoint, ranks, &count, &mine));
    CHECK(count == 1 && mine == 0 && ranks[0] == 0 && ranks[1] == -1);
    OK(nemesia_endpoint_close(endpoint));
    exit(EXIT_SUCCESS);
}

/* Rank 1 dies once, and is readmitted. */
static void restart(void) {
    uint64_t incarnation = 77, flags = 0;
    int32_t ranks[2] = {-1, -1}, count = 0, failure = -1;
    char word = 0;
    OK(nemesia_endpoint_incarnation(endpoint, &incarnation));
    if (rank == 1 && incarnation == 0) {
        barrier();
        abort();
    }
    if (rank == 1) {
        CHECK(incarnation == 1);
        OK(nemesia_endpoint_recv(endpoint, peer, TAG, 0, 1, &word, NULL));
        CHECK(word == 'x');
    } else {
        CHECK(incarnation == 0);
        barrier();
        GIVES(NEMESIA_ERR_NOT_RESTARTED, nemesia_endpoint_readmit(endpoint, rank));
        GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_readmit(endpoint, 2));
        GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_readmit(endpoint, -1));
        GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_restarted(endpoint, NULL, &count));
        GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_restarted(endpoint, ranks, NULL));
        GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_incarnation(endpoint, NULL));
        GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_recv(endpoint, peer, TAG, 0, 1, &word, NULL));
        while (count == 0) OK(nemesia_endpoint_restarted(endpoint, ranks, &count));
        CHECK(count == 1 && ranks[0] == 1 && ranks[1] == -1);
        GIVES(NEMESIA_ERR_PEER_FAILED, nemesia_endpoint_send(endpoint, peer, TAG, "y", 1));
        OK(nemesia_endpoint_readmit(endpoint, peer));
        GIVES(NEMESIA_ERR_NOT_RESTARTED, nemesia_endpoint_readmit(endpoint, peer));
        CHECK(nemesia_last_error_rank() == 1);
        OK(nemesia_endpoint_peer_failure(endpoint, peer, &failure));
        CHECK(failure == NEMESIA_FAILURE_NONE);
        OK(nemesia_endpoint_send(endpoint, peer, TAG, "x", 1));
    }
    OK(nemesia_endpoint_agree(endpoint, 5, &flags, NULL));
    CHECK(flags == 5);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"ping-pong", ping_pong}, {"window", window}, {"wildcards", wildcards}, {"truncation", truncation},
        {"contexts", contexts},     {"errors", errors},             {"event-loop", event_loop},
        {"peer-failure", peer_failure}, {"agreement", agreement},   {"explanation", explanation},
        {"counters", counters},     {"restart", restart},
    };
    int32_t size = 0;
    size_t at;
    OK(nemesia_endpoint_open(NULL, &endpoint));
    OK(nemesia_endpoint_rank(endpoint, &rank));
    OK(nemesia_endpoint_size(endpoint, &size));
    CHECK(argc == 2 && size == 2);
    peer = 1 - rank;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (strcmp(argv[1], cases[at].name) == 0) {
            cases[at].run();
            barrier();
            OK(nemesia_endpoint_close(endpoint));
            return EXIT_SUCCESS;
        }
    }
    fail_at(__FILE__, __LINE__, "no such case");
    return EXIT_FAILURE;
}

/* A progress engine over the RDMA Channel, in the manner of the CH3 device of MPICH2: packets have headers of 40 bytes
 * and a payload that goes into a posted list, a receive from any source polls all peers, and puts may end anywhere.
 *
 * As in MPICH2, the header of a packet lies on the stack at first, and moves into the request if the first put does not
 * take all of it. Payload stays at its address. The argument is the seed of all sizes. */
#include <nemesia_rdma_channel.h>

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define ANY (-1)
#define MOST_PEERS 8
#define MOST_RUNS 6
#define MOST_BYTES 300000

typedef struct {
    uint32_t kind, source;
    int32_t tag, context;
    uint64_t bytes, number, sum;
} header;

typedef struct request {
    struct request *next;
    int peer, tag; /* peer and tag of a receive may be ANY */
    int done;
    header head;
    nemesia_iovec runs[MOST_RUNS + 1]; /* what is left; of a send, the header first */
    size_t count;
    uint64_t received, sum;
    unsigned char *copy; /* the payload of an unexpected message */
} request;

typedef struct {
    request *first, **last;
} queue;

typedef struct {
    queue sends;
    header head; /* the header that is being received, and the bytes of it that are there */
    size_t at;
    request *into; /* the request whose payload is being received */
    uint64_t left, sent, seen;
    int closed;
} connection;

static nemesia_channel *channel;
static int32_t own, size;
static connection peers[MOST_PEERS];
static queue posted, unexpected;
static uint64_t seed;
static int ending; /* whether peers may finalize: after the last barrier but one */

typedef char header_has_40_bytes[sizeof(header) == 40 ? 1 : -1];

static uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static void append(queue *q, request *r) {
    if (q->last == NULL) q->last = &q->first;
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
}

static request *take(queue *q, request **at) {
    request *r = *at;
    *at = r->next;
    if (r->next == NULL) q->last = at;
    return r;
}

static uint64_t sum_of(const nemesia_iovec *runs, size_t count, uint64_t bytes) {
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *byte = runs[i].base;
        for (size_t at = 0; at < runs[i].len && bytes > 0; at++, bytes--) sum = (sum ^ byte[at]) * 1099511628211u;
    }
    return sum;
}

/* Drops the first bytes of a list. */
static void advance(nemesia_iovec *runs, size_t *count, size_t bytes) {
    size_t whole = 0;
    while (whole < *count && bytes >= runs[whole].len) bytes -= runs[whole++].len;
    memmove(runs, runs + whole, (*count - whole) * sizeof *runs);
    *count -= whole;
    if (bytes > 0) {
        CHECK(*count > 0);
        runs[0].base = (char *)runs[0].base + bytes;
        runs[0].len -= bytes;
    }
}

/* Puts what is left of the first send to a peer. */
static int push(int peer) {
    queue *q = &peers[peer].sends;
    request *r = q->first;
    size_t bytes;
    if (r == NULL) return 0;
    OK(nemesia_channel_put(channel, peer, r->runs, r->count, &bytes));
    advance(r->runs, &r->count, bytes);
    if (r->count == 0) {
        take(q, &q->first);
        r->done = 1;
    }
    return bytes > 0;
}

static void start_send(request *r, int peer, int tag, const nemesia_iovec *runs, size_t count) {
    connection *to = &peers[peer];
    header head = {1, (uint32_t)own, tag, 7, 0, to->sent++, 0}; /* on the stack */
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < count; i++) head.bytes += runs[i].len;
    head.sum = sum_of(runs, count, head.bytes);
    r->peer = peer;
    r->runs[0].base = &head;
    r->runs[0].len = sizeof head;
    for (size_t i = 0; i < count; i++) r->runs[i + 1] = runs[i];
    r->count = count + 1;
    if (to->sends.first == NULL) {
        size_t bytes;
        OK(nemesia_channel_put(channel, peer, r->runs, r->count, &bytes));
        advance(r->runs, &r->count, bytes);
        r->done = r->count == 0;
    }
    if (r->done) return;
    r->head = head;
    if ((char *)r->runs[0].base >= (char *)&head && (char *)r->runs[0].base < (char *)(&head + 1))
        r->runs[0].base = (char *)&r->head + ((char *)r->runs[0].base - (char *)&head);
    memset(&head, 0xee, sizeof head);
    append(&to->sends, r);
}

static int matches(const request *r, int peer, int tag) {
    return (r->peer == ANY || r->peer == peer) && (r->tag == ANY || r->tag == tag);
}

/* Finds the request into which a payload goes: the layer above is asked after the header. */
static request *place_for(const header *head, int peer) {
    for (request **at = &posted.first; *at != NULL; at = &(*at)->next)
        if (matches(*at, peer, head->tag)) return take(&posted, at);
    request *r = calloc(1, sizeof *r);
    CHECK(r != NULL && head->bytes <= MOST_BYTES);
    r->copy = malloc(head->bytes + 1);
    CHECK(r->copy != NULL);
    r->runs[0].base = r->copy;
    r->runs[0].len = head->bytes;
    r->count = 1;
    append(&unexpected, r);
    return r;
}

/* Takes what has arrived from a peer. */
static int pull(int peer) {
    connection *from = &peers[peer];
    size_t bytes;
    int any = 0;
    for (;;) {
        if (from->at < sizeof(header)) {
            nemesia_iovec rest = {(char *)&from->head + from->at, sizeof(header) - from->at};
            int32_t status = nemesia_channel_get(channel, peer, &rest, 1, &bytes);
            if (ending && from->at == 0 && status == NEMESIA_ERR_ENDED) {
                from->closed = 1; /* it has left the last barrier, and all its packets have come */
                return any;
            }
            OK(status);
            from->at += bytes;
            if (from->at < sizeof(header)) return any | (bytes > 0);
            CHECK(from->head.kind == 1 && from->head.source == (uint32_t)peer && from->head.context == 7);
            CHECK(from->head.number == from->seen++);
            from->into = place_for(&from->head, peer);
            from->into->head = from->head;
            from->left = from->head.bytes;
        }
        request *r = from->into;
        if (from->left > 0) {
            nemesia_iovec list[MOST_RUNS + 1];
            size_t count = 0;
            uint64_t left = from->left;
            for (size_t i = 0; i < r->count && left > 0; i++, count++) {
                list[count] = r->runs[i];
                if (list[count].len > left) list[count].len = (size_t)left;
                left -= list[count].len;
            }
            CHECK(left == 0); /* the posted list is long enough */
            OK(nemesia_channel_get(channel, peer, list, count, &bytes));
            for (size_t i = 0, done = bytes; i < count && done > 0; i++) { /* checked before the list advances */
                const unsigned char *byte = r->runs[i].base;
                size_t here = done < list[i].len ? done : list[i].len;
                if (r->received == 0 && i == 0) r->sum = 1469598103934665603u;
                for (size_t at = 0; at < here; at++) r->sum = (r->sum ^ byte[at]) * 1099511628211u;
                r->received += here;
                done -= here;
            }
            advance(r->runs, &r->count, bytes);
            from->left -= bytes;
            if (from->left > 0) return any | (bytes > 0);
        }
        CHECK(r->received == r->head.bytes);
        CHECK(r->head.bytes == 0 || r->sum == r->head.sum);
        r->done = 1;
        from->at = 0;
        any = 1;
    }
}

/* One turn: all peers, as a receive from any source needs. */
static void progress(void) {
    for (int peer = 0; peer < size; peer++)
        if (peer != own && !peers[peer].closed) push(peer), pull(peer);
}

static void start_receive(request *r, int peer, int tag, const nemesia_iovec *runs, size_t count) {
    for (request **at = &unexpected.first; *at != NULL; at = &(*at)->next) {
        if (!matches(&(request){.peer = peer, .tag = tag}, (int)(*at)->head.source, (*at)->head.tag)) continue;
        request *early = *at;
        while (!early->done) progress();
        for (at = &unexpected.first; *at != early;) at = &(*at)->next;
        take(&unexpected, at);
        size_t done = 0;
        for (size_t i = 0; i < count && done < early->received; i++) {
            size_t here = early->received - done < runs[i].len ? (size_t)early->received - done : runs[i].len;
            memcpy(runs[i].base, early->copy + done, here);
            done += here;
        }
        CHECK(done == early->received);
        r->head = early->head;
        r->received = early->received;
        r->done = 1;
        free(early->copy);
        free(early);
        return;
    }
    memset(r, 0, sizeof *r);
    r->peer = peer;
    r->tag = tag;
    for (size_t i = 0; i < count; i++) r->runs[i] = runs[i];
    r->count = count;
    append(&posted, r);
}

static void await(const request *r) {
    while (!r->done) progress();
}

/* Cuts a buffer into a vector: runs with gaps between them. */
static size_t cut(nemesia_iovec *runs, unsigned char *base, size_t bytes) {
    size_t count = 1 + draw(MOST_RUNS - 1), at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t here = i + 1 == count ? bytes : draw(bytes + 1);
        runs[i].base = base + at;
        runs[i].len = here;
        at += here + draw(16);
        bytes -= here;
    }
    return count;
}

static void fill(const nemesia_iovec *runs, size_t count, int from, int round) {
    unsigned value = (unsigned)(from * 31 + round);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < runs[i].len; at++) ((unsigned char *)runs[i].base)[at] = (unsigned char)(value += 7);
}

static size_t bytes_of(int round) {
    static const size_t few[] = {0, 1, 8, 40, 232, 233, 4096, 10240};
    return round % 3 == 0 ? few[draw(8)] : round % 3 == 1 ? draw(20000) : draw(MOST_BYTES);
}

/* A dissemination barrier of empty messages. */
static void barrier(void) {
    for (int step = 1; step < size; step *= 2) {
        request out, in;
        start_receive(&in, (own + size - step) % size, 1000 + step, NULL, 0);
        start_send(&out, (own + step) % size, 1000 + step, NULL, 0);
        await(&in);
        await(&out);
    }
}

/* Every process sends to every other, each a vector, and receives from any source. */
static void all_to_all(int round) {
    static unsigned char out[MOST_PEERS][MOST_BYTES + 16 * MOST_RUNS], in[MOST_PEERS][MOST_BYTES + 16 * MOST_RUNS];
    request sends[MOST_PEERS], receives[MOST_PEERS];
    nemesia_iovec runs[MOST_RUNS];
    int from_any = round % 2;
    for (int peer = 0; peer < size; peer++) {
        if (peer == own) continue;
        size_t count = cut(runs, in[peer], MOST_BYTES);
        start_receive(&receives[peer], from_any ? ANY : peer, round, runs, count);
    }
    for (int peer = 0; peer < size; peer++) {
        if (peer == own) continue;
        size_t count = cut(runs, out[peer], bytes_of(round));
        fill(runs, count, own, round);
        start_send(&sends[peer], peer, round, runs, count);
    }
    unsigned seen = 0;
    for (int peer = 0; peer < size; peer++) {
        if (peer == own) continue;
        await(&receives[peer]);
        seen |= 1u << receives[peer].head.source;
        CHECK(from_any || receives[peer].head.source == (uint32_t)peer);
        await(&sends[peer]);
        memset(out[peer], 0xaa, sizeof out[peer]); /* counted bytes belong to this process again */
    }
    CHECK(seen == (((1u << size) - 1) ^ (1u << own)));
}

int main(int argc, char **argv) {
    bool parent = true;
    int rounds = argc > 2 ? atoi(argv[2]) : 30;
    char text[4096];
    OK(nemesia_channel_init_process_group(NULL, &channel, &own, &size, &parent));
    CHECK(!parent && size <= MOST_PEERS);
    OK(nemesia_channel_init(channel));
    seed = (uint64_t)own * 977 + (argc > 1 ? strtoull(argv[1], NULL, 10) : 1);
    for (int round = 0; round < rounds; round++) {
        all_to_all(round);
        barrier();
    }
    OK(nemesia_channel_explain(channel, sizeof text, text, NULL));
    ending = 1;
    barrier();
    OK(nemesia_channel_finalize(channel));
    if (own == 0) fputs(text, stdout);
    return EXIT_SUCCESS;
}

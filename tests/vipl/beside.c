/* The provider beside what it can be compared with, by the same two processes in the same run: latency beside that of
 * the engine (nemesia.h), bandwidth beside bare copies into shared memory. Batches of both alternate, so other programs
 * disturb both alike. The figures are medians over the batches; those of the best batches follow. `beside BATCHES`. */
#define _GNU_SOURCE
#include "common.h"

#include <nemesia.h>
#include <sys/mman.h>
#include <time.h>

enum { WINDOW = 32, LARGEST = 1 << 20, TRIPS = 100, MOST_BATCHES = 4096 };
static const unsigned lens[] = {4096, 5000, 16384, 65536, 100000, 262144, LARGEST};

static int batches = 200;

/* What both processes share: addresses of endpoints, messages written and read, and the targets of bare copies. */
typedef struct {
    uint8_t addresses[2][NEMESIA_ADDRESS_BYTES];
    int written __attribute__((aligned(128)));
    int read __attribute__((aligned(128)));
    int started __attribute__((aligned(128)));
    char bytes[] __attribute__((aligned(4096)));
} shared_memory;

static shared_memory *shared;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The same pause for everything that is awaited: with fewer processors than processes, another one must run. */
static void pause_after(double *since) {
    double time = now();
    if (*since == 0) *since = time;
    if (time - *since < 300e-6) return;
    *since = 0;
    usleep(0);
}

/* Waits until a counter of the other process has this value. Returns the one that was found. */
static int await(const int *word, int least) {
    double since = 0;
    int found;
    while ((found = __atomic_load_n(word, __ATOMIC_ACQUIRE)) < least) pause_after(&since);
    return found;
}

static VIP_DESCRIPTOR *ended(side *own, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **)) {
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    double since = 0;
    while ((code = done(own->vi, &found)) == VIP_NOT_DONE) pause_after(&since);
    CHECK(code == VIP_SUCCESS);
    return found;
}

/* The seconds of all batches: of the provider, and of what it is compared with. */
static double samples[2][MOST_BATCHES];

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

/* Orders the samples of both: the first is the best one, the middle one the median. */
static void order(int count) {
    qsort(samples[0], (size_t)count, sizeof **samples, compare);
    qsort(samples[1], (size_t)count, sizeof **samples, compare);
}

/* Both processes begin at the same time: they wait for each other without a system call, which one of them would leave
 * later than the other. */
static void start_together(int batch) {
    __atomic_add_fetch(&shared->started, 1, __ATOMIC_ACQ_REL);
    await(&shared->started, 2 * batch);
}

/* Messages of 4 bytes back and forth by the provider: seconds in one direction. As below for the engine, the side that
 * answers does so before it posts the next receive. */
static double provider_trips(side *own) {
    int trip;
    double start = now();
    for (trip = 0; trip < TRIPS; trip++) {
        VIP_DESCRIPTOR *received;
        own->next = 64;
        if (!own->is_server) post_send(own, 8192, 4);
        received = ended(own, VipRecvDone);
        if (own->is_server) post_send(own, 8192, 4);
        OK(VipPostRecv(own->vi, received, own->handle));
        ended(own, VipSendDone);
    }
    return (now() - start) / TRIPS / 2;
}

/* A call of the engine must succeed. */
static void engine(int32_t status) {
    if (status == NEMESIA_OK) return;
    fprintf(stderr, "case %s: the engine returned %d\n", current, status);
    _exit(1);
}

static void finish(nemesia_endpoint *endpoint, uint64_t request) {
    double since = 0;
    int32_t status;
    while ((status = nemesia_endpoint_test(endpoint, request, NULL)) == NEMESIA_PENDING) pause_after(&since);
    engine(status);
}

/* Messages of 8 bytes back and forth by the engine: seconds in one direction. */
static double engine_trips(const side *own, nemesia_endpoint *endpoint, int32_t peer) {
    uint64_t out, in, word = 7, found = 0;
    int trip;
    double start = now();
    for (trip = 0; trip < TRIPS; trip++) {
        engine(nemesia_endpoint_irecv(endpoint, peer, 5, 0, sizeof found, &found, &in));
        if (own->is_server) finish(endpoint, in);
        engine(nemesia_endpoint_isend(endpoint, peer, 5, &word, sizeof word, &out));
        if (!own->is_server) finish(endpoint, in);
        finish(endpoint, out);
    }
    CHECK(found == word);
    return (now() - start) / TRIPS / 2;
}

/* Opens an endpoint that is connected with that of the other process. */
static nemesia_endpoint *meet_endpoint(side *own, int32_t *rank) {
    nemesia_endpoint *endpoint;
    uint64_t peer;
    engine(nemesia_endpoint_alone(NULL, &endpoint));
    engine(nemesia_endpoint_address(endpoint, shared->addresses[own->is_server]));
    meet(own, 'a');
    engine(nemesia_endpoint_connect(endpoint, shared->addresses[!own->is_server], &peer));
    engine(nemesia_endpoint_wait_connected(endpoint, peer, -1, rank));
    return endpoint;
}

static void latency(side *own) {
    int batch, at;
    int32_t peer;
    nemesia_endpoint *endpoint = meet_endpoint(own, &peer);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (at = 0; at < 32; at++) post_receive(own, (unsigned)at * 64, 4);
    connect_side(own);
    for (batch = 0; batch < batches; batch++) {
        meet(own, 'p');
        samples[0][batch] = provider_trips(own);
        meet(own, 'e');
        samples[1][batch] = engine_trips(own, endpoint, peer);
    }
    if (own->is_server) {
        double *provider = samples[0], *other = samples[1];
        order(batches);
        printf("one way: provider, 4 bytes: %.3f us; engine, 8 bytes: %.3f us; ratio %.2f (best %.3f, %.3f: %.2f)\n",
               provider[batches / 2] * 1e6, other[batches / 2] * 1e6, provider[batches / 2] / other[batches / 2],
               provider[0] * 1e6, other[0] * 1e6, provider[0] / other[0]);
        fflush(stdout);
    }
    meet(own, 'c');
    engine(nemesia_endpoint_close(endpoint));
    close_side(own);
}

/* Copies in a batch: enough that its first ones do not matter. */
static int copies_of(unsigned len) {
    return len < LARGEST / 4 ? 256 : 64;
}

/* One batch in one direction, by the provider or by bare copies. The receiver counts what it has taken, in the shared
 * memory: the sender never has more than a window of messages under way. It looks at the counter only when the value
 * that it found last does not suffice: each look costs it the cache line, which copies hide and locks do not. */
static double batch_of(side *own, unsigned len, char *source, int is_bare) {
    static int batch;
    int at, copies = copies_of(len), read = 0;
    double start;
    if (own->is_server) shared->written = shared->read = 0;
    meet(own, 'b');
    start_together(++batch);
    start = now();
    for (at = 0; at < copies; at++) {
        if (own->is_server) {
            if (is_bare) await(&shared->written, at + 1);
            else OK(VipPostRecv(own->vi, ended(own, VipRecvDone), own->handle));
            __atomic_store_n(&shared->read, at + 1, __ATOMIC_RELEASE);
            continue;
        }
        if (read < at + 1 - WINDOW) read = await(&shared->read, at + 1 - WINDOW);
        if (is_bare) {
            memcpy(shared->bytes + (size_t)(at % WINDOW) * len, source, len);
            __atomic_store_n(&shared->written, at + 1, __ATOMIC_RELEASE);
        } else {
            own->next = 200;
            post_send(own, 0, len);
            ended(own, VipSendDone);
        }
    }
    start = now() - start;
    meet(own, 'd');
    return start;
}

/* Registers enough memory for a window of the largest messages. */
static void large_side(side *own) {
    VIP_MEM_ATTRIBUTES attributes = {0};
    VIP_PVOID found;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    release_memory(own);
    attributes.Ptag = own->ptag;
    if (own->is_allocated) {
        OK(VipAllocRegisterMem(own->nic, &found, MEMORY + (VIP_ULONG)WINDOW * LARGEST, &attributes, &own->handle));
        own->memory = found;
    } else {
        own->memory = aligned_alloc(4096, MEMORY + (size_t)WINDOW * LARGEST);
        CHECK(own->memory != NULL);
        memset(own->memory, 1, MEMORY + (size_t)WINDOW * LARGEST);
        OK(VipRegisterMem(own->nic, own->memory, MEMORY + (VIP_ULONG)WINDOW * LARGEST, &attributes, &own->handle));
    }
    OK(VipDestroyVi(own->vi));
    own->attributes.MaxTransferSize = LARGEST;
    OK(VipCreateVi(own->nic, &own->attributes, NULL, NULL, &own->vi));
}

static void bandwidth(side *own) {
    unsigned kind;
    char *source = aligned_alloc(4096, LARGEST);
    CHECK(source != NULL);
    memset(source, 1, LARGEST);
    large_side(own);
    for (kind = 0; kind < sizeof lens / sizeof *lens; kind++) {
        unsigned len = lens[kind];
        /* Fewer batches of the large messages: they take longer, and vary less. */
        int at, batch, count = batches / (1 + (int)(len / 65536)) + 4;
        for (at = 0; at < WINDOW && own->is_server; at++) {
            own->next = (unsigned)at;
            post_receive(own, (unsigned)at * len, len);
        }
        connect_side(own);
        for (batch = 0; batch < count; batch++) {
            samples[0][batch] = batch_of(own, len, source, 0);
            samples[1][batch] = batch_of(own, len, source, 1);
        }
        if (own->is_server) {
            double bytes = (double)len * copies_of(len) * 1e-9, *provider = samples[0], *bare = samples[1];
            order(count);
            printf("%s memory: %u bytes: provider %.2f GB/s, bare copies %.2f GB/s, ratio %.2f "
                   "(best %.2f, %.2f: %.2f)\n",
                   own->is_allocated ? "allocated" : "user", len, bytes / provider[count / 2], bytes / bare[count / 2],
                   bare[count / 2] / provider[count / 2], bytes / provider[0], bytes / bare[0], bare[0] / provider[0]);
            fflush(stdout);
        }
        meet(own, 'e');
        OK(VipDisconnect(own->vi));
        drain(own);
        meet(own, 'f');
    }
    close_side(own);
    free(source);
}

int main(int count, char **arguments) {
    int is_allocated;
    size_t len = sizeof *shared + (size_t)WINDOW * LARGEST;
    if (count > 1) batches = atoi(arguments[1]);
    CHECK(batches >= 1 && batches <= MOST_BATCHES - 4);
    shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    two_processes("latency", 1, latency);
    for (is_allocated = 1; is_allocated >= 0; is_allocated--) {
        shared->started = 0;
        two_processes("bandwidth", is_allocated, bandwidth);
    }
    return 0;
}

/* Two processes measure what a message costs: ping-pong latency, and windows of messages for bandwidth and rate.
 *
 * One source for all: compiled with -DNEMESIA against nemesia.h, with -DSOCKETS
 * without a library, over TCP (sockets.h), otherwise against MPI. The layer below holds the
 * differences, a line or two for each operation; the measurements are the same text.
 *
 *   pingpong TESTS SIZES [FILE]      pingpong latency,window 0,8,1024
 *
 * A ping-pong sends back the bytes that arrived, from where they arrived: the other core has just written them, as in
 * a program that reads its messages. With `still` among the tests it sends from a buffer that never changes.
 *
 * Rank 0 prints: `core RANK CORE ALLOWED`, `latency BYTES NANOSECONDS`, `window BYTES MESSAGES_PER_SECOND`.
 * Values are means of the middle half of all round trips and windows: on a shared core some of them are interrupted.
 * `trips-early` and `windows-early` are different: the mean nanoseconds of one message among the first 100 or so and
 * 1000 or so of the process, which a library that learns spends on learning: `trips-early BYTES MESSAGES NANOSECONDS`.
 *
 * With a file of zeros, 4096 bytes, that both processes map, each value is followed by the time of a bare hand-over of
 * a cache line just before and just after, in nanoseconds: the host may move a virtual machine's cores in between.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "handover.h"

enum {
    WINDOW = 64,          /* messages in a window */
    SECONDS = 300,        /* a process ends after this, whatever its launcher does */
    PILOT = 20,           /* round trips that tell how many fit into a round */
    PILOT_WINDOWS = 3,    /* and windows */
    HAND_OVERS = 1000,    /* of a bare line, before and after each measurement */
    PAGE = 4096,
    FEWEST_TRIPS = 100,   /* so that the median means something */
    MOST_TRIPS = 20000,   /* and so that it does not take for ever */
    MOST_WINDOWS = 4000,
    COMMAND = 1,          /* tags */
    CONTENT = 2,
    ACKNOWLEDGEMENT = 3
};
static const double ROUND_NS = 20e6, LONGEST_ROUND_NS = 150e6;

/* ---- The layer: the calls of each library. ---- */
#ifdef NEMESIA
#include <nemesia.h>

typedef uint64_t request;
static nemesia_endpoint *endpoint;
static int32_t rank, peer, size;

static inline void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", nemesia_status_name(status), nemesia_last_error_message());
        _exit(EXIT_FAILURE);
    }
}

static void start(void) {
    check(nemesia_endpoint_open(NULL, &endpoint));
    check(nemesia_endpoint_rank(endpoint, &rank));
    check(nemesia_endpoint_size(endpoint, &size));
}

static inline void finish(void) {
    check(nemesia_endpoint_close(endpoint));
}

static inline void transmit(int tag, const void *buffer, size_t bytes) {
    check(nemesia_endpoint_send(endpoint, peer, (uint64_t)tag, buffer, bytes));
}

static inline void receive(int tag, void *buffer, size_t bytes) {
    check(nemesia_endpoint_recv(endpoint, peer, (uint64_t)tag, 0, bytes, buffer, NULL));
}

static inline void start_transmit(int tag, const void *buffer, size_t bytes, request *out) {
    check(nemesia_endpoint_isend(endpoint, peer, (uint64_t)tag, buffer, bytes, out));
}

static inline void start_receive(int tag, void *buffer, size_t bytes, request *out) {
    check(nemesia_endpoint_irecv(endpoint, peer, (uint64_t)tag, 0, bytes, buffer, out));
}

static inline void wait_all(int count, request *requests) {
    check(nemesia_endpoint_wait_all(endpoint, (size_t)count, requests, -1, NULL));
}
#elif defined(SOCKETS)
#include "sockets.h"
#else
#include <mpi.h>

typedef MPI_Request request;
static int rank, peer, size;

/* An error ends the program, as MPI's default does. */
static void start(void) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static inline void finish(void) {
    MPI_Finalize();
}

static inline void transmit(int tag, const void *buffer, size_t bytes) {
    MPI_Send(buffer, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
}

static inline void receive(int tag, void *buffer, size_t bytes) {
    MPI_Recv(buffer, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static inline void start_transmit(int tag, const void *buffer, size_t bytes, request *out) {
    MPI_Isend(buffer, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, out);
}

static inline void start_receive(int tag, void *buffer, size_t bytes, request *out) {
    MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, out);
}

static inline void wait_all(int count, request *requests) {
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}
#endif

/* ---- The measurements. ---- */
enum kind { CHECK, TRIPS, WINDOWS, HAND_OVER, FINISH };

struct command {
    uint64_t kind, bytes, count;
};

static char *outgoing, *incoming;
static char *thrown; /* what a ping-pong sends from: one of the two */
static uint64_t samples[MOST_TRIPS + MOST_TRIPS / 10];
static request requests[WINDOW];
static struct lines *lines; /* NULL without a file */
static uint64_t handed;     /* round trips of the bare line so far */

static void die(const char *problem) {
    fprintf(stderr, "pingpong: %s\n", problem);
    _exit(EXIT_FAILURE);
}

static void command(enum kind kind, size_t bytes, size_t count) {
    const struct command packet = {kind, bytes, count};
    transmit(COMMAND, &packet, sizeof packet);
}

/* Rank 0: makes `count` round trips, and returns the ticks of each. */
static void ping(size_t bytes, size_t count) {
    uint64_t last, now;
    size_t trip;
    command(TRIPS, bytes, count);
    last = ticks();
    for (trip = 0; trip < count; trip++) {
        transmit(CONTENT, thrown, bytes);
        receive(CONTENT, incoming, bytes);
        now = ticks();
        samples[trip] = now - last;
        last = now;
    }
}

static void pong(size_t bytes, size_t count) {
    for (; count > 0; count--) {
        receive(CONTENT, incoming, bytes);
        transmit(CONTENT, thrown, bytes);
    }
}

/* Rank 0: sends `count` windows, each acknowledged by an empty message, and returns the ticks of each. */
static void transmit_windows(size_t bytes, size_t count) {
    uint64_t last, now;
    size_t window;
    int at;
    command(WINDOWS, bytes, count);
    last = ticks();
    for (window = 0; window < count; window++) {
        for (at = 0; at < WINDOW; at++) {
            start_transmit(CONTENT, outgoing, bytes, &requests[at]);
        }
        wait_all(WINDOW, requests);
        receive(ACKNOWLEDGEMENT, incoming, 0);
        now = ticks();
        samples[window] = now - last;
        last = now;
    }
}

static void receive_windows(size_t bytes, size_t count) {
    int at;
    for (; count > 0; count--) {
        for (at = 0; at < WINDOW; at++) {
            start_receive(CONTENT, incoming, bytes, &requests[at]);
        }
        wait_all(WINDOW, requests);
        transmit(ACKNOWLEDGEMENT, outgoing, 0);
    }
}

static unsigned char content(size_t bytes, size_t at, int sender) {
    return (unsigned char)((at * 31 + bytes + (size_t)sender * 7) % 251);
}

static void transmit_content(size_t bytes) {
    size_t at;
    for (at = 0; at < bytes; at++) {
        outgoing[at] = (char)content(bytes, at, rank);
    }
    transmit(CONTENT, outgoing, bytes);
}

static void receive_content(size_t bytes) {
    size_t at;
    memset(incoming, 255, bytes);
    receive(CONTENT, incoming, bytes);
    for (at = 0; at < bytes; at++) {
        if ((unsigned char)incoming[at] != content(bytes, at, peer)) {
            die("a message arrived damaged");
        }
    }
}

static double middle_ns(size_t from, size_t count) {
    return tick_ns * middle(samples + from, count);
}

/* Returns one way of a bare line, in nanoseconds. */
static double hand_over(void) {
    command(HAND_OVER, 0, HAND_OVERS);
    ask(lines, handed, HAND_OVERS, samples);
    handed += HAND_OVERS;
    return middle_ns(HAND_OVERS / 10, HAND_OVERS - HAND_OVERS / 10) / 2;
}

static void return_hand_over(size_t count) {
    answer(lines, handed, count);
    handed += count;
}

static size_t fitting(double fewest, double wanted, double most) {
    return (size_t)(wanted < fewest ? fewest : wanted > most ? most : wanted);
}

/* Returns half a round trip. */
static double latency(size_t bytes) {
    double trip, fewest;
    size_t count;
    ping(bytes, PILOT);
    trip = middle_ns(0, PILOT) + 1;
    fewest = LONGEST_ROUND_NS / trip < FEWEST_TRIPS ? LONGEST_ROUND_NS / trip + 1 : FEWEST_TRIPS;
    count = fitting(fewest, ROUND_NS / trip, MOST_TRIPS);
    ping(bytes, count + count / 10);
    return middle_ns(count / 10, count) / 2;
}

/* Returns the messages per second of a window. */
static double windows(size_t bytes) {
    double window;
    size_t count;
    transmit_windows(bytes, PILOT_WINDOWS);
    window = middle_ns(0, PILOT_WINDOWS) + 1;
    count = fitting(PILOT_WINDOWS, ROUND_NS / window, MOST_WINDOWS);
    transmit_windows(bytes, count);
    return WINDOW / middle_ns(0, count) * 1e9;
}

/* Returns the core on which this process runs, and the number of cores allowed. */
static void tell_cores(void) {
    int32_t place[2] = {0, 0};
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    place[0] = sched_getcpu();
    place[1] = CPU_COUNT(&set);
    if (rank == 1) {
        transmit(CONTENT, place, sizeof place);
        return;
    }
    printf("core 0 %d %d\n", (int)place[0], (int)place[1]);
    receive(CONTENT, place, sizeof place);
    printf("core 1 %d %d\n", (int)place[0], (int)place[1]);
}

static void measure_one(const char *test, double (*run)(size_t), size_t bytes) {
    const double before = lines == NULL ? 0 : hand_over(), value = run(bytes);
    printf("%s %zu %.2f", test, bytes, value);
    if (lines != NULL) {
        printf(" %.2f %.2f", before, hand_over());
    }
    printf("\n");
}

/* Returns the mean time of a message among the first ones: `parts` of samples that have `each` messages. */
static double mean_early(size_t parts, size_t each) {
    double sum = 0;
    size_t at;
    for (at = 0; at < parts; at++) {
        sum += tick_ns * (double)samples[at];
    }
    return sum / (double)(parts * each);
}

/* Prints the time among the first `few` and the first `many` samples. */
static void print_early(const char *test, size_t bytes, size_t few, size_t many, size_t each, double before) {
    const size_t counts[2] = {few, many};
    const double values[2] = {mean_early(few, each), mean_early(many, each)};
    const double after = lines == NULL ? 0 : hand_over();
    int at;
    for (at = 0; at < 2; at++) {
        printf("%s %zu %zu %.2f", test, bytes, counts[at] * each, values[at]);
        if (lines != NULL) {
            printf(" %.2f %.2f", before, after);
        }
        printf("\n");
    }
}

static void early(const char *tests, size_t bytes) {
    const int trips = strstr(tests, "trips-early") != NULL, sends = strstr(tests, "windows-early") != NULL;
    const double before = lines == NULL || !(trips || sends) ? 0 : hand_over();
    if (trips) {
        ping(bytes, 500);
        print_early("trips-early", bytes, 50, 500, 2, before);
    }
    if (sends) {
        transmit_windows(bytes, 16);
        print_early("windows-early", bytes, 2, 16, WINDOW, before);
    }
}

static void measure(const char *tests, char *sizes) {
    char *word;
    for (word = strtok(sizes, ","); word != NULL; word = strtok(NULL, ",")) {
        const size_t bytes = strtoull(word, NULL, 10);
        early(tests, bytes);
        command(CHECK, bytes, 1);
        transmit_content(bytes);
        receive_content(bytes);
        if (strstr(tests, "latency") != NULL) {
            measure_one("latency", latency, bytes);
        }
        if (strstr(tests, "window") != NULL) {
            measure_one("window", windows, bytes);
        }
    }
    command(FINISH, 0, 0);
}

static void serve(void) {
    struct command next;
    for (;;) {
        receive(COMMAND, &next, sizeof next);
        switch (next.kind) {
        case CHECK:
            receive_content(next.bytes);
            transmit_content(next.bytes);
            break;
        case TRIPS:
            pong(next.bytes, next.count);
            break;
        case WINDOWS:
            receive_windows(next.bytes, next.count);
            break;
        case HAND_OVER:
            return_hand_over(next.count);
            break;
        default:
            return;
        }
    }
}

static size_t largest(const char *sizes) {
    size_t most = 4096;
    while (*sizes != 0) {
        char *end;
        const size_t bytes = strtoull(sizes, &end, 10);
        most = bytes > most ? bytes : most;
        sizes = *end == ',' ? end + 1 : end + strlen(end);
    }
    return (most + 4095) / 4096 * 4096;
}

static struct lines *map(const char *path) {
    const int file = open(path, O_RDWR);
    void *memory = file < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        perror("pingpong: the file of the hand-over");
        _exit(EXIT_FAILURE);
    }
    close(file);
    return memory;
}

int main(int count, char **arguments) {
    size_t most;
    if (count < 3 || count > 4) {
        die("give tests and sizes: pingpong latency,window 0,8,1024");
    }
    lines = count == 4 ? map(arguments[3]) : NULL;
    alarm(SECONDS);
    calibrate();
    start();
    if (size != 2) {
        die("start two processes");
    }
    peer = 1 - rank;
    most = largest(arguments[2]);
    outgoing = aligned_alloc(4096, most);
    incoming = aligned_alloc(4096, most);
    if (outgoing == NULL || incoming == NULL) {
        die("there is no memory");
    }
    thrown = strstr(arguments[1], "still") != NULL ? outgoing : incoming;
    /* Every page is present before the measurement. */
    memset(outgoing, 1, most);
    memset(incoming, 1, most);
    tell_cores();
    if (rank == 0) {
        measure(arguments[1], arguments[2]);
    } else {
        serve();
    }
    finish();
    return EXIT_SUCCESS;
}

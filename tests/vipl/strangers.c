/* Processes that are not to be connected: `strangers request`, `strangers squatter`.
 *
 * request     a process without the key on another host, or of another user of this one, says that it is on the host of
 *             the server: the program that waits does not learn of it
 * squatter    a process of another user answers each request that a call waits, and then nothing more: the client finds
 *             its server all the same
 *
 * Without hosts of their own, the processes begin as root. */
#include "common.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#define FRAME_BYTES 384
#define STRANGER 65534
enum { REQUEST = 1, NO_MATCH = 3, REFUSED = 4, PENDING = 7, CONFIRM = 8 };

static int first_port = 21100, port_count = 64;

static void become_stranger(void) {
    if (!has_hosts()) CHECK(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
}

/* Fills the address at an offset of a frame: that of the server, or one under which nothing waits. */
static void put_address(unsigned char *frame, unsigned at, int is_server) {
    VIP_UINT32 words[3];
    struct in_addr host = host_of(is_server);
    words[0] = is_server ? 1 : 99;
    words[1] = (VIP_UINT32)test_number;
    words[2] = (VIP_UINT32)(test_number >> 32);
    frame[at] = 4, frame[at + 1] = sizeof words;
    memcpy(frame + at + 4, &host, 4);
    memcpy(frame + at + 8, words, sizeof words);
}

/* core/src/via/setup.rs has the format. */
static void make_frame(unsigned char *frame, int kind, const unsigned char *machine, int is_for_server) {
    memset(frame, 0, FRAME_BYTES);
    memcpy(frame, "nemesiav", 8);
    frame[8] = 3, frame[10] = (unsigned char)kind;
    memset(frame + 16, 0x11, 16);
    frame[32] = 2;
    frame[42] = MOST_TRANSFER >> 16;
    frame[56] = VIP_SERVICE_RELIABLE_DELIVERY;
    put_address(frame, 80, 0);
    put_address(frame, 152, is_for_server);
    if (machine != NULL) memcpy(frame + 224, machine, 16);
}

static int dial(int port) {
    struct sockaddr_in to;
    struct timeval limit = {5, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((unsigned short)port);
    to.sin_addr = host_of(1);
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

/* Sends a frame. Returns the kind of the answer, which replaces the frame, or 0 without one. */
static int ask(int fd, unsigned char *frame) {
    if (send(fd, frame, FRAME_BYTES, MSG_NOSIGNAL) != FRAME_BYTES) return 0;
    if (recv(fd, frame, FRAME_BYTES, MSG_WAITALL) != FRAME_BYTES) return 0;
    return frame[10];
}

/* Requests a connection from the process at a port, if it is the server. Returns whether it is. */
static int forge(int port) {
    unsigned char frame[FRAME_BYTES], machine[16];
    int fd = dial(port), kind;
    if (fd < 0) return 0;
    make_frame(frame, REQUEST, NULL, 0);
    kind = ask(fd, frame);
    close(fd);
    if (kind != NO_MATCH) return 0;
    memcpy(machine, frame + 224, 16);
    fd = dial(port);
    if (fd < 0) return 0;
    make_frame(frame, REQUEST, machine, 1);
    kind = ask(fd, frame);
    if (kind == PENDING) {
        make_frame(frame, CONFIRM, machine, 1);
        kind = ask(fd, frame);
        CHECK(kind == REFUSED);
    }
    close(fd);
    return kind == REFUSED;
}

static void request(side *own) {
    if (own->is_server) {
        address local;
        struct pollfd client;
        VIP_CONN_HANDLE connection;
        open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
        local = address_of(own, 1);
        client.fd = own->in;
        client.events = POLLIN;
        do {
            GIVES(VIP_TIMEOUT, VipConnectWait(own->nic, &local.net, 200, NULL, NULL, &connection));
        } while (poll(&client, 1, 0) == 0);
        meet(own, 'r');
        close_side(own);
    } else {
        int is_found = 0, port;
        become_stranger();
        while (!is_found) {
            for (port = first_port; !is_found && port < first_port + port_count; port++) is_found = forge(port);
        }
        meet(own, 'r');
    }
}

/* Answers requests at a socket that listens. Writes one byte when the first was answered. */
static void squat(int listener, int out) {
    unsigned char frame[FRAME_BYTES], answer[FRAME_BYTES];
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        if (recv(fd, frame, FRAME_BYTES, MSG_WAITALL) != FRAME_BYTES) continue;
        memcpy(answer, frame, FRAME_BYTES);
        answer[10] = PENDING;
        memset(answer + 16, 0x22, 16);
        memcpy(answer + 80, frame + 152, 72);
        memcpy(answer + 152, frame + 80, 72);
        if (send(fd, answer, FRAME_BYTES, MSG_NOSIGNAL) == FRAME_BYTES) CHECK(write(out, "a", 1) == 1);
    }
}

static void squatter(side *own) {
    int asked[2] = {-1, -1}, listener, port;
    struct sockaddr_in at;
    char ports[32], byte;
    pid_t child = -1;
    if (own->is_server) {
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_addr = host_of(1);
        listener = socket(AF_INET, SOCK_STREAM, 0);
        port = 12000 + (int)(getpid() % 4000) * 4;
        do {
            at.sin_port = htons((unsigned short)(port += 4));
        } while (bind(listener, (struct sockaddr *)&at, sizeof at) != 0);
        CHECK(listen(listener, 64) == 0 && pipe(asked) == 0);
        child = fork();
        if (child == 0) {
            alarm(300);
            become_stranger();
            squat(listener, asked[1]);
        }
        close(listener);
        tell(own, &port, sizeof port);
    } else {
        hear(own, &port, sizeof port);
    }
    snprintf(ports, sizeof ports, "%d:4", port);
    CHECK(setenv("VIPL_PORTS", ports, 1) == 0);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    /* The server waits when the client has the false answer. */
    if (own->is_server) CHECK(read(asked[0], &byte, 1) == 1);
    connect_side(own);
    meet(own, 'c');
    close_side(own);
    if (own->is_server) CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

int main(int count, char **arguments) {
    const char *ports = getenv("VIPL_PORTS");
    CHECK(count == 2);
    if (ports != NULL) CHECK(sscanf(ports, "%d:%d", &first_port, &port_count) == 2);
    if (strcmp(arguments[1], "request") == 0) two_processes("stranger-request", 0, request);
    else two_processes("squatter", 0, squatter);
    return 0;
}

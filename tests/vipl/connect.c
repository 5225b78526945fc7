/* Connections between two processes, both kinds, and what may go wrong. */
#include "common.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static VIP_CONN_HANDLE await_request(side *own, unsigned number, VIP_VI_ATTRIBUTES *theirs) {
    address local = address_of(own, number), from;
    VIP_CONN_HANDLE connection;
    OK(VipConnectWait(own->nic, &local.net, LIMIT, &from.net, theirs, &connection));
    return connection;
}

static VIP_RETURN request(side *own, unsigned number, VIP_ULONG limit) {
    address local = address_of(own, 2), remote = address_of(own, number);
    return VipConnectRequest(own->vi, &local.net, &remote.net, limit, NULL);
}

/* "An explicit reject is REJECT"; the VI is idle afterwards and can be connected.
 * statement: request-reject */
static void reject(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (own->is_server) {
        VIP_CONN_HANDLE connection = await_request(own, 1, NULL);
        OK(VipConnectReject(connection));
        GIVES(VIP_INVALID_PARAMETER, VipConnectReject(connection));
        GIVES(VIP_INVALID_PARAMETER, VipConnectAccept(connection, own->vi));
    } else {
        GIVES(VIP_REJECT, request(own, 1, LIMIT));
        CHECK(state_of(own) == VIP_STATE_IDLE);
    }
    connect_side(own);
    meet(own, 'e');
    close_side(own);
}

/* "Reliability level, maximum transfer size and QoS must match; the other side is not told: retry or Reject."
 * statement: accept-idle, accept-level, accept-size, accept-qos, accept-silent, accept-retry, accept-reject */
static void mismatch(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (own->is_server) {
        VIP_VI_ATTRIBUTES theirs, changed = own->attributes;
        VIP_CONN_HANDLE connection = await_request(own, 1, &theirs);
        VIP_VI_HANDLE other;
        CHECK(theirs.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY && theirs.MaxTransferSize == MOST_TRANSFER);
        changed.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
        OK(VipSetViAttributes(own->vi, &changed));
        GIVES(VIP_INVALID_RELIABILITY_LEVEL, VipConnectAccept(connection, own->vi));
        changed = own->attributes;
        changed.MaxTransferSize--;
        OK(VipSetViAttributes(own->vi, &changed));
        GIVES(VIP_INVALID_MTU, VipConnectAccept(connection, own->vi));
        changed = own->attributes;
        changed.QoS = (VIP_QOS)1;
        OK(VipSetViAttributes(own->vi, &changed));
        GIVES(VIP_INVALID_QOS, VipConnectAccept(connection, own->vi));
        GIVES(VIP_INVALID_PARAMETER, VipConnectAccept(connection, own->nic));
        OK(VipSetViAttributes(own->vi, &own->attributes));
        OK(VipConnectAccept(connection, own->vi));
        /* "The VI must be idle." */
        connection = await_request(own, 3, NULL);
        GIVES(VIP_INVALID_STATE, VipConnectAccept(connection, own->vi));
        OK(VipCreateVi(own->nic, &own->attributes, NULL, NULL, &other));
        OK(VipConnectAccept(connection, other));
        GIVES(VIP_INVALID_STATE, VipDestroyVi(other));
        GIVES(VIP_INVALID_STATE, VipSetViAttributes(other, &own->attributes));
        OK(VipDisconnect(other));
        /* A request that could not be accepted is rejected. */
        changed = own->attributes;
        changed.MaxTransferSize--;
        OK(VipSetViAttributes(other, &changed));
        connection = await_request(own, 9, NULL);
        GIVES(VIP_INVALID_MTU, VipConnectAccept(connection, other));
        OK(VipConnectReject(connection));
        OK(VipDestroyVi(other));
    } else {
        VIP_VI_HANDLE first = own->vi;
        OK(request(own, 1, LIMIT));
        GIVES(VIP_INVALID_STATE, request(own, 3, LIMIT));
        OK(VipCreateVi(own->nic, &own->attributes, NULL, NULL, &own->vi));
        OK(request(own, 3, LIMIT));
        await_state(own, VIP_STATE_ERROR);
        OK(VipDisconnect(own->vi));
        GIVES(VIP_REJECT, request(own, 9, LIMIT));
        CHECK(state_of(own) == VIP_STATE_IDLE);
        OK(VipDestroyVi(own->vi));
        own->vi = first;
    }
    meet(own, 'e');
    close_side(own);
}

/* "Timeout 0 is INVALID_PARAMETER; else TIMEOUT."
 * statement: request-timeout-zero, request-timeout */
static void timeouts(side *own) {
    address local, long_one;
    VIP_CONN_HANDLE connection;
    char letter;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    local = long_one = address_of(own, 77);
    long_one.net.DiscriminatorLen = 65;
    if (own->is_server) {
        GIVES(VIP_TIMEOUT, VipConnectWait(own->nic, &local.net, 30, NULL, NULL, &connection));
        GIVES(VIP_TIMEOUT, VipConnectWait(own->nic, &local.net, 0, NULL, NULL, &connection));
        GIVES(VIP_INVALID_PARAMETER, VipConnectWait(own->nic, &long_one.net, 30, NULL, NULL, &connection));
        GIVES(VIP_INVALID_PARAMETER, VipConnectWait(own->nic, NULL, 30, NULL, NULL, &connection));
        GIVES(VIP_INVALID_PARAMETER, VipConnectWait(own->nic, &local.net, 30, NULL, NULL, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipConnectWait(own->vi, &local.net, 30, NULL, NULL, &connection));
        /* A client that waits no longer. */
        connection = await_request(own, 1, NULL);
        tell(own, "w", 1);
        meet(own, 'l');
        GIVES(VIP_TIMEOUT, VipConnectAccept(connection, own->vi));
        CHECK(state_of(own) == VIP_STATE_IDLE);
    } else {
        GIVES(VIP_INVALID_PARAMETER, request(own, 1, 0));
        GIVES(VIP_TIMEOUT, request(own, 99, 50));
        CHECK(state_of(own) == VIP_STATE_IDLE);
        GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(own->vi, NULL, &local.net, 10, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(own->vi, &local.net, NULL, 10, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(own->vi, &local.net, &long_one.net, 10, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(own->nic, &local.net, &local.net, 10, NULL));
        /* The server takes the request, and accepts it too late. */
        struct pollfd taken;
        taken.fd = own->in;
        taken.events = POLLIN;
        do {
            GIVES(VIP_TIMEOUT, request(own, 1, 1000));
        } while (poll(&taken, 1, 0) == 0);
        hear(own, &letter, 1);
        meet(own, 'l');
    }
    close_side(own);
}

/* "Request: matched on the remote address": two calls wait, and each gets its own request.
 * statement: request-address */
static void discriminators(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (own->is_server) {
        address wrong = address_of(own, 5);
        VIP_CONN_HANDLE connection;
        meet(own, 's');
        GIVES(VIP_TIMEOUT, VipConnectWait(own->nic, &wrong.net, 300, NULL, NULL, &connection));
        connection = await_request(own, 9, NULL);
        OK(VipConnectAccept(connection, own->vi));
    } else {
        meet(own, 's');
        OK(request(own, 9, LIMIT));
    }
    meet(own, 'e');
    close_side(own);
}

static void *disconnect_later(void *own) {
    await_state(own, VIP_STATE_CONNECT_PENDING);
    OK(VipDisconnect(((side *)own)->vi));
    return NULL;
}

/* "Retry on NO_MATCH": a program whose client starts first, with a loop as old programs have it.
 * statement: retry-no-match */
static void client_first(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (own->is_server) {
        VIP_RETURN code = VIP_TIMEOUT;
        meet(own, 'c');
        /* The request that the client has given up may be still there. */
        while (code == VIP_TIMEOUT) code = VipConnectAccept(await_request(own, 11, NULL), own->vi);
        OK(code);
    } else {
        VIP_RETURN code = request(own, 11, 20);
        CHECK(code == VIP_NO_MATCH || code == VIP_TIMEOUT);
        CHECK(state_of(own) == VIP_STATE_IDLE);
        meet(own, 'c');
        while ((code = request(own, 11, LIMIT)) == VIP_NO_MATCH) usleep(1000);
        OK(code);
    }
    meet(own, 'e');
    close_side(own);
}

/* A request of which another thread disconnects the VI ends: INVALID_STATE.
 * statement: vi-states */
static void interrupted(side *own) {
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (!own->is_server) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, disconnect_later, own) == 0);
        GIVES(VIP_INVALID_STATE, request(own, 98, LIMIT));
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(state_of(own) == VIP_STATE_IDLE);
    }
    connect_side(own);
    meet(own, 'e');
    close_side(own);
}

static VIP_RETURN call_peer(side *own, VIP_ULONG limit) {
    address local = address_of(own, own->is_server ? 1 : 2), remote = address_of(own, own->is_server ? 2 : 1);
    return VipConnectPeerRequest(own->vi, &local.net, &remote.net, limit);
}

/* The attributes of peers differ: both sides get this code, and are idle. */
static void peers_differ(side *own, VIP_RETURN code) {
    VIP_VI_ATTRIBUTES theirs;
    VIP_RETURN found;
    OK(VipSetViAttributes(own->vi, &own->attributes));
    OK(call_peer(own, LIMIT));
    if (own->is_server) {
        GIVES_AS(code, VipConnectPeerWait(own->vi, &theirs), "waiting for a peer that differs");
    } else {
        while ((found = VipConnectPeerDone(own->vi, &theirs)) == VIP_NOT_DONE) usleep(100);
        GIVES_AS(code, found, "the end of the request to a peer that differs");
    }
    CHECK(state_of(own) == VIP_STATE_IDLE);
    meet(own, 't');
}

/* Peer to peer: symmetric and asynchronous, whoever is first; the first request is buffered. */
static void peers(side *own) {
    int round;
    VIP_VI_ATTRIBUTES theirs;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    GIVES(VIP_INVALID_STATE, VipConnectPeerDone(own->vi, &theirs));
    GIVES(VIP_INVALID_STATE, VipConnectPeerWait(own->vi, &theirs));
    GIVES(VIP_INVALID_PARAMETER, call_peer(own, 0));
    for (round = 0; round < 6; round++) {
        VIP_DESCRIPTOR *receive = post_receive(own, 0, 64), *send;
        if (round % 3 == own->is_server) meet(own, 'o');
        OK(call_peer(own, LIMIT));
        GIVES(VIP_INVALID_STATE, call_peer(own, LIMIT));
        if (round % 3 == !own->is_server) {
            VIP_RETURN code = VipConnectPeerDone(own->vi, &theirs);
            CHECK(code == VIP_NOT_DONE && state_of(own) == VIP_STATE_CONNECT_PENDING);
            meet(own, 'o');
        }
        if (round < 3) {
            OK(VipConnectPeerWait(own->vi, &theirs));
        } else {
            VIP_RETURN code;
            while ((code = VipConnectPeerDone(own->vi, &theirs)) == VIP_NOT_DONE) usleep(100);
            OK(code);
        }
        CHECK(theirs.MaxTransferSize == MOST_TRANSFER);
        send = post_send(own, 1000, 64);
        sent(own, send, VIP_STATUS_OP_SEND, 64);
        received(own, receive, VIP_STATUS_OP_RECEIVE, 64);
        meet(own, 'd');
        OK(VipDisconnect(own->vi));
        meet(own, 'i');
    }
    for (round = 0; round < 2; round++) {
        if (own->is_server == round) own->attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
        peers_differ(own, VIP_INVALID_RELIABILITY_LEVEL);
        own->attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
        if (own->is_server == round) own->attributes.MaxTransferSize--;
        peers_differ(own, VIP_INVALID_MTU);
        own->attributes.MaxTransferSize = MOST_TRANSFER;
        if (own->is_server == round) own->attributes.QoS = (VIP_QOS)1;
        peers_differ(own, VIP_INVALID_QOS);
        own->attributes.QoS = NULL;
    }
    OK(VipSetViAttributes(own->vi, &own->attributes));
    /* No peer: one side calls alone, then the other one. */
    if (!own->is_server) meet(own, 'a');
    OK(call_peer(own, 50));
    if (own->is_server) {
        GIVES(VIP_TIMEOUT, VipConnectPeerWait(own->vi, &theirs));
        meet(own, 'a');
    } else {
        VIP_RETURN code;
        while ((code = VipConnectPeerDone(own->vi, &theirs)) == VIP_NOT_DONE) usleep(100);
        GIVES_AS(VIP_TIMEOUT, code, "the end of a request without a peer");
    }
    CHECK(state_of(own) == VIP_STATE_IDLE);
    GIVES(VIP_INVALID_PARAMETER, VipConnectPeerDone(own->nic, &theirs));
    GIVES(VIP_INVALID_PARAMETER, VipConnectPeerWait(own->nic, &theirs));
    meet(own, 'e');
    close_side(own);
}

/* Makes a child that lives until it is killed. No handler of fork runs in a raw one, which has all descriptors. */
static pid_t leave_child(int is_raw) {
    pid_t child = is_raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(300);
        for (;;) pause();
    }
    return child;
}

/* The remote side sees the end of a process as the end of the connection, although children of that process live.
 * statement: error-codes */
static void killed(side *own) {
    pid_t pids[3];
    /* A child keeps the device, which so hides the death. */
    const int has_children = !is_over_verbs();
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    connect_side(own);
    if (own->is_server) {
        pids[0] = getpid(), pids[1] = has_children ? leave_child(0) : 0;
        /* Between machines such a child hides the death. */
        pids[2] = has_children ? leave_child(!has_hosts()) : 0;
        tell(own, pids, sizeof pids);
        for (;;) pause();
    } else {
        VIP_DESCRIPTOR *receive = post_receive(own, 0, 4);
        hear(own, pids, sizeof pids);
        CHECK(kill(pids[0], SIGKILL) == 0);
        received(own, receive, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR, 0);
        CHECK(state_of(own) == VIP_STATE_ERROR);
        for (int at = 1; has_children && at < 3; at++) CHECK(kill(pids[at], SIGKILL) == 0);
        close_side(own);
    }
}

/* Returns a socket that listens on a free port of the host of a process, and its number. */
static int listening(int is_server, unsigned short *port) {
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_addr = host_of(is_server);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 64) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&name, &len) == 0);
    *port = ntohs(name.sin_port);
    return listener;
}

/* Uses some ports from this one on. */
static void use_ports(unsigned short port, int count) {
    char text[32];
    snprintf(text, sizeof text, "%u:%d", (unsigned)port, count);
    CHECK(setenv("VIPL_PORTS", text, 1) == 0);
}

/* Bytes of a frame. */
enum { FRAME = 384 };

/* Reads a frame of a client and answers with the same bytes, of this kind. */
static int answer(int stream, unsigned char kind, size_t len) {
    unsigned char frame[FRAME];
    if (recv(stream, frame, sizeof frame, MSG_WAITALL) != sizeof frame) return 0;
    frame[10] = kind;
    if (kind == 0) memset(frame, 0xff, sizeof frame);
    return send(stream, frame, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* A server that is none: it accepts at a meeting place that does not exist, or answers with noise or half a frame, or
 * is silent. Between machines its first answer has no proof of the key, and so counts as none. */
static void false_server(side *own) {
    enum { PENDING = 7, ACCEPTED = 5 };
    unsigned short port;
    if (own->is_server) {
        struct pollfd fds[2];
        int round = 0, listener = listening(1, &port);
        tell(own, &port, sizeof port);
        fds[0].fd = listener, fds[1].fd = own->in;
        fds[0].events = fds[1].events = POLLIN;
        while (poll(fds, 2, -1) > 0 && !fds[1].revents) {
            int stream = accept(listener, NULL, NULL);
            CHECK(stream >= 0);
            if (round == 0) CHECK(answer(stream, PENDING, FRAME) && (has_hosts() || answer(stream, ACCEPTED, FRAME)));
            if (round % 5 == 1) answer(stream, 77, FRAME);
            if (round % 5 == 2) answer(stream, 0, FRAME);
            if (round % 5 == 3) answer(stream, PENDING, 100);
            if (round % 5 == 4 && answer(stream, PENDING, FRAME)) answer(stream, PENDING, FRAME);
            if (round++ % 5) close(stream);
        }
        close(listener);
        meet(own, 'e');
    } else {
        hear(own, &port, sizeof port);
        use_ports(port, 1);
        open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
        if (!has_hosts()) GIVES(VIP_NOT_REACHABLE, request(own, 1, LIMIT));
        CHECK(state_of(own) == VIP_STATE_IDLE);
        /* It is asked again until the time limit. */
        GIVES(VIP_TIMEOUT, request(own, 1, 3000));
        meet(own, 'e');
        close_side(own);
    }
}

/* Every port is in use: a process cannot listen, and can still call. */
static void no_port(side *own) {
    unsigned short port;
    int listener = listening(own->is_server, &port);
    address local;
    VIP_CONN_HANDLE connection;
    use_ports(port, 1);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    local = address_of(own, 1);
    GIVES(VIP_ERROR_RESOURCE, VipConnectWait(own->nic, &local.net, LIMIT, NULL, NULL, &connection));
    GIVES(VIP_ERROR_RESOURCE, call_peer(own, LIMIT));
    CHECK(state_of(own) == VIP_STATE_IDLE);
    GIVES(VIP_TIMEOUT, request(own, 1, 20));
    close_side(own);
    close(listener);
}

/* A process that is stopped holds up nobody: the next ports are asked at the same time. */
static void stopped_process(side *own) {
    unsigned short port;
    int silent = -1;
    if (own->is_server) {
        /* A socket listens on the first port, and no process answers. */
        do {
            if (silent >= 0) close(silent);
            silent = listening(1, &port);
        } while (port > 65000);
        tell(own, &port, sizeof port);
    } else {
        hear(own, &port, sizeof port);
    }
    use_ports(port, 16);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    connect_side(own);
    meet(own, 'e');
    close_side(own);
    if (silent >= 0) close(silent);
}

/* Bytes of unauthenticated connections do no harm. */
static void unauthenticated(side *own) {
    unsigned short port;
    if (own->is_server) {
        int listener = -1;
        do {
            if (listener >= 0) close(listener);
            listener = listening(1, &port);
        } while (port > 65000);
        tell(own, &port, sizeof port);
        close(listener);
        use_ports(port, 16);
        open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
        connect_side(own);
    } else {
        unsigned seed = 1;
        int round, at;
        hear(own, &port, sizeof port);
        use_ports(port, 16);
        open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
        for (round = 0; round < 200; round++) {
            struct sockaddr_in name;
            unsigned char bytes[600];
            int stream = socket(AF_INET, SOCK_STREAM, 0);
            memset(&name, 0, sizeof name);
            name.sin_family = AF_INET;
            name.sin_port = htons(port);
            name.sin_addr = host_of(1);
            for (at = 0; at < (int)sizeof bytes; at++) bytes[at] = (unsigned char)((seed = seed * 69069 + 1) >> 24);
            if (round % 2) memcpy(bytes, "nemesiav\2\0", 10);
            if (connect(stream, (struct sockaddr *)&name, sizeof name) == 0)
                (void)!send(stream, bytes, (size_t)(round * 7 % 600), MSG_NOSIGNAL);
            if (round % 3) close(stream);
        }
        connect_side(own);
    }
    meet(own, 'e');
    close_side(own);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        side_function run;
    } cases[] = {
        {"reject", reject},           {"mismatch", mismatch},         {"timeouts", timeouts},
        {"discriminators", discriminators}, {"interrupted", interrupted}, {"peers", peers},
        {"killed", killed},           {"false-server", false_server}, {"unauthenticated", unauthenticated},
        {"stopped-process", stopped_process}, {"client-first", client_first},
        {"no-port", no_port},
    };
    size_t at;
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (count > 1 && strcmp(arguments[1], cases[at].name) != 0) continue;
        is_server_killed = cases[at].run == killed;
        two_processes(cases[at].name, 1, cases[at].run);
        printf("%s\n", cases[at].name);
    }
    return 0;
}

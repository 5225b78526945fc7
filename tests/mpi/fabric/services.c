/* Servers that are found by host and port, as fabtests' tests of two processes find each other without a socket of
 * their own: the server names a port as its source, the client the same as its destination. The first message of the
 * client has its address. */
#include <netinet/in.h>

#include "sides.h"

/* Returns a port that nobody uses now, as text. */
static void free_port(char text[16]) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof place;
    const int free = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(free >= 0 && bind(free, (struct sockaddr *)&place, length) == 0);
    CHECK(getsockname(free, (struct sockaddr *)&place, &length) == 0);
    snprintf(text, 16, "%d", ntohs(place.sin_port));
    close(free);
}

/* Opens the objects of a server (FI_SOURCE) or of a client (0). */
static void open_at(struct side *it, const char *node, const char *port, uint64_t flags) {
    struct fi_info *hints = new_hints();
    memset(it, 0, sizeof *it);
    OK(fi_getinfo(API, node, port, flags, hints, &it->info));
    fi_freeinfo(hints);
    CHECK(flags == FI_SOURCE ? it->info->src_addrlen == ADDRESS : it->info->dest_addrlen == ADDRESS);
    CHECK((flags == FI_SOURCE ? it->info->dest_addr : it->info->src_addr) == NULL);
    OK(fi_fabric(it->info->fabric_attr, &it->fabric, NULL));
    OK(fi_domain(it->fabric, it->info, &it->domain, NULL));
    open_endpoint(it, &(struct options){0});
}

/* The two processes meet over the port alone. */
static void found_by_host_and_port(void) {
    struct side it;
    unsigned char in[ADDRESS];
    char port[16];
    for (int round = 0; round < 3; round++) {
        if (rank == 0) {
            free_port(port);
            open_at(&it, round == 0 ? NULL : round == 1 ? "127.0.0.1" : "localhost", port, FI_SOURCE);
            CHECK(send(other, port, sizeof port, MSG_NOSIGNAL) == sizeof port);
            OK(fi_recv(it.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
            CHECK(completed(&it, in).len == ADDRESS);
            RETURNS(fi_av_insert(it.av, in, 1, &it.peer, 0, NULL), 1);
            POSTED(&it, fi_inject(it.ep, it.own, ADDRESS, it.peer));
        } else {
            CHECK(recv(other, port, sizeof port, MSG_WAITALL) == sizeof port);
            open_at(&it, round == 2 ? "localhost" : "127.0.0.1", port, 0);
            if (round == 1) RETURNS(fi_av_insertsvc(it.av, "127.0.0.1", port, &it.peer, 0, NULL), 1);
            else RETURNS(fi_av_insert(it.av, it.info->dest_addr, 1, &it.peer, 0, NULL), 1);
            OK(fi_recv(it.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
            POSTED(&it, fi_inject(it.ep, it.own, ADDRESS, it.peer));
            CHECK(completed(&it, in).len == ADDRESS);
            /* The vector has the address of the endpoint, and not the place at which it was found. */
            unsigned char known[ADDRESS];
            size_t length = ADDRESS;
            OK(fi_av_lookup(it.av, it.peer, known, &length));
            CHECK(memcmp(known, in, ADDRESS) == 0 && memcmp(known, it.info->dest_addr, ADDRESS) != 0);
        }
        meet(&it);
        close_side(&it);
    }
}

/* A port has one server; a client without a server, or with wrong words, gets an error. */
static void not_found(void) {
    struct side server, client;
    struct fid_ep *second;
    struct fi_info *hints = new_hints(), *info;
    fi_addr_t address = 0;
    char port[16];
    free_port(port);
    /* A node alone, as fabtests' multi_ep has it, is no endpoint's address. */
    OK(fi_getinfo(API, "127.0.0.1", NULL, 0, hints, &info));
    CHECK(info->dest_addr == NULL && info->src_addr == NULL);
    fi_freeinfo(info);
    RETURNS(fi_getinfo(API, "host.invalid", NULL, 0, hints, &info), -FI_ENODATA);
    RETURNS(fi_getinfo(API, NULL, "no number", 0, hints, &info), -FI_ENODATA);
    RETURNS(fi_getinfo(API, "host.invalid", port, 0, hints, &info), -FI_ENODATA);
    fi_freeinfo(hints);
    open_at(&server, "127.0.0.1", port, FI_SOURCE);
    RETURNS(fi_endpoint(server.domain, server.info, &second, NULL), -FI_EADDRINUSE);
    open_at(&client, "127.0.0.1", port, 0);
    RETURNS(fi_av_insert(client.av, client.info->dest_addr, 1, &address, 0, NULL), 1);
    CHECK(address == 0);
    close_side(&server);
    RETURNS(fi_av_insert(client.av, client.info->dest_addr, 1, &address, 0, NULL), 0);
    CHECK(address == FI_ADDR_NOTAVAIL);
    close_side(&client);
}

static const struct test TESTS[] = {
    {"found_by_host_and_port", found_by_host_and_port, 2}, {"not_found", not_found, 1}};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }

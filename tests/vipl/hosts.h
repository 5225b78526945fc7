/* The two hosts of a test: this one, or two that the test has made, mostly network namespaces.
 *
 * VIPL_TEST_HOSTS has four words: for the server and for the client its host and its address. A host is the file of a
 * network namespace; or `boot=` and a file with another number of this machine's boot, for devices that all belong to
 * the first network namespace; or `-`, which is this one. Each process enters its own; the pipes of the test connect
 * them there, too. */
#ifndef HOSTS_H
#define HOSTS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* In <sched.h>, but only with _GNU_SOURCE. */
extern int setns(int fd, int kind);
extern int unshare(int kinds);
#define MOUNT_NAMESPACE 0x00020000

static char host_words[4][128];

/* Returns whether the two processes of a test have hosts of their own. */
static int has_hosts(void) {
    const char *all = getenv("VIPL_TEST_HOSTS");
    if (all == NULL) return 0;
    return sscanf(all, "%127s %127s %127s %127s", host_words[0], host_words[1], host_words[2], host_words[3]) == 4;
}

/* Returns the address of the host of a process. */
static struct in_addr host_of(int is_server) {
    struct in_addr host;
    host.s_addr = htonl(INADDR_LOOPBACK);
    if (has_hosts()) inet_pton(AF_INET, host_words[is_server ? 1 : 3], &host);
    return host;
}

/* Moves a process to its host. Returns whether that was possible. */
static int enter_host(int is_server) {
    const char *host = host_words[is_server ? 0 : 2];
    int fd;
    if (!has_hosts()) return 1;
    if (strncmp(host, "boot=", 5) == 0) {
        if (unshare(MOUNT_NAMESPACE) != 0) return 0;
        if (mount(host + 5, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) != 0) return 0;
    } else if (strcmp(host, "-") != 0) {
        fd = open(host, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, 0) != 0) return 0;
        close(fd);
    }
    return setenv("VIPL_ADDRESS", host_words[is_server ? 1 : 3], 1) == 0;
}

#endif

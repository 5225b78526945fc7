/* A connection storm: many VIs are connected, by client-server and by peer-to-peer requests, used once, and
 * disconnected. `storm COUNT`: prints the connections in a second. */
#include "common.h"

#include <time.h>

static int connections = 40;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void storm(side *own) {
    VIP_VI_HANDLE *vis = calloc((size_t)connections, sizeof *vis);
    int round, at;
    CHECK(vis != NULL);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    for (round = 0; round < 2; round++) {
        double start = now();
        for (at = 0; at < connections; at++) {
            unsigned number = (unsigned)(at * 2);
            address local = address_of(own, number + (unsigned)own->is_server);
            address remote = address_of(own, number + (unsigned)!own->is_server);
            VIP_CONN_HANDLE connection;
            OK(VipCreateVi(own->nic, &own->attributes, NULL, NULL, &vis[at]));
            own->next = (unsigned)at * 2;
            OK(VipPostRecv(vis[at], describe(own, (unsigned)at * 64, 64), own->handle));
            if (round == 1) {
                OK(VipConnectPeerRequest(vis[at], &local.net, &remote.net, LIMIT));
            } else if (own->is_server) {
                OK(VipConnectWait(own->nic, &local.net, LIMIT, NULL, NULL, &connection));
                OK(VipConnectAccept(connection, vis[at]));
            } else {
                OK(VipConnectRequest(vis[at], &local.net, &remote.net, LIMIT, NULL));
            }
        }
        if (round == 1)
            for (at = 0; at < connections; at++) OK(VipConnectPeerWait(vis[at], NULL));
        if (own->is_server) {
            printf("%s: %.0f connections in a second\n", round == 0 ? "client and server" : "peer to peer",
                   connections / (now() - start));
            fflush(stdout);
        }
        for (at = 0; at < connections; at++) {
            VIP_DESCRIPTOR *found;
            check_transport(vis[at]);
            own->next = (unsigned)at * 2 + 1;
            OK(VipPostSend(vis[at], describe(own, 100000, (unsigned)at % 65), own->handle));
            OK(VipSendWait(vis[at], LIMIT, &found));
            OK(VipRecvWait(vis[at], LIMIT, &found));
            CHECK(found->CS.Length == (VIP_UINT32)(at % 65));
        }
        meet(own, 's');
        for (at = 0; at < connections; at++) {
            OK(VipDisconnect(vis[at]));
            OK(VipDestroyVi(vis[at]));
        }
        meet(own, 'd');
    }
    free(vis);
    close_side(own);
}

int main(int count, char **arguments) {
    if (count > 1) connections = atoi(arguments[1]);
    CHECK(connections > 0 && connections <= 250);
    two_processes("storm", 1, storm);
    return 0;
}

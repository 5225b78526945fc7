/* What the programs cover: each call of a function records its return code, and each finished descriptor its status.
 *
 * If VIPL_COVERAGE names a file, a process appends one line for each new pair of a function and a code, and for each
 * finished descriptor. tests/vipl/main.rs compares the lines with the table of return codes in statements.md. */
#ifndef COVERAGE_H
#define COVERAGE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void record(const char *line) {
    static const char *path;
    int file;
    if (path == NULL && (path = getenv("VIPL_COVERAGE")) == NULL) path = "";
    if (path[0] == 0 || (file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) < 0) return;
    /* One write, so the lines of several processes do not mix. */
    (void)!write(file, line, strlen(line));
    close(file);
}

static VIP_RETURN covered(const char *function, unsigned long *seen, VIP_RETURN code) {
    unsigned long bit = 1UL << ((unsigned)code & 63);
    /* A load first: the usual case costs nothing that a measurement would see. */
    if (!(__atomic_load_n(seen, __ATOMIC_RELAXED) & bit)
        && !(__atomic_fetch_or(seen, bit, __ATOMIC_RELAXED) & bit)) {
        char line[80];
        snprintf(line, sizeof line, "%s %d\n", function, (int)code);
        record(line);
    }
    return code;
}

static void cover_status(const char *queue, VIP_UINT32 status) {
    char line[80];
    snprintf(line, sizeof line, "%s %#x\n", queue, status);
    record(line);
}

/* The function, as GNU C permits it: a block with a value. */
#define COVERED(function, call)                                                                               \
    __extension__({                                                                                           \
        static unsigned long seen_;                                                                           \
        covered(#function, &seen_, (call));                                                                   \
    })

#define VipOpenNic(...) COVERED(VipOpenNic, VipOpenNic(__VA_ARGS__))
#define VipCloseNic(...) COVERED(VipCloseNic, VipCloseNic(__VA_ARGS__))
#define VipQueryNic(...) COVERED(VipQueryNic, VipQueryNic(__VA_ARGS__))
#define VipErrorCallback(...) COVERED(VipErrorCallback, VipErrorCallback(__VA_ARGS__))
#define VipQuerySystemManagementInfo(...) \
    COVERED(VipQuerySystemManagementInfo, VipQuerySystemManagementInfo(__VA_ARGS__))
#define VipCreatePtag(...) COVERED(VipCreatePtag, VipCreatePtag(__VA_ARGS__))
#define VipDestroyPtag(...) COVERED(VipDestroyPtag, VipDestroyPtag(__VA_ARGS__))
#define VipRegisterMem(...) COVERED(VipRegisterMem, VipRegisterMem(__VA_ARGS__))
#define VipDeregisterMem(...) COVERED(VipDeregisterMem, VipDeregisterMem(__VA_ARGS__))
#define VipQueryMem(...) COVERED(VipQueryMem, VipQueryMem(__VA_ARGS__))
#define VipSetMemAttributes(...) COVERED(VipSetMemAttributes, VipSetMemAttributes(__VA_ARGS__))
#define VipCreateVi(...) COVERED(VipCreateVi, VipCreateVi(__VA_ARGS__))
#define VipDestroyVi(...) COVERED(VipDestroyVi, VipDestroyVi(__VA_ARGS__))
#define VipSetViAttributes(...) COVERED(VipSetViAttributes, VipSetViAttributes(__VA_ARGS__))
#define VipQueryVi(...) COVERED(VipQueryVi, VipQueryVi(__VA_ARGS__))
#define VipConnectWait(...) COVERED(VipConnectWait, VipConnectWait(__VA_ARGS__))
#define VipConnectAccept(...) COVERED(VipConnectAccept, VipConnectAccept(__VA_ARGS__))
#define VipConnectReject(...) COVERED(VipConnectReject, VipConnectReject(__VA_ARGS__))
#define VipConnectRequest(...) COVERED(VipConnectRequest, VipConnectRequest(__VA_ARGS__))
#define VipDisconnect(...) COVERED(VipDisconnect, VipDisconnect(__VA_ARGS__))
#define VipConnectPeerRequest(...) COVERED(VipConnectPeerRequest, VipConnectPeerRequest(__VA_ARGS__))
#define VipConnectPeerDone(...) COVERED(VipConnectPeerDone, VipConnectPeerDone(__VA_ARGS__))
#define VipConnectPeerWait(...) COVERED(VipConnectPeerWait, VipConnectPeerWait(__VA_ARGS__))
#define VipPostSend(...) COVERED(VipPostSend, VipPostSend(__VA_ARGS__))
#define VipSendDone(...) COVERED(VipSendDone, VipSendDone(__VA_ARGS__))
#define VipSendWait(...) COVERED(VipSendWait, VipSendWait(__VA_ARGS__))
#define VipSendNotify(...) COVERED(VipSendNotify, VipSendNotify(__VA_ARGS__))
#define VipPostRecv(...) COVERED(VipPostRecv, VipPostRecv(__VA_ARGS__))
#define VipRecvDone(...) COVERED(VipRecvDone, VipRecvDone(__VA_ARGS__))
#define VipRecvWait(...) COVERED(VipRecvWait, VipRecvWait(__VA_ARGS__))
#define VipRecvNotify(...) COVERED(VipRecvNotify, VipRecvNotify(__VA_ARGS__))
#define VipCreateCQ(...) COVERED(VipCreateCQ, VipCreateCQ(__VA_ARGS__))
#define VipDestroyCQ(...) COVERED(VipDestroyCQ, VipDestroyCQ(__VA_ARGS__))
#define VipResizeCQ(...) COVERED(VipResizeCQ, VipResizeCQ(__VA_ARGS__))
#define VipCQDone(...) COVERED(VipCQDone, VipCQDone(__VA_ARGS__))
#define VipCQWait(...) COVERED(VipCQWait, VipCQWait(__VA_ARGS__))
#define VipCQNotify(...) COVERED(VipCQNotify, VipCQNotify(__VA_ARGS__))
#define VipNSInit(...) COVERED(VipNSInit, VipNSInit(__VA_ARGS__))
#define VipNSShutdown(...) COVERED(VipNSShutdown, VipNSShutdown(__VA_ARGS__))
#define VipNSGetHostByName(...) COVERED(VipNSGetHostByName, VipNSGetHostByName(__VA_ARGS__))
#define VipNSGetHostByAddr(...) COVERED(VipNSGetHostByAddr, VipNSGetHostByAddr(__VA_ARGS__))
#define VipAddTagCQ(...) COVERED(VipAddTagCQ, VipAddTagCQ(__VA_ARGS__))
#define VipRemoveTagCQ(...) COVERED(VipRemoveTagCQ, VipRemoveTagCQ(__VA_ARGS__))
#define VipPostDeferredSends(...) COVERED(VipPostDeferredSends, VipPostDeferredSends(__VA_ARGS__))
#define VipAllocRegisterMem(...) COVERED(VipAllocRegisterMem, VipAllocRegisterMem(__VA_ARGS__))
#define VipFreeRegisteredMem(...) COVERED(VipFreeRegisteredMem, VipFreeRegisteredMem(__VA_ARGS__))
#define VipQueryMemKind(...) COVERED(VipQueryMemKind, VipQueryMemKind(__VA_ARGS__))
#define VipSetMemReadable(...) COVERED(VipSetMemReadable, VipSetMemReadable(__VA_ARGS__))
#define VipQueryViTransport(...) COVERED(VipQueryViTransport, VipQueryViTransport(__VA_ARGS__))

#endif

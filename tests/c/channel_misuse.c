/* Misuse of the handle of a channel, in a process group of one. Each one returns an error and has no other effect. */
#define _GNU_SOURCE
#include <nemesia_rdma_channel.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void says(const char *words) { CHECK(strstr(nemesia_last_error_message(), words) != NULL); }

/* Calls of each sort on something that is not a channel. */
static void is_refused(nemesia_channel *channel) {
    char bytes[8] = {0};
    nemesia_iovec list = {bytes, sizeof bytes};
    size_t done = 77;
    int32_t peer = 77;
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_put(channel, 0, &list, 1, &done));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_get(channel, 0, &list, 1, &done));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_wait(channel, 0, &peer));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_init(channel));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_set_design(channel, 0, "basic"));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_explain(channel, sizeof bytes, bytes, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_channel_finalize(channel));
    CHECK(done == 77 && peer == 77 && bytes[0] == 0);
    CHECK(nemesia_channel_warning(channel, 0) == NULL);
}

int main(void) {
    nemesia_channel *channel = NULL;
    nemesia_config *config = NULL;
    int32_t rank = -1, size = -1;
    bool parent = true;
    char bytes[8] = {0}, text[256];
    nemesia_iovec list = {bytes, sizeof bytes}, nowhere = {NULL, 8};
    size_t done = 77;
    int32_t peer = 77;
    const char *warning;

    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_init_process_group(NULL, NULL, &rank, &size, &parent));
    /* A variable that does not exist is a warning. */
    CHECK(setenv("NEMESIA_CHANNEL_DESING", "basic", 1) == 0);
    OK(nemesia_config_from_environment(&config));
    OK(nemesia_channel_init_process_group(config, &channel, &rank, &size, &parent));
    CHECK(rank == 0 && size == 1 && !parent);

    GIVES(NEMESIA_ERR_PEER, nemesia_channel_put(channel, 0, &list, 1, &done));
    GIVES(NEMESIA_ERR_RANK, nemesia_channel_put(channel, 1, &list, 1, &done));
    GIVES(NEMESIA_ERR_RANK, nemesia_channel_get(channel, -1, &list, 1, &done));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_put(channel, 0, &list, 1, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_put(channel, 0, NULL, 1, &done));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_get(channel, 0, &nowhere, 1, &done));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_set_design(channel, 0, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_set_design(channel, 0, "quickest"));
    says("zero-copy");
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_wait(channel, 0, NULL));
    GIVES(NEMESIA_ERR_PEER, nemesia_channel_wait(channel, 0, &peer));
    CHECK(done == 77 && peer == 77);

    CHECK(nemesia_channel_warning(channel, 0) == NULL);
    OK(nemesia_channel_init(channel));
    warning = nemesia_channel_warning(channel, 0);
    CHECK(warning != NULL && strstr(warning, "NEMESIA_CHANNEL_DESING") != NULL);
    CHECK(nemesia_channel_warning(channel, 1) == NULL);
    OK(nemesia_channel_init(channel));
    CHECK(nemesia_channel_warning(channel, 0) == warning);
    GIVES(NEMESIA_ERR_PEER, nemesia_channel_put(channel, 0, &list, 1, &done));
    says("no pipe to itself");
    /* There is no pipe to wait for. */
    GIVES(NEMESIA_PENDING, nemesia_channel_wait(channel, -1, &peer));
    CHECK(peer == 77);
    OK(nemesia_channel_explain(channel, sizeof text, text, &done));
    CHECK(strlen(text) == done && strstr(text, "rank 0: this process") != NULL);
    GIVES(NEMESIA_ERR_TRUNCATED, nemesia_channel_explain(channel, 4, text, &done));
    CHECK(strcmp(text, "ran") == 0);

    is_refused((nemesia_channel *)config);
    is_refused((nemesia_channel *)(void *)bytes);
    is_refused((nemesia_channel *)(uintptr_t)1);
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_rank((nemesia_endpoint *)channel, &rank));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_send((nemesia_endpoint *)channel, 0, 1, bytes, 8));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_close((nemesia_endpoint *)channel));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_channel_init(NULL));

    OK(nemesia_channel_finalize(channel));
    is_refused(channel);
    says("finalized");
    nemesia_config_destroy(config);
    return EXIT_SUCCESS;
}

/* A process whose host runtime uses the launcher's connection before Nemesia: `host CASE [LIBRARY]`, started twice. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

/* Opening is refused, with the remedies, by the reporter that `words` names. */
static void is_refused(const char *words) {
    nemesia_endpoint *endpoint = NULL;
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open(NULL, &endpoint));
    CHECK(endpoint == NULL);
    CHECK(strstr(nemesia_last_error_message(), words) != NULL);
    CHECK(strstr(nemesia_last_error_message(), "open_with") != NULL);
    CHECK(strstr(nemesia_last_error_message(), "NEMESIA_PMI_TAKE_OVER=1") != NULL);
}

/* Opening with the setting succeeds, and the world can be used and closed. */
static void takes_over(void) {
    nemesia_config *config;
    nemesia_endpoint *endpoint;
    OK(nemesia_config_from_environment(&config));
    OK(nemesia_config_set(config, "NEMESIA_PMI_TAKE_OVER", "1"));
    OK(nemesia_endpoint_open(config, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_endpoint_barrier(endpoint));
    OK(nemesia_endpoint_close(endpoint));
}

/* Sends a request of PMI-1 and reads the answer. */
static void ask(const char *request, const char *expected) {
    int fd = atoi(getenv("PMI_FD"));
    char answer[256] = "";
    size_t len = 0;
    CHECK(write(fd, request, strlen(request)) == (ssize_t)strlen(request));
    while (len == 0 || answer[len - 1] != '\n') {
        CHECK(len < sizeof answer - 1 && read(fd, answer + len, 1) == 1);
        len++;
    }
    CHECK(strstr(answer, expected) != NULL);
}

/* The program itself speaks PMI: the launcher reports it. */
static void raw(const char *library) {
    (void)library;
    ask("cmd=init pmi_version=1 pmi_subversion=1\n", "rc=0");
    is_refused("the launcher");
    /* The connection still serves its owner. */
    ask("cmd=get_my_kvsname\n", "kvs_nemesia_");
    takes_over();
}

/* A library, loaded as interpreters load extensions, reports that it is initialised. */
static void library(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    *(int *)dlsym(handle, "initialized") = 1;
    is_refused("PMI2_Initialized");
    /* The first refusal has changed nothing. */
    *(int *)dlsym(handle, "initialized") = 0;
    takes_over();
    dlclose(handle);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "raw") == 0) raw(argv[2]);
    else if (strcmp(argv[1], "library") == 0) library(argv[2]);
    else fail_at(__FILE__, __LINE__, "no such case");
    return EXIT_SUCCESS;
}

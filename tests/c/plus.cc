// Uses the header in C++: the only process of a world sends to itself.
#include <nemesia.h>

#include <cstdio>
#include <cstring>

static_assert(NEMESIA_OK == 0 && NEMESIA_ANY_SOURCE == -1, "constants are constant expressions");
static_assert(sizeof(nemesia_status) == 48, "no padding");

int main() {
    nemesia_config *config = nullptr;
    nemesia_endpoint *endpoint = nullptr;
    nemesia_status status{};
    char word[8] = {};
    bool good = nemesia_config_from_environment(&config) == NEMESIA_OK;
    good = good && nemesia_endpoint_open(config, &endpoint) == NEMESIA_OK;
    nemesia_config_destroy(config);
    good = good && nemesia_endpoint_send(endpoint, 0, 1, "self", 4) == NEMESIA_OK;
    good = good && nemesia_endpoint_recv(endpoint, 0, 1, 0, sizeof word, word, &status) == NEMESIA_OK;
    good = good && std::strcmp(word, "self") == 0 && status.len == 4;
    good = good && nemesia_endpoint_close(endpoint) == NEMESIA_OK;
    if (!good) {
        std::fprintf(stderr, "%s\n", nemesia_last_error_message());
    }
    return good ? 0 : 1;
}

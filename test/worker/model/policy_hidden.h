/* The hidden layers of a configuration in a test, as members of an initializer. */
#ifndef TEST_WORKER_MODEL_POLICY_HIDDEN_H
#define TEST_WORKER_MODEL_POLICY_HIDDEN_H

#include <stdint.h>

#define POLICY_HIDDEN_COUNT(...) (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* Of policy and value, or of one of them. */
#define POLICY_HIDDEN(...) POLICY_HIDDEN_POLICY(__VA_ARGS__), POLICY_HIDDEN_VALUE(__VA_ARGS__)
#define POLICY_HIDDEN_POLICY(...) .layers = POLICY_HIDDEN_COUNT(__VA_ARGS__), .width = {__VA_ARGS__}
#define POLICY_HIDDEN_VALUE(...)                                                                             \
    .value_layers = POLICY_HIDDEN_COUNT(__VA_ARGS__), .value_width = {__VA_ARGS__}

#endif

/* A plug-in that was built against another interface, for test/kernels/test_backend.c. */
#include "kernels/kernels.h"

#include <stddef.h>

backend_plugin coalesced_backend;

const struct backend_ops *coalesced_backend(uint32_t abi)
{
    (void)abi;
    return NULL;
}

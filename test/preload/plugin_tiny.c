/* A plug-in without operations, for test/kernels/test_backend.c. It opens with one thread or more, and
 * otherwise reports that there is no device. Its description is the path that it was loaded from. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

backend_plugin coalesced_backend;

static const char here; // an address of this library

static enum status tiny_open(struct backend *backend, const struct backend_settings *settings,
                             struct error *error)
{
    Dl_info info;
    if (settings->threads >= 1 && dladdr(&here, &info) != 0) {
        snprintf(backend->text, sizeof backend->text, "%s", info.dli_fname);
        return STATUS_OK;
    }
    *error = (struct error){STATUS_UNAVAILABLE, "tiny finds no device"};
    return STATUS_UNAVAILABLE;
}

static void tiny_close(struct backend *backend)
{
    (void)backend;
}

static const struct backend_ops tiny = {
    .name = "tiny", .dtype = DTYPE_F32, .host = true, .open = tiny_open, .close = tiny_close};

const struct backend_ops *coalesced_backend(uint32_t abi)
{
    return abi == BACKEND_ABI ? &tiny : NULL;
}

/* A fake device with memory of its own, for tests of code that reads and writes parameters on a device. It
 * computes with the CPU backend that lies beside this plug-in, but its memory cannot be read directly, and it
 * has no layouts. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

backend_plugin coalesced_backend;

static const char here; // an address of this library

static const struct backend_ops *load_cpu(void)
{
    char path[PATH_MAX];
    Dl_info info;
    backend_plugin *plugin = NULL;
    if (dladdr(&here, &info) == 0)
        return NULL;
    const char *name = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/libcoalesced-onednn.so",
             name == NULL ? 1 : (int)(name - info.dli_fname), name == NULL ? "." : info.dli_fname);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != NULL)
        *(void **)&plugin = dlsym(library, BACKEND_PLUGIN_SYMBOL);
    return plugin == NULL ? NULL : plugin(BACKEND_ABI);
}

const struct backend_ops *coalesced_backend(uint32_t abi)
{
    static struct backend_ops ops;
    const struct backend_ops *cpu = abi == BACKEND_ABI ? load_cpu() : NULL;
    if (cpu == NULL)
        return NULL;
    ops = *cpu;
    ops.name = "aloof";
    ops.host = false;
    ops.layout_hash = NULL;
    ops.sgd_round = NULL;
    return &ops;
}

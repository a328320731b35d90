/* Finds and loads a backend's plug-in. A worker does so once, at its start, on its main thread. */
#include "kernels/backend.h"
#include "kernels/base/program_files.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static enum status load_table(const struct backend_ops **out, const char *path, struct error *error)
{
    void (*function)(void);
    struct error why;
    if (plugin_load(&function, path, BACKEND_PLUGIN_SYMBOL, &why) != STATUS_OK)
        return error_set(error, why.status, "%s %s", path, why.text);
    *out = ((backend_plugin *)function)(BACKEND_ABI);
    return *out != NULL
               ? STATUS_OK
               : error_set(error, STATUS_UNAVAILABLE,
                           "%s is of another version: expected one for interface %d", path, BACKEND_ABI);
}

enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error)
{
    char path[PATH_MAX], file[NAME_MAX];
    const struct backend_ops *ops = NULL;
    assert(strchr(name, '/') == NULL);
    snprintf(file, sizeof file, "libcoalesced-%s.so", name);
    enum status status = program_find(path, PROGRAM_PLUGIN, file, error);
    if (status == STATUS_OK)
        status = load_table(&ops, path, error);
    return status == STATUS_OK ? backend_open(out, ops, settings, error) : status;
}

enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error)
{
    struct error reason = {0};
    if (device != DEVICE_CPU) {
        if (backend_load(out, "cuda", settings, &reason) == STATUS_OK)
            return STATUS_OK;
        if (device == DEVICE_GPU)
            return error_set(error, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
        error_set(why, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
    }
    return backend_load(out, "onednn", settings, error);
}

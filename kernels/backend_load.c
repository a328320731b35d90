/* Finds and loads a backend's plug-in. A worker does so once, at its start, on its main thread. */
#include "kernels/backend.h"
#include "kernels/base/plugin_folders.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static enum status load_table(const struct backend_ops **out, const char *path, struct error *error)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s", dlerror());
    backend_plugin *plugin = NULL;
    *(void **)&plugin = dlsym(library, BACKEND_PLUGIN_SYMBOL);
    *out = plugin != NULL ? plugin(BACKEND_ABI) : NULL;
    dlclose(library); // stays loaded: RTLD_NODELETE
    if (plugin == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s is no plug-in: it has no %s", path,
                         BACKEND_PLUGIN_SYMBOL);
    if (*out == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s is of another version: expected one for interface %d",
                         path, BACKEND_ABI);
    return STATUS_OK;
}

enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error)
{
    struct plugin_folders folders;
    char path[PATH_MAX], file[NAME_MAX];
    assert(strchr(name, '/') == NULL);
    snprintf(file, sizeof file, "libcoalesced-%s.so", name);
    enum status status = plugin_folders_find(&folders, error);
    if (status != STATUS_OK)
        return status;
    if (plugin_folders_have(&folders, file, path) != STATUS_OK)
        return error_set(error, STATUS_UNAVAILABLE, "there is no %s in %s%s", file, folders.path[0],
                         folders.count > 1 ? ", above it or in ../lib/coalesced" : "");
    const struct backend_ops *ops = NULL;
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
